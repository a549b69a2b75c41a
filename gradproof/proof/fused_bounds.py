"""Rounding bounds of a fused kernel, computed along with its reference and the backward of autograd.

A fused kernel computes in float32 whatever its tensors' format, so the reference runs in float32 on the rounded
arguments (`proof/bounds.py`). Where the format is narrow, two more roundings are a kernel's right: of the operands of
its products (attention's p before p·v), and of the outputs that its backward reads again. A rounding to nearest has a
root mean square of 0.43 u, and n of them in a product never exceed u·Σ|terms|.

Operations without a rule are taken apart into ones that have one: by the rules below, or by torch's own decomposition.
`only` keeps a single source of rounding, so a bound can be taken apart into what it is made of: σ² = Σ σ_source².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from gradproof.proof.bounds import (
    _IN_PLACE,
    _RULES,
    FUNCTIONS,
    Bounds,
    NoRule,
    _accumulated,
    _float,
    _hypot,
    _like,
    _rule,
    _size,
    _unary,
    _zeros,
)

aten = torch.ops.aten
UNITS = 8.0  # σ that a kernel may be off
NEAREST = 0.43  # of the unit: the root mean square of a rounding, over the numbers of a binade
PRODUCTS = {aten.mm, aten.bmm, aten.addmm}
OPERANDS, STORED = "operands of products", "outputs read again"


class FusedBounds(Bounds):
    """`Bounds` for a kernel whose stored tensors are `narrow`; None where they are as wide as its arithmetic."""

    def __init__(self, narrow: torch.dtype | None = None, only: str | None = None):
        super().__init__()
        self.narrow, self.only = narrow, only
        self.sources: dict[str, int] = {}  # and the most terms that each adds up
        self._outer: str | None = None
        self._source = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func.overloadpacket
        self._source = self._outer or packet.__name__
        if func._schema.is_mutable and packet not in _IN_PLACE:
            return self._in_place_of(func, args, kwargs)
        if packet in _APART:
            return self._taken_apart(_APART[packet], args, kwargs)
        if packet in _MOVES or packet in _MADE:
            out = func(*args, **kwargs)
            if packet in _MOVES:
                self._follow(func, args, kwargs, out)
            elif out.is_floating_point():
                self._errors[out] = _zeros(out)
            return out
        if packet in _IN_PLACE:
            self.sources.setdefault(self._source, 0)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except NoRule:
            composite = torch._C.DispatchKey.CompositeImplicitAutograd
            parts = func.decompose if func.has_kernel_for_dispatch_key(composite) else decomposition_table.get(func)
            if parts is None or not parts.__module__.startswith(("torch._decomp", "torch._ops")):
                raise
            return self._taken_apart(parts, args, kwargs)

    def _taken_apart(self, parts: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        outer, self._outer = self._outer, self._source
        try:
            with self:
                return parts(*args, **kwargs)
        finally:
            self._outer = outer

    def _in_place_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """exp_ is exp, copied to where its argument was."""
        plain = getattr(aten, func.overloadpacket.__name__.removesuffix("_"), None)
        if plain is None or not func.overloadpacket.__name__.endswith("_"):
            if any(value.is_floating_point() for value in args if isinstance(value, Tensor)):
                raise NoRule(f"{func} has no rule for its rounding error")
            return func(*args, **kwargs)
        return self._taken_apart(lambda x, *rest, **more: x.copy_(plain(x, *rest, **more)), args, kwargs)

    def _ruled(self, rule: Callable[..., Tensor | None], args: Any, kwargs: dict[str, Any], out: Any) -> None:
        first = out[0] if isinstance(out, (tuple, list)) else out
        if not first.is_floating_point() or not first.numel():
            return
        super()._ruled(rule, args, kwargs, out)
        floating = [value for value in args if isinstance(value, Tensor) and value.is_floating_point()]
        terms = max((value.numel() for value in floating), default=0) // max(first.numel(), 1)
        if any(rule is _RULES[packet] for packet in PRODUCTS):
            terms = floating[-1].shape[-2]
        self.sources[self._source] = max(self.sources.get(self._source, 0), terms)
        if first not in self._errors:
            return
        error = self._errors[first]
        if self.narrow is not None and any(rule is _RULES[packet] for packet in PRODUCTS):
            error = _hypot(error, self._operands(floating[-2], floating[-1]))
        # What is not finite has no error of its own.
        self._errors[first] = torch.where(first.isfinite(), error, 0.0).nan_to_num(0.0)

    def _operands(self, x: Tensor, y: Tensor) -> Tensor | float:
        """σ of a product whose operands are rounded to the narrow format: what it holds already is exact."""
        self.sources.setdefault(OPERANDS, 0)
        if self.only not in (None, OPERANDS):
            return 0.0
        wide_x, wide_y = _float(x).double().abs(), _float(y).double().abs()
        error_x, error_y = (_rounding(value, self.narrow) for value in (x, y))
        total: Any = 0.0
        for left, right in ((error_x, wide_y), (wide_x, error_y)):
            likely = NEAREST * (left.square() @ right.square()).sqrt()
            total = total + torch.minimum(likely, left @ right / UNITS).square()
        return total.sqrt()

    def stored(self, output: Tensor) -> None:
        """An output goes to memory in the narrow format, and a backward may read it there."""
        if self.narrow is None or not output.is_floating_point() or output not in self._errors:
            return
        self.sources.setdefault(STORED, 0)
        if self.only in (None, STORED):
            # In place: what autograd saved shares the memory of its error.
            error = self._errors[output]
            error.copy_(_hypot(error, NEAREST * _rounding(output, self.narrow).to(error)))

    def unit(self, out: Tensor) -> float:
        return super().unit(out) if self.only in (None, self._source) else 0.0


def _rounding(tensor: Tensor, narrow: torch.dtype | None) -> Tensor:
    """The most that storing a tensor in a format may change each entry, 0 where the format holds it."""
    wide = tensor.double().nan_to_num(0, 0, 0).abs()
    if narrow is None:
        return torch.zeros_like(wide)
    limits = torch.finfo(narrow)
    held = tensor.to(narrow).to(tensor.dtype) == tensor
    return torch.where(held, 0.0, limits.eps / 2 * wide.clamp(min=limits.tiny))


# Rules for what plain references and their backward run beside the ops of `proof/bounds.py`.

_unary(aten.log1p, lambda x, y: 1 / (1 + x))
_unary(aten.expm1, lambda x, y: y + 1)
_unary(aten.exp2, lambda x, y: math.log(2) * y)
_unary(aten.erf, lambda x, y: 2 / math.sqrt(math.pi) * (-x * x).exp())
_unary(aten.sin, lambda x, y: x.cos())
_unary(aten.cos, lambda x, y: x.sin())
_unary(aten.reciprocal, lambda x, y: y * y)
_unary(aten.relu, lambda x, y: (x > 0).to(x), 0.0)
_unary(aten.softplus, lambda x, y: torch.sigmoid(x))
_unary(aten.clamp_min, lambda x, y: torch.ones_like(y), 0.0)
_unary(aten.clamp_max, lambda x, y: torch.ones_like(y), 0.0)
_unary(aten.sgn, lambda x, y: torch.zeros_like(y), 0.0)
_unary(aten.sign, lambda x, y: torch.zeros_like(y), 0.0)


@_rule(aten.log)
def _log(b: Bounds, out: Tensor, x: Tensor) -> Tensor:
    return _hypot(b[x] / _size(x), FUNCTIONS * b.unit(out) * (_size(out) + 0.25))


@_rule(aten.gelu)
def _gelu(b: Bounds, out: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """x·Φ(x), Φ = (1 + erf)/2: where erf is near −1 its own unit remains."""
    wide = _float(x)
    density = (-wide * wide / 2).exp() / math.sqrt(2 * math.pi)
    slope = (0.5 * (1 + torch.erf(wide / math.sqrt(2))) + wide * density).abs()
    tail = torch.where(wide.abs() < 6, wide.abs(), 0.0)
    return _hypot(slope * b[x], FUNCTIONS * b.unit(out) * _size(out), b.unit(out) * tail)


@_rule(aten.maximum, aten.minimum)
def _extremum(b: Bounds, out: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(out == x, _like(b, x).expand(out.shape), _like(b, y).expand(out.shape))


@_rule(aten.amax, aten.amin, aten.max, aten.min)
def _extreme(b: Bounds, out: Tensor, x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    dims = list(range(x.dim())) if dims == () else dims
    return _like(b, x).amax(dims, keepdim) if x.dim() else _like(b, x)


@_rule(aten.cumsum)
def _cumsum(b: Bounds, out: Tensor, x: Tensor, dim: int, **_: Any) -> Tensor:
    terms = _float(x).square().cumsum(dim).sqrt()
    through = _like(b, x).square().cumsum(dim).sqrt()
    return _hypot(through, _accumulated(b, out, terms, x.shape[dim] if x.dim() else 1))


@_rule(aten.scatter_add)
def _scatter_add(b: Bounds, out: Tensor, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    through = _like(b, x).square().scatter_add(dim, index, _like(b, source).square()).sqrt()
    terms = _float(x).square().scatter_add(dim, index, _float(source).square()).sqrt()
    return _hypot(through, math.sqrt(max(index.numel() // max(out.numel(), 1), 1)) * b.unit(out) * terms)


@_rule(aten.select_scatter)
def _select_scatter(b: Bounds, out: Tensor, x: Tensor, source: Tensor, *place: Any) -> Tensor:
    return aten.select_scatter(_like(b, x), _like(b, source), *place)


@_rule(aten.slice_scatter)
def _slice_scatter(b: Bounds, out: Tensor, x: Tensor, source: Tensor, *place: Any) -> Tensor:
    return aten.slice_scatter(_like(b, x), _like(b, source), *place)


@_rule(aten.index_put, aten._unsafe_index_put)
def _index_put(b: Bounds, out: Tensor, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    squares = aten.index_put(_float(x).square(), indices, _float(values).square(), accumulate)
    through = aten.index_put(_like(b, x).square(), indices, _like(b, values).square(), accumulate).sqrt()
    return _hypot(through, b.unit(out) * squares.sqrt() if accumulate else 0.0)


@_rule(aten._softmax_backward_data)
def _softmax_backward(b: Bounds, out: Tensor, dy: Tensor, y: Tensor, dim: int, *_: Any) -> Tensor:
    """y·(dy − ⟨y, dy⟩). Fused attention takes the inner product from the stored output: its unit is the format's."""
    p, g = _float(y), _float(dy)
    of_p, of_g = _like(b, y), _like(b, dy)
    inner = (p * g).sum(dim, True)
    rows = _hypot((of_p * g).square().sum(dim, True).sqrt(), (p * of_g).square().sum(dim, True).sqrt())
    sums = math.sqrt(y.shape[dim]) * (p * g).square().sum(dim, True).sqrt()
    size = (g.square().mean(dim, True) + g.square().mean()).sqrt()  # a row of few keys may be small by chance
    usual = p.square().sum(dim, True).sqrt() * size
    narrow = getattr(b, "narrow", None)
    again = NEAREST * torch.finfo(narrow).eps / 2 if narrow is not None and b.unit(out) else 0.0
    own = b.unit(out) * _hypot(FUNCTIONS * _size(out), p * g, p * sums, p * usual)
    return _hypot(own, (g - inner) * of_p, p * of_g, p * rows, again * p * usual)


