"""The rounding mode: whatever runs inside is rounded to a format, op by op, forward and backward alike.

Each aten op computes in a wider type than its operands have (fp32 for bf16 and fp16, fp64 for fp32: as devices
accumulate), and its floating results and the arguments that it mutates, found from its schema, are rounded once. A
torch dtype *carries* a format: bf16 and fp16 tensors carry themselves, so that torch's own rules of promotion, fp32
islands and autocast hold; a fp32 tensor can carry any format that is narrower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from gradproof.precision.formats import Format, format_named, nearest, stochastic
from gradproof.precision.watching import Watching

aten = torch.ops.aten
Policy = Literal["cast", "autocast"]
Mode = Literal["nearest", "stochastic"]

# Results that stay wide on real devices: statistics of norms, the logsumexp of fused attention.
KEPT_WIDE: dict[Any, tuple[int, ...]] = {
    aten.native_layer_norm: (1, 2),
    aten._fused_rms_norm: (1,),
    aten.native_group_norm: (1, 2),
    aten.native_batch_norm: (1, 2),
    aten._native_batch_norm_legit: (1, 2),
    aten.cudnn_batch_norm: (1, 2),
    aten.logsumexp: (0,),
    aten._scaled_dot_product_flash_attention_for_cpu: (1,),
    aten._scaled_dot_product_flash_attention: (1,),
    aten._scaled_dot_product_efficient_attention: (1,),
    aten._scaled_dot_product_cudnn_attention: (1,),
}
# What is narrow by an explicit cast keeps its own format, whatever the others carry.
NARROW = {torch.bfloat16: format_named("bf16"), torch.float16: format_named("fp16")}
# The operands of products, by position: what fp8 and tf32 round, and nothing else.
OPERANDS: dict[Any, tuple[int, ...]] = {
    aten.mm: (0, 1),
    aten.bmm: (0, 1),
    aten.mv: (0, 1),
    aten.dot: (0, 1),
    aten.vdot: (0, 1),
    aten.linear: (0, 1),
    aten.addmm: (1, 2),
    aten.addmv: (1, 2),
    aten.addbmm: (1, 2),
    aten.baddbmm: (1, 2),
    aten._grouped_mm: (0, 1),
    aten._addmm_activation: (1, 2),
    aten.convolution: (0, 1),
    aten.convolution_backward: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (0, 1, 2, 3),
    aten._scaled_dot_product_flash_attention: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_backward: (0, 1, 2, 3),
    aten._scaled_dot_product_efficient_attention: (0, 1, 2),
    aten._scaled_dot_product_efficient_attention_backward: (0, 1, 2, 3),
}
# Running statistics that these write though their schema does not say so.
WRITES_SILENTLY: dict[Any, tuple[int, ...]] = {aten.native_batch_norm: (3, 4), aten.cudnn_batch_norm: (3, 4)}
# Rows after the last group are never written, so whatever memory held is in them.
UNDEFINED_ROWS = frozenset({aten._grouped_mm})


@dataclasses.dataclass
class Range:
    """What an op lost to the format's range, in elements."""

    overflow: int = 0
    underflow: int = 0


