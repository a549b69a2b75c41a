"""Rounding bounds of an op: its reference runs in the kernel's dtype under a mode that carries an error with every
number.

    y = f(x):  σ_y² = Σ_i (∂f/∂x_i · σ_i)² + (c·u·|terms|)²

σ is the size of an error whose parts are independent: rounding errors of different numbers do not conspire, so through
a chain they grow like the root of its length, where worst-case bounds would grow by √n a product and pass anything.
Nothing is observed: σ follows from the values, the units of the dtypes and the operations alone. Sums may be taken in
any order: n terms add c = √n units of their root sum of squares. What is copied, chosen or structurally zero has σ = 0
and must come out exactly.

A kernel is held to `K` σ, entry by entry. What the reference rounds (operands, stored activations), the mode sees: the
mathematics is written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

aten = torch.ops.aten
FUNCTIONS = 4.0  # units that an elementary function may be off: exp, tanh, rsqrt
TAILS = 0.1  # of the usual size, below which an entry is judged as if it had that
LARGE = 1 << 17  # numbers
FAINT = 1e-16  # of the largest entry: no error


class NoRule(RuntimeError):
    """The reference runs an operation whose error this mode does not know."""


class Bounds(TorchDispatchMode):
    """`with Bounds() as bounds: y = op.forward(…)`, then `bounds.of(y)` is σ of every entry of y."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is nothing to skip, and skipping imports the compiler, for seconds

    def __init__(self) -> None:
        super().__init__()
        self._errors: Any = WeakTensorKeyDictionary()

    def of(self, tensor: Tensor) -> Tensor:
        """σ of a tensor; zero where nothing was rounded."""
        error = self._errors.get(tensor)
        return _zeros(tensor) if error is None else error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet in _IN_PLACE:
            return self._in_place(packet, func, args, kwargs)
        out = func(*args, **kwargs)
        if packet in _VIEWS:
            self._follow(func, args, kwargs, out)
        elif packet in _FACTORIES:
            if out.is_floating_point():  # whoever writes to its views writes to its errors
                self._errors[out] = _zeros(out)
        elif packet in _RULES:
            self._ruled(_RULES[packet], args, kwargs, out)
        elif any(leaf.is_floating_point() for leaf in _tensors(out)):
            raise NoRule(f"{func} has no rule for its rounding error")
        return out

    def _follow(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Views and copies: the errors go the same way."""
        error = self._errors.get(args[0])
        if error is not None:
            for tensor, its in zip(_tensors(out), _tensors(func(error, *args[1:], **kwargs)), strict=True):
                self._errors[tensor] = its

    def _ruled(self, rule: Callable[..., Tensor | None], args: Any, kwargs: dict[str, Any], out: Any) -> None:
        first = next(iter(_tensors(out)))
        if first.is_floating_point():
            error = rule(self, first, *args, **kwargs)
            if error is not None:
                self._errors[first] = error.to(_width(first)).expand(first.shape)

    def _in_place(self, packet: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The same rules, and the result is written where the tensor's own error stands."""
        target = args[0]
        if not target.is_floating_point():
            return func(*args, **kwargs)
        before = target.clone() if packet is not aten.copy_ else None
        error = self._errors.get(target)
        if error is None:
            error = self._errors[target] = _zeros(target)
        if before is not None:
            self._errors[before] = error
        out = func(*args, **kwargs)
        new = _IN_PLACE[packet](self, out, before, *args[1:], **kwargs)
        error.copy_(new if new is not None else torch.zeros_like(error))
        return out

    def __getitem__(self, value: Any) -> Tensor | float:
        """σ of an argument: of a number, and of a tensor that nobody rounded, 0."""
        error = self._errors.get(value) if isinstance(value, Tensor) else None
        return 0.0 if error is None else error

    def unit(self, out: Tensor) -> float:
        return torch.finfo(out.dtype).eps / 2


def worst(inexact: Tensor, exact: Tensor, sigma: Tensor, units: float, unit: float = 0.0) -> float:
    """The largest |inexact − exact|/(units·σ) of an entry; infinite for another shape or a number that is none.
    A narrow result is one rounding off, not several times σ of one. An entry that is rounded at all has a tenth of a
    `unit` of the tensor's usual size: in the tails of a GELU, errors are no first-order matter."""
    if inexact.shape != exact.shape:
        return math.inf
    if not exact.numel():
        return 0.0
    if not inexact.is_floating_point():
        return 0.0 if bool((inexact == exact).all()) else math.inf
    tiny = torch.finfo(inexact.dtype).tiny  # below it units are not relative any more
    error = (inexact.double() - exact.double()).abs()
    usual = float(exact.double().nan_to_num(0, 0, 0).square().mean().sqrt())
    wide, rounding = sigma.double(), 0.0
    if inexact.dtype in (torch.bfloat16, torch.float16):
        rounding = torch.finfo(inexact.dtype).eps / 2 * exact.double().nan_to_num(0, 0, 0).abs()
        wide = (wide.square() - rounding.square()).clamp(min=0).sqrt()
    allowed = units * wide + rounding + torch.where(sigma > 0, tiny + units * unit * TAILS * usual, 0.0)
    # Squares of errors underflow where numbers are this small beside the others.
    same = (error <= FAINT * float(exact.nan_to_num(0, 0, 0).abs().max())) | (~exact.isfinite() & ~inexact.isfinite())
    ratio = float(torch.where(same, 0.0, error / allowed).max())
    return math.inf if math.isnan(ratio) else ratio


def _tensors(values: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _hypot(*errors: Tensor | float) -> Tensor:
    """√Σ e²."""
    total: Any = 0.0
    for error in errors:
        total = total + (error * error if isinstance(error, Tensor) else float(error) ** 2)
    return torch.as_tensor(total).sqrt()


def _float(value: Any) -> Any:
    """As wide as errors are."""
    return value.to(_width(value)) if isinstance(value, Tensor) else float(value)


def _width(tensor: Tensor) -> torch.dtype:
    """Of errors: their squares must not underflow; on a GPU, and where tensors are large, float32 has to do."""
    return torch.float32 if tensor.is_cuda or tensor.numel() > LARGE else torch.float64


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor, dtype=_width(tensor))


def _size(value: Any) -> Any:
    return abs(_float(value))


_RULES: dict[Any, Callable[..., Tensor | None]] = {}
_IN_PLACE: dict[Any, Callable[..., Tensor | None]] = {}


def _rule(*packets: Any) -> Callable[[Callable[..., Tensor | None]], Callable[..., Tensor | None]]:
    def keep(rule: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        _RULES.update(dict.fromkeys(packets, rule))
        return rule

    return keep


# Two arguments, one after the other.


@_rule(aten.add, aten.sub)
def _add(b: Bounds, out: Tensor, x: Any, y: Any, alpha: float = 1) -> Tensor:
    return _hypot(b[x], b[y] * abs(alpha), b.unit(out) * _size(out))


@_rule(aten.rsub)
def _rsub(b: Bounds, out: Tensor, x: Any, y: Any, alpha: float = 1) -> Tensor:
    return _hypot(b[x] * abs(alpha), b[y], b.unit(out) * _size(out))


@_rule(aten.mul)
def _mul(b: Bounds, out: Tensor, x: Any, y: Any) -> Tensor:
    return _hypot(b[x] * _size(y), b[y] * _size(x), b.unit(out) * _size(out))


@_rule(aten.div)
def _div(b: Bounds, out: Tensor, x: Any, y: Any) -> Tensor:
    return _hypot(b[x] / _size(y), b[y] * _size(out) / _size(y), b.unit(out) * _size(out))


@_rule(aten.where)
def _where(b: Bounds, out: Tensor, condition: Tensor, x: Any, y: Any) -> Tensor:
    own, other = (b[side] if isinstance(b[side], Tensor) else out.new_zeros((), dtype=_width(out)) for side in (x, y))
    return torch.where(condition, own, other)


# One argument: |f′|·σ and the units of f itself.


def _unary(packet: Any, slope: Callable[[Tensor, Tensor], Tensor], units: float = FUNCTIONS) -> None:
    def rule(b: Bounds, out: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
        wide, own = _float(x), _float(out)
        return _hypot(slope(wide, own).abs() * b[x], units * b.unit(out) * own.abs())

    _RULES[packet] = rule


_unary(aten.tanh, lambda x, y: 1 - y * y)
_unary(aten.sigmoid, lambda x, y: y * (1 - y))
_unary(aten.rsqrt, lambda x, y: 0.5 * y**3)
_unary(aten.sqrt, lambda x, y: 0.5 / y.clamp(min=torch.finfo(torch.float32).tiny))
_unary(aten.log_sigmoid_forward, lambda x, y: torch.sigmoid(-x))
_unary(aten.exp, lambda x, y: y)
_unary(aten.neg, lambda x, y: torch.ones_like(y), 0.0)
_unary(aten.abs, lambda x, y: torch.ones_like(y), 0.0)
_unary(aten.clamp, lambda x, y: torch.ones_like(y), 0.0)
_unary(aten.nan_to_num, lambda x, y: torch.ones_like(y), 0.0)


@_rule(aten.special_entr)
def _entr(b: Bounds, out: Tensor, x: Tensor) -> Tensor:
    wide = _float(x)
    slope = torch.where(wide > 0, wide.clamp(min=1e-30).log() + 1, torch.zeros_like(wide)).abs()
    return _hypot(slope * b[x], FUNCTIONS * b.unit(out) * (_size(out) + wide.abs()))


@_rule(aten.pow)
def _pow(b: Bounds, out: Tensor, x: Any, exponent: Any) -> Tensor:
    if isinstance(x, Tensor):
        slope = abs(exponent) * _size(x) ** (exponent - 1)
        return _hypot(slope * b[x], abs(exponent) * b.unit(out) * _size(out))
    scale = _size(out) * abs(math.log(x)) if x else _size(out)
    return _hypot(scale * b[exponent], FUNCTIONS * b.unit(out) * (_size(out) + scale * _size(exponent)))


@_rule(aten._to_copy)
def _converted(b: Bounds, out: Tensor, x: Tensor, **_: Any) -> Tensor | None:
    if not x.is_floating_point() or torch.finfo(out.dtype).eps <= torch.finfo(x.dtype).eps:
        error = b[x]
        return error if isinstance(error, Tensor) else None
    return _hypot(b[x], b.unit(out) * _size(out))


# Sums, in any order, in float32 at least.


def _accumulated(b: Bounds, out: Tensor, terms: Tensor, count: int) -> Tensor:
    """What adding up may do, `terms` being the root of the sum of squares; and the rounding of the result."""
    unit = min(b.unit(out), torch.finfo(torch.float32).eps / 2)
    return _hypot(math.sqrt(max(count, 1)) * unit * terms, b.unit(out) * _size(out))


def _summed(b: Bounds, out: Tensor, x: Tensor, dims: Any, keepdim: bool) -> Tensor:
    dims = dims or list(range(x.dim()))
    count = math.prod(x.shape[dim] for dim in ([dims] if isinstance(dims, int) else dims))
    terms = _float(x).square().sum(dims, keepdim).sqrt()
    error = b[x]
    through = error.square().sum(dims, keepdim).sqrt() if isinstance(error, Tensor) else 0.0
    return _hypot(through, _accumulated(b, out, terms, count))


@_rule(aten.sum)
def _sum(b: Bounds, out: Tensor, x: Tensor, dims: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return _summed(b, out, x, dims, keepdim)


@_rule(aten.mean)
def _mean(b: Bounds, out: Tensor, x: Tensor, dims: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    count = x.numel() // max(out.numel(), 1)
    return _summed(b, out * count, x, dims, keepdim) / max(count, 1)


@_rule(aten.linalg_vector_norm)
def _norm(b: Bounds, out: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
    wide, size = _float(x), _float(out).clamp(min=torch.finfo(torch.float32).tiny)
    through = (wide * b[x]).square().sum().sqrt() / size
    squares = wide.square().square().sum().sqrt() / size
    return _hypot(through, math.sqrt(x.numel()) * b.unit(out) * squares, FUNCTIONS * b.unit(out) * size)


def _product(b: Bounds, out: Tensor, x: Tensor, y: Tensor) -> Tensor:
    width = torch.float32 if torch.float32 in (_width(x), _width(y)) else torch.float64
    squares_x, squares_y = x.to(width).square(), y.to(width).square()
    terms = (squares_x @ squares_y).sqrt()
    through: Any = 0.0
    for error, squares, left in ((b[x], squares_y, True), (b[y], squares_x, False)):
        if isinstance(error, Tensor):
            own = error.to(width).square()
            through = through + (own @ squares if left else squares @ own)
    total = _accumulated(b, out, terms, x.shape[-1])
    return _hypot(total, torch.as_tensor(through).sqrt())


@_rule(aten.mm, aten.bmm)
def _mm(b: Bounds, out: Tensor, x: Tensor, y: Tensor, *_: Any) -> Tensor:
    return _product(b, out, x, y)


@_rule(aten.addmm)
def _addmm(b: Bounds, out: Tensor, bias: Tensor, x: Tensor, y: Tensor, **_: Any) -> Tensor:
    return _hypot(_product(b, out, x, y), b[bias], b.unit(out) * _size(bias))


# Softmax and its kin: c·u·p·(2 + |z − m| + Σ p|z − m|), and what the logits' own errors do.


def _spread(b: Bounds, z: Tensor, p: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """σ of log p from the logits' errors, and how many units of log p the arithmetic may cost."""
    wide = _float(z)
    away = torch.where(wide.isfinite(), (wide.amax(dim, True) - wide).abs(), 0.0).nan_to_num()
    error = _like(b, z)
    through = _hypot(error, (p * error).square().sum(dim, True).sqrt())
    return through, 2 + away + (p * away).sum(dim, True) + math.sqrt(z.shape[dim])


@_rule(aten._softmax)
def _softmax(b: Bounds, out: Tensor, z: Tensor, dim: int, *_: Any) -> Tensor:
    p = _float(out)
    through, units = _spread(b, z, p, dim)
    return p * _hypot(through, FUNCTIONS * b.unit(out) * units)


@_rule(aten._log_softmax)
def _log_softmax(b: Bounds, out: Tensor, z: Tensor, dim: int, *_: Any) -> Tensor:
    through, units = _spread(b, z, _float(out).exp(), dim)
    return _hypot(through, FUNCTIONS * b.unit(out) * (units + _size(out) + _size(z)))


@_rule(aten.logsumexp)
def _logsumexp(b: Bounds, out: Tensor, z: Tensor, dims: Any, keepdim: bool = False) -> Tensor:
    wide = _float(z)
    p = torch.softmax(wide, dims[0] if isinstance(dims, (list, tuple)) else dims)
    through = (p * b[z]).square().sum(dims, keepdim).sqrt()
    return _hypot(through, FUNCTIONS * b.unit(out) * (_size(out) + wide.abs().amax(dims, keepdim) + 2))


# Moved, chosen, put together.


def _like(b: Bounds, x: Any) -> Tensor:
    error = b[x]
    return error if isinstance(error, Tensor) else _zeros(x)


@_rule(aten.gather)
def _gather(b: Bounds, out: Tensor, x: Tensor, dim: int, index: Tensor, **_: Any) -> Tensor:
    return _like(b, x).gather(dim, index)


@_rule(aten.sort)
def _sort(b: Bounds, out: Tensor, x: Tensor, **_: Any) -> None:
    return None  # a decision: what it chose is gathered by its indices


@_rule(aten.index)
def _index(b: Bounds, out: Tensor, x: Tensor, indices: Any) -> Tensor:
    return aten.index(_like(b, x), indices)


@_rule(aten.index_select)
def _index_select(b: Bounds, out: Tensor, x: Tensor, dim: int, index: Tensor) -> Tensor:
    return _like(b, x).index_select(dim, index)


@_rule(aten.embedding)
def _embedding(b: Bounds, out: Tensor, table: Tensor, index: Tensor, *_: Any) -> Tensor:
    return _like(b, table)[index]


@_rule(aten.cat)
def _cat(b: Bounds, out: Tensor, tensors: Any, dim: int = 0) -> Tensor:
    return torch.cat([_like(b, tensor) for tensor in tensors], dim)


@_rule(aten.scatter)
def _scatter(b: Bounds, out: Tensor, x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    errors = _like(b, source) if isinstance(source, Tensor) else 0.0
    return _like(b, x).scatter(dim, index, errors)


@_rule(aten.masked_fill)
def _masked_fill(b: Bounds, out: Tensor, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return _like(b, x).masked_fill(mask, 0.0)


@_rule(aten.constant_pad_nd)
def _pad(b: Bounds, out: Tensor, x: Tensor, pad: Any, value: Any = 0) -> Tensor:
    return torch.constant_pad_nd(_like(b, x), pad)


@_rule(aten.index_add, aten.index_copy)
def _index_add(b: Bounds, out: Tensor, x: Tensor, dim: int, index: Tensor, source: Tensor, **_: Any) -> Tensor:
    errors = _like(b, x).square().index_add(dim, index, _like(b, source).square()).sqrt()
    return _hypot(errors, math.sqrt(len(index)) * b.unit(out) * _size(out))


# In place: (out, the tensor as it was, the other arguments).


def _zeroed(b: Bounds, out: Tensor, before: Any, *_: Any, **__: Any) -> None:
    return None


def _copied(b: Bounds, out: Tensor, before: Any, source: Tensor, *_: Any) -> Tensor:
    narrower = torch.finfo(out.dtype).eps > torch.finfo(source.dtype).eps
    return _hypot(b[source], b.unit(out) * _size(out) if narrower else 0.0)


def _put(b: Bounds, out: Tensor, before: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """Rows that are added up where they belong together, in any order."""
    zeros, errors = _zeros(out), _like(b, before).square()  # a large table may be narrower than the rows put into it
    squares = aten.index_put(zeros, indices, _float(values).square().to(zeros.dtype), True)
    through = aten.index_put(errors, indices, _like(b, values).square().to(errors.dtype), accumulate).sqrt()
    count = max(1, values.shape[0] if values.dim() else 1)
    return _hypot(through, math.sqrt(count) * b.unit(out) * squares.sqrt()) if accumulate else through


_IN_PLACE |= {
    aten.add_: _add,
    aten.sub_: _add,
    aten.mul_: _mul,
    aten.div_: _div,
    aten.zero_: _zeroed,
    aten.fill_: _zeroed,
    aten.copy_: _copied,
    aten.index_put_: _put,
    aten.scatter_: _scatter,
    aten.masked_fill_: _masked_fill,
}
_VIEWS = {
    aten.alias,
    aten.as_strided,
    aten.clone,
    aten.detach,
    aten.expand,
    aten.lift_fresh,
    aten.permute,
    aten.select,
    aten.slice,
    aten.split,
    aten.split_with_sizes,
    aten.squeeze,
    aten.t,
    aten.transpose,
    aten.unbind,
    aten.unsqueeze,
    aten.view,
    aten._unsafe_view,
}
_FACTORIES = {
    aten.arange,
    aten.empty,
    aten.empty_like,
    aten.full,
    aten.full_like,
    aten.new_empty,
    aten.new_full,
    aten.new_ones,
    aten.new_zeros,
    aten.ones,
    aten.ones_like,
    aten.scalar_tensor,
    aten.tril,
    aten.zeros,
    aten.zeros_like,
}