@_rule(aten._log_softmax_backward_data)
def _log_softmax_backward(b: Bounds, out: Tensor, dy: Tensor, y: Tensor, dim: int, *_: Any) -> Tensor:
    """dy − exp(y)·Σ dy."""
    p, g, of_g = _float(y).exp(), _float(dy), _like(b, dy)
    whole = p * g.sum(dim, True).abs()
    sums = math.sqrt(y.shape[dim]) * g.square().sum(dim, True).sqrt()
    own = b.unit(out) * _hypot(_size(out), whole * (FUNCTIONS + _size(y)), p * sums)
    return _hypot(own, whole * _like(b, y), of_g, p * of_g.square().sum(dim, True).sqrt())


def _var(x: Tensor, dims: Any = None, *rest: Any, **options: Any) -> Tensor:
    """Σ (x − mean)²/(n − correction)."""
    correction = options.get("correction", rest[0] if rest and not isinstance(rest[0], bool) else 1)
    keepdim = bool(options.get("keepdim", False))
    dims = list(range(x.dim())) if dims is None or dims == [] else dims
    count = math.prod(x.shape[dim] for dim in ([dims] if isinstance(dims, int) else dims))
    away = x - x.mean(dims, True)
    return (away * away).sum(dims, keepdim) / max(count - (1 if correction is None else correction), 0)