class Rounding(Watching):
    """The mode. `carried` says which torch dtype stands for which format; `operands` is the format of the operands of
    products, each tensor scaled to fit it. Without a `seed` rounding is to nearest. With `entering`, tensors that were
    not made inside are rounded where they are used."""

    def __init__(
        self,
        carried: Mapping[torch.dtype, Format],
        *,
        operands: Format | None = None,
        seed: int | None = None,
        entering: bool = False,
        **watching: Any,
    ):
        super().__init__(**watching)
        self.carried, self.operands, self.seed, self.entering = dict(carried), operands, seed, entering
        self._generators: dict[torch.device, torch.Generator] = {}
        self._dtypes: dict[Any, list[torch.dtype | None]] = {}
        self._counts: dict[tuple[str, str, str], list[Tensor]] = {}
        self._inside: set[int] = set()

    @property
    def ranges(self) -> dict[tuple[str, str, str], Range]:
        """Elements that overflowed or vanished, by (path, phase, op), in the order of their first loss."""
        return {
            place: Range(*map(int, lost)) for place, lost in self._counts.items() if any(bool(count) for count in lost)
        }

    def round(self, x: Tensor, format: Format) -> Tensor:
        """`x` on the format's grid, in its own dtype."""
        if self.seed is None:
            return nearest(x, format)
        if x.device not in self._generators:
            self._generators[x.device] = torch.Generator(x.device).manual_seed(self.seed)
        return stochastic(x, format, self._generators[x.device])

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        packet = func.overloadpacket
        leaves, structure = tree_flatten((args, kwargs))
        carried = any(_dtype(leaf) in self.carried for leaf in leaves)
        if not carried or any(isinstance(leaf, Tensor) and leaf.layout != torch.strided for leaf in leaves):
            return self._narrow_operands(func, args, kwargs) if self.operands else func(*args, **kwargs)
        if packet in OPERANDS:
            leaves = self._back_from_islands(leaves)
            args, kwargs = tree_unflatten(leaves, structure)
        wide_args, wide_kwargs = tree_unflatten([self._widened(leaf) for leaf in leaves], structure)
        if self.operands:
            wide_args = self._on_grid(packet, wide_args)
        written = list(_written(func, args, kwargs))
        dtypes = None if written else self._result_dtypes(func, args, kwargs, leaves)
        out = func(*wide_args, **wide_kwargs)
        if written:
            for old, new in zip(written, _written(func, wide_args, wide_kwargs), strict=True):
                self._write(packet, old, new)
            return _own(out, wide_args, wide_kwargs, args, kwargs)
        assert dtypes is not None
        results, shape = tree_flatten(out)
        kept = KEPT_WIDE.get(packet, ())
        results = [
            result if i in kept else self._rounded(packet, result, dtypes[i]) for i, result in enumerate(results)
        ]
        if self.entering:
            self._inside |= {result.untyped_storage()._cdata for result in results if isinstance(result, Tensor)}
        for position in WRITES_SILENTLY.get(packet, ()):
            if isinstance(args[position], Tensor):
                self._write(packet, args[position], wide_args[position])
        return tree_unflatten(results, shape)

    def _back_from_islands(self, leaves: list[Any]) -> list[Any]:
        """Operands of one type, as products want them. Code that asks for the dtype before it casts back cannot see
        what fp32 carries, and so mixes an island with carriers."""
        types = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)}
        if types != {torch.float32, torch.float64}:
            return leaves
        carrier = self.carried[torch.float32]
        return [
            self.round(leaf.float(), carrier) if isinstance(leaf, Tensor) and leaf.dtype == torch.float64 else leaf
            for leaf in leaves
        ]

    def _widened(self, leaf: Any) -> Any:
        """The leaf in the type that its op computes in."""
        dtype = _dtype(leaf)
        if dtype not in self.carried:
            return leaf
        narrow = self.carried[dtype].mantissa < 23
        target = torch.float32 if narrow and dtype != torch.float64 else torch.float64
        if isinstance(leaf, torch.dtype):
            return target
        if self.entering and leaf.untyped_storage()._cdata not in self._inside:
            return nearest(leaf.to(target), self.carried[dtype])
        return leaf.to(target)

    def _result_dtypes(self, func: Any, args: Any, kwargs: Any, leaves: list[Any]) -> list[torch.dtype | None]:
        """The types that torch gives the results: the op is run once as it is to find out."""
        key = (func, *((_dtype(leaf), leaf.dim() == 0) if isinstance(leaf, Tensor) else _kind(leaf) for leaf in leaves))
        if key not in self._dtypes:
            try:
                results = tree_flatten(func(*args, **kwargs))[0]
                self._dtypes[key] = [_dtype(result) for result in results]
            except RuntimeError:
                # No kernel for this type here, or none for statistics that were kept wide: what goes in comes out.
                self._dtypes[key] = [next(d for leaf in leaves if (d := _dtype(leaf)) in self.carried)] * 8
        return self._dtypes[key]

    def _rounded(self, packet: Any, result: Any, dtype: torch.dtype | None) -> Any:
        """A result in the type that it has outside, rounded to the format that this carries."""
        if dtype not in self.carried or not isinstance(result, Tensor):
            return result.to(dtype) if isinstance(result, Tensor) and result.dtype != dtype else result
        format = self.carried[dtype]
        # A mask's fill with the smallest number that there is means just that in every format.
        top = torch.finfo(torch.float32).max
        if format.largest < top:
            result = torch.where(result.abs() == top, result.sign() * format.largest, result)
        rounded = self.round(result, format)
        if format.exponent < 8 and packet not in UNDEFINED_ROWS:
            self._count(packet, result, rounded)
        return rounded.to(dtype)

    def _write(self, packet: Any, old: Tensor, new: Tensor) -> None:
        """Puts a mutated argument's new value where the old one was."""
        if old.dtype in self.carried:
            new = self._rounded(packet, new, old.dtype)
            if self.entering:
                self._inside.add(old.untyped_storage()._cdata)
        if old is not new:
            if old.shape != new.shape:
                old.resize_(new.shape)
            old.copy_(new)

    def _count(self, packet: Any, exact: Tensor, rounded: Tensor) -> None:
        overflow = (rounded.isinf() & ~exact.isinf()).sum()
        underflow = ((rounded == 0) & (exact != 0)).sum()
        place = (*self.where(), packet.__name__)
        before = self._counts.get(place)
        self._counts[place] = [overflow, underflow] if before is None else [before[0] + overflow, before[1] + underflow]

    def _on_grid(self, packet: Any, args: Any) -> Any:
        """The operands of a product in their own format, each scaled so that its largest entry fits."""
        positions = OPERANDS.get(packet, ())
        return tuple(self._quantised(arg) if i in positions else arg for i, arg in enumerate(args))

    def _quantised(self, x: Tensor) -> Tensor:
        assert self.operands is not None
        if self.operands.exponent >= 8 or not x.numel():
            return self.round(x, self.operands)
        scale = self.operands.largest / x.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
        scale = torch.where(scale.isfinite(), scale, 1.0)
        return self.round(x * scale, self.operands) / scale

    def _narrow_operands(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Products of fp32 tensors under tf32: nothing else is rounded."""
        if not self.carried and func.overloadpacket in OPERANDS and _dtype(args[0]) is torch.float32:
            args = self._on_grid(func.overloadpacket, args)
        return func(*args, **kwargs)


def _dtype(leaf: Any) -> torch.dtype | None:
    """The type of a tensor, or a type that is itself an argument."""
    return leaf.dtype if isinstance(leaf, Tensor) else leaf if isinstance(leaf, torch.dtype) else None


def _kind(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (torch.dtype, bool)) else type(leaf)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The arguments that the schema says are mutated, lists of tensors included."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor):
                    yield tensor


def _own(out: Any, wide_args: Any, wide_kwargs: Any, args: Any, kwargs: Any) -> Any:
    """What a mutating op returned, with the caller's own tensors in place of the wide ones that stood for them."""
    wide, own = tree_flatten((wide_args, wide_kwargs))[0], tree_flatten((args, kwargs))[0]
    originals = {id(a): b for a, b in zip(wide, own, strict=True) if isinstance(a, Tensor)}
    results, shape = tree_flatten(out)
    return tree_unflatten([originals.get(id(result), result) for result in results], shape)


class Islands(TorchFunctionMode):
    """Explicit fp32 casts, where fp32 tensors carry a narrower format: the island is computed in fp64 tensors, and a
    cast of one of these to the dtype that the carriers have is the way back."""

    CASTS = frozenset({"to", "type", "float", "softmax", "log_softmax", "sum", "mean", "cumsum", "prod", "norm"})

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in self.CASTS and args and isinstance(args[0], Tensor):
            if name == "float":
                if args[0].dtype == torch.float32:
                    return args[0].double()
                if args[0].dtype == torch.float64:
                    return args[0]
            elif args[0].dtype == torch.float32:
                args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
                kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return func(*args, **kwargs)


def rounding(
    format: str | tuple[int, int] | Format,
    policy: Policy = "cast",
    mode: Mode = "nearest",
    seed: int = 0,
    **watching: Any,
) -> Rounding:
    """A mode in which fp32 tensors behave as tensors of `format` do: `with rounding("bf16"): y = module(x)`.

    policy  "cast": everything is in the format, as after `module.to(dtype)`, except explicit fp32 islands.
            "autocast": products are, and what torch's autocast says; tensors are fp32.
    mode    "nearest" (even), or "stochastic": unbiased, drawn from a generator of its own, keyed by `seed`.

    The fp32 format needs fp64 tensors. fp8 formats and tf32 hold for the operands of products alone."""
    format = format_named(format)
    if policy not in ("cast", "autocast") or mode not in ("nearest", "stochastic"):
        raise ValueError(f"policy {policy!r}, mode {mode!r}: cast or autocast, nearest or stochastic")
    rest = format_named(format.rest) if format.operands else format
    options: dict[str, Any] = dict(
        operands=format if format.operands else None, seed=seed if mode == "stochastic" else None, **watching
    )
    if policy == "autocast":
        return Rounding(NARROW, within=autocasts(rest), **options)
    if rest.name == "fp64":
        return Rounding({}, **options)
    fp32 = format_named("fp32")
    if rest.name == "fp32":
        return Rounding({} if format.operands else {torch.float64: fp32, torch.float32: fp32}, entering=True, **options)
    carried = {torch.float32: rest, torch.float64: fp32, **NARROW}
    return Rounding(carried, within=(Islands(),), entering=True, **options)


def autocasts(format: Format) -> list[AbstractContextManager[Any]]:
    """torch's own autocast to the format, on every device."""
    if format.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"autocast knows bf16 and fp16, not {format.name}; use policy='cast'")
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return [torch.autocast(device, dtype=format.dtype, cache_enabled=False) for device in devices]