def _var_mean(x: Tensor, dims: Any = None, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    axes = list(range(x.dim())) if dims is None or dims == [] else dims
    return _var(x, dims, *rest, **options), x.mean(axes, bool(options.get("keepdim", False)))


def _std(x: Tensor, *rest: Any, **options: Any) -> Tensor:
    return _var(x, *rest, **options).sqrt()


def _layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    variance, mean = _var_mean(x, dims, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    y = (x - mean) * rstd
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, rstd


_MOVES = {aten.diagonal, aten.flip, aten.repeat, aten.roll, aten.tril, aten.triu, aten.unfold, aten._reshape_alias}
_MADE = {aten.eye, aten.empty_strided, aten.new_empty_strided, aten._efficientzerotensor, aten.linspace}
_APART: dict[Any, Callable[..., Any]] = {
    aten.var: _var,
    aten.var_mean: _var_mean,
    aten.std: _std,
    aten.native_layer_norm: _layer_norm,
    aten.square: lambda x: x * x,
    aten.leaky_relu: lambda x, slope=0.01: torch.where(x > 0, x, slope * x),
    aten.stack: lambda tensors, dim=0: torch.cat([tensor.unsqueeze(dim) for tensor in tensors], dim),
    aten.baddbmm: lambda c, x, y, *, beta=1, alpha=1: beta * c + alpha * torch.bmm(x, y),
    aten.addcmul: lambda x, y, z, *, value=1: x + value * (y * z),
    aten.dot: lambda x, y: (x * y).sum(),
    aten.mv: lambda x, y: torch.mm(x, y[:, None])[:, 0],
}
