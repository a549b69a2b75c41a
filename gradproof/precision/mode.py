"""The rounding mode: rounds every op inside to a format, in the forward and in the backward.

Each aten op computes in a wider type than its operands (fp32 for bf16 and fp16, fp64 for fp32), as devices accumulate.
Its floating-point results and mutated arguments, found from its schema, are rounded once. A torch dtype *carries* a
format. bf16 and fp16 tensors carry themselves, so torch's rules for promotion, fp32 islands and autocast apply. An fp32
tensor can carry any narrower format.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten

from gradproof.precision.formats import Format, format_named, nearest, stochastic
from gradproof.precision.sums import ADDS_UP, round_partial_sums
from gradproof.precision.watching import BACKWARD, Watching, backward

aten = torch.ops.aten
Rounds = Callable[[tuple[str, str, str]], bool]  # (path, phase, op) to whether it rounds
CastPolicy = Literal["cast", "autocast"]
RoundingMode = Literal["nearest", "stochastic"]

# Results that stay fp32 on real devices: norm statistics, the logsumexp of fused attention.
KEPT_WIDE: dict[Any, tuple[int, ...]] = {
    aten.native_layer_norm: (1, 2),
    aten._fused_rms_norm: (1,),
    aten.native_group_norm: (1, 2),
    aten.native_batch_norm: (1, 2),
    aten._native_batch_norm_legit: (1, 2),
    aten.cudnn_batch_norm: (1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu: (1,),
    aten._scaled_dot_product_flash_attention: (1,),
    aten._scaled_dot_product_efficient_attention: (1,),
    aten._scaled_dot_product_cudnn_attention: (1,),
}
# Tensors with an explicit low-precision dtype keep their own format.
NARROW = {torch.bfloat16: format_named("bf16"), torch.float16: format_named("fp16")}
# The operands of products, by position: all that fp8 and tf32 round.
OPERANDS: dict[Any, tuple[int, ...]] = {
    aten.mm: (0, 1),
    aten.bmm: (0, 1),
    aten.mv: (0, 1),
    aten.dot: (0, 1),
    aten.vdot: (0, 1),
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
PRODUCTS = frozenset(packet.__name__ for packet in OPERANDS)
ENTERING = "a buffer or constant"  # takes the place of an op: tensors rounded where they are used
# Running statistics that these ops write without declaring it in their schema.
WRITES_SILENTLY: dict[Any, tuple[int, ...]] = {aten.native_batch_norm: (3, 4), aten.cudnn_batch_norm: (3, 4)}
# These write into the reserve argument, so they can run only once.
RUN_ONCE = frozenset({aten._cudnn_rnn, aten._cudnn_rnn_backward})
# Rows after the last group are never written and hold uninitialised memory.
UNDEFINED_ROWS = frozenset({aten._grouped_mm})


@dataclasses.dataclass
class Range:
    """Elements that an op lost to the format's range."""

    overflow: int = 0
    underflow: int = 0


class Rounding(Watching):
    """The mode. `carried` maps torch dtypes to the formats that they carry. `operands` is the format of the operands of
    products, with each tensor scaled to fit. Without a `seed`, rounding is to nearest. With `entering`, tensors created
    outside are rounded where they are used. With `rounds`, only the ops it accepts round what fp32 tensors carry, and
    products also their operands; explicit low-precision casts are then carried like the rest.
    """

    def __init__(
        self,
        carried: Mapping[torch.dtype, Format],
        *,
        operands: Format | None = None,
        seed: int | None = None,
        entering: bool = False,
        rounds: Rounds | None = None,
        **watching: Any,
    ):
        super().__init__(**watching)
        self.carried, self.operands, self.seed, self.entering = dict(carried), operands, seed, entering
        self.rounds = rounds
        self._fills = {dtype: _fills(dtype, format) for dtype, format in self.carried.items()}
        self._generators: dict[torch.device, torch.Generator] = {}
        self._dtypes: dict[Any, list[torch.dtype | None] | None] = {}
        self._counts: dict[tuple[str, str, str], list[Tensor]] = {}
        # Keyed by address; the weak reference keeps the address from being reused.
        self._inside: dict[int, StorageWeakRef] = {}

    def __enter__(self):
        if any(isinstance(mode, Rounding) for mode in _get_current_dispatch_mode_stack()):
            raise RuntimeError("a rounding mode is already active; rounding modes do not nest")
        self._inside = {}
        return super().__enter__()

    @property
    def ranges(self) -> dict[tuple[str, str, str], Range]:
        """Elements that overflowed or underflowed, by (path, phase, op), in the order of the first loss."""
        return {
            place: Range(*map(int, lost)) for place, lost in self._counts.items() if any(bool(count) for count in lost)
        }

    def round(self, x: Tensor, format: Format) -> Tensor:
        """`x` rounded to the format, in its own dtype."""
        if self.seed is None:
            return nearest(x, format)
        if x.device not in self._generators:
            self._generators[x.device] = torch.Generator(x.device).manual_seed(self.seed)
        return stochastic(x, format, self._generators[x.device])

    def copy_values(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not self.entering or all(self._is_inside(leaf) for leaf in _leaves(args, kwargs)):
            return self._made_inside(func(*args, **kwargs))
        return self.compute(func, args, kwargs)

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        packet, leaves = func.overloadpacket, _leaves(args, kwargs)
        carriers = [dtype for leaf in leaves if (dtype := _dtype(leaf)) in self.carried]
        if not carriers or any(isinstance(leaf, Tensor) and leaf.layout != torch.strided for leaf in leaves):
            out = func(*self._on_tf32_grid(packet, args), **kwargs)
            return out if _mutated(func) else self._made_of_others(out)
        if packet in OPERANDS and {torch.float32, torch.float64} <= set(carriers):
            args, carriers = self._back_from_islands(args), [torch.float32]

        wide_args, wide_kwargs = _mapped(self._widening(carriers), args, kwargs)
        if self.operands:
            wide_args = self._on_grid(packet, wide_args)
        elif self.rounds and packet in OPERANDS and torch.float64 not in carriers and not self._spares(packet.__name__):
            wide_args = self._operands_rounded(packet, wide_args)
        written = _written(func, args, kwargs)
        dtypes = None if written else self._result_dtypes(func, args, kwargs, leaves)
        out = func(*wide_args, **wide_kwargs)
        if self.seed is not None and packet in ADDS_UP and (format := self._adds_up_in(packet, dtypes, carriers)):
            round_partial_sums(packet, wide_args, out, functools.partial(self.round, format=format))

        own = {}
        for old, new in zip(written, _written(func, wide_args, wide_kwargs), strict=True):
            self._write(packet, old, new)
            own[id(new)] = old
        for position in WRITES_SILENTLY.get(packet, ()):
            if isinstance(args[position], Tensor):
                self._write(packet, args[position], wide_args[position])

        def outside(i: int, result: Any) -> Any:
            if not isinstance(result, Tensor) or id(result) in own:
                return own.get(id(result), result)
            if i in KEPT_WIDE.get(packet, ()) and result.dtype is torch.float32:
                return result
            return self._rounded(packet, result, dtypes[i] if dtypes else carriers[0])

        if isinstance(out, Tensor):
            return self._made_inside(outside(0, out))
        results, shape = tree_flatten(out)
        return self._made_inside(tree_unflatten([outside(i, result) for i, result in enumerate(results)], shape))

    def _is_inside(self, leaf: Any) -> bool:
        """Whether the tensor is already rounded to its format."""
        return (
            not isinstance(leaf, Tensor)
            or leaf.dtype not in self.carried
            or leaf.layout != torch.strided
            or leaf.layout != torch.strided
            or leaf.untyped_storage()._cdata in self._inside
        )

    def _made_inside(self, out: Any) -> Any:
        if self.entering:
            for result in (out,) if isinstance(out, Tensor) else tree_flatten(out)[0]:
                if isinstance(result, Tensor) and result.dtype in self.carried and result.layout == torch.strided:
                    storage = result.untyped_storage()
                    if storage._cdata not in self._inside and storage.nbytes() == result.nbytes:
                        self._inside[storage._cdata] = StorageWeakRef(storage)
        return out

    def _made_of_others(self, out: Any) -> Any:
        """Results made from integers, complex or sparse tensors, or from nothing, enter as if from outside."""
        if not self.entering:
            return out
        if isinstance(out, Tensor):
            return out if self._is_inside(out) else self._made_inside(self._entered(out))
        return type(out)(map(self._made_of_others, out)) if isinstance(out, (list, tuple)) else out

    def _back_from_islands(self, args: Any) -> Any:
        """Casts operands to one type, as products require, if fp32 islands are mixed with carriers."""
        format = self.carried[torch.float32]
        return [self.round(arg.float(), format) if _dtype(arg) is torch.float64 else arg for arg in args]

    def _widening(self, carriers: list[Any]) -> Callable[[Any], Any]:
        """Converts each argument to the type that the op computes in."""
        narrow = all(dtype != torch.float64 and self.carried[dtype].mantissa < 23 for dtype in carriers)
        wide, fills = torch.float32 if narrow else torch.float64, self._fills[carriers[0]]

        def widened(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                if leaf.dtype not in self.carried:
                    return leaf
                return (leaf if not self.entering or self._is_inside(leaf) else self._entered(leaf)).to(wide)
            if isinstance(leaf, torch.dtype):
                return wide if leaf in self.carried else leaf
            return fills.get(leaf, leaf) if isinstance(leaf, float) else leaf

        return widened

    def _entered(self, x: Tensor) -> Tensor:
        """Rounds a tensor from outside to its format."""
        if x.dtype in NARROW:
            return x
        if x.dtype is torch.float32 and self._spares(ENTERING):
            return x
        rounded = nearest(x, self.carried[x.dtype])
        for value, fill in self._fills[x.dtype].items():
            rounded = torch.where(x == value, fill, rounded)
        return rounded

    def _result_dtypes(self, func: Any, args: Any, kwargs: Any, leaves: list[Any]) -> list[torch.dtype | None] | None:
        """The dtypes that torch gives the results, found by running the op once unchanged. None if that fails: no
        kernel for this type, or none for statistics that stay wide. Results then have the dtype of the inputs.
        """
        key = (func, *[(leaf.dtype, leaf.dim() == 0) if isinstance(leaf, Tensor) else _kind(leaf) for leaf in leaves])
        if func.overloadpacket in RUN_ONCE:
            return None
        if key not in self._dtypes:
            silent = WRITES_SILENTLY.get(func.overloadpacket, ())
            args = [arg.clone() if i in silent and arg is not None else arg for i, arg in enumerate(args)]
            try:
                self._dtypes[key] = [_dtype(result) for result in tree_flatten(func(*args, **kwargs))[0]]
            except RuntimeError:
                self._dtypes[key] = None
        return self._dtypes[key]

    def _rounded(self, packet: Any, result: Tensor, dtype: torch.dtype | None) -> Tensor:
        """A result in its outside dtype, rounded to the format that this dtype carries."""
        if not result.is_floating_point() or result.layout != torch.strided:
            return result
        if dtype not in self.carried:
            return result.to(dtype)
        if dtype is torch.float32 and self._spares(packet.__name__):
            return result.to(dtype)
        format = self.carried[dtype]
        rounded = self.round(result, format)
        if format.exponent < 8 and packet not in UNDEFINED_ROWS:
            self._count(packet, result, rounded)
        return rounded.to(dtype)

    def _adds_up_in(self, packet: Any, dtypes: list[torch.dtype | None] | None, carriers: list[Any]) -> Format | None:
        """The format of an op's last result if it is low-precision, in which CPUs accumulate."""
        format = self.carried.get((dtypes[-1] if dtypes else None) or carriers[0])
        narrow = format is not None and format.mantissa < 23
        return format if narrow and not self._spares(packet.__name__) else None

    def _spares(self, op: str) -> bool:
        """Whether an op leaves its results unrounded."""
        return self.rounds is not None and not self.rounds((*self.where(), op))

    def _operands_rounded(self, packet: Any, args: Any) -> Any:
        format = self.carried[torch.float32]
        return [self.round(arg, format) if i in OPERANDS[packet] else arg for i, arg in enumerate(args)]

    def _write(self, packet: Any, old: Tensor, new: Tensor) -> None:
        """Copies a mutated argument's new value back into the original tensor."""
        if old.dtype in self.carried:
            new = self._rounded(packet, new, old.dtype)
        if old is not new:
            if old.shape != new.shape:
                old.resize_(new.shape)
            old.copy_(new)
        self._made_inside(old)

    def _count(self, packet: Any, exact: Tensor, rounded: Tensor) -> None:
        overflow = (rounded - exact).isinf().sum()  # ∞ − ∞ is NaN
        underflow = exact.count_nonzero() - rounded.count_nonzero()
        place = (*self.where(), packet.__name__)
        before = self._counts.get(place)
        self._counts[place] = [overflow, underflow] if before is None else [before[0] + overflow, before[1] + underflow]

    def _on_grid(self, packet: Any, args: Any) -> Any:
        """The operands of a product in their own format, each scaled so that its largest entry fits."""
        positions = OPERANDS.get(packet, ())
        return [self._quantised(arg) if i in positions else arg for i, arg in enumerate(args)]

    def _quantised(self, x: Tensor) -> Tensor:
        assert self.operands is not None
        if self.operands.exponent >= 8 or not x.numel():
            return self.round(x, self.operands)
        largest = x.abs().amax()
        scale = (self.operands.largest / largest).clamp(max=torch.finfo(torch.float32).max)
        scale = torch.where(largest.isfinite(), scale, 1.0)
        return self.round(x * scale, self.operands) / scale

    def _on_tf32_grid(self, packet: Any, args: Any) -> Any:
        """Rounds the operands of fp32 products under tf32, which rounds nothing else."""
        if self.operands and self.operands.rest == "fp32" and packet in OPERANDS and args[0].dtype is torch.float32:
            return self._on_grid(packet, args)
        return args


def _seen(format: Format) -> torch.dtype:
    """The dtype that code sees for the format: its own, or one with the same range."""
    if format.dtype in NARROW:
        return format.dtype
    return torch.bfloat16 if format.exponent >= 8 else torch.float16


def _fills(dtype: torch.dtype, format: Format) -> dict[float, float]:
    """Maps fills with the most negative number of a dtype, as masks use them, to that of the format."""
    tops = {torch.finfo(dtype).max, torch.finfo(_seen(format)).max if dtype is torch.float32 else 0.0}
    return {sign * top: sign * format.largest for top in tops if top > format.largest for sign in (1, -1)}


def _dtype(leaf: Any) -> torch.dtype | None:
    """The dtype of a tensor, or a dtype given as an argument."""
    return leaf.dtype if isinstance(leaf, Tensor) else leaf if isinstance(leaf, torch.dtype) else None


def _kind(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (torch.dtype, bool)) else type(leaf)


def _leaves(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of an aten op, with lists flattened."""
    leaves = []
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, (list, tuple)):
            leaves += arg
        else:
            leaves.append(arg)
    return leaves


def _mapped(f: Callable[[Any], Any], args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    def through(arg: Any) -> Any:
        return [f(member) for member in arg] if isinstance(arg, (list, tuple)) else f(arg)

    return [through(arg) for arg in args], {name: through(arg) for name, arg in kwargs.items()}


@functools.cache
def _mutated(func: Any) -> list[tuple[int, str]]:
    """The arguments that the schema marks as mutated, by position and name."""
    arguments = enumerate(func._schema.arguments)
    return [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that the op mutates, including those in lists."""
    values = [args[i] if i < len(args) else kwargs.get(name) for i, name in _mutated(func)]
    return [leaf for leaf in _leaves(values, {}) if isinstance(leaf, Tensor)]


class Islands(TorchFunctionMode):
    """Shows code inside the dtypes that its values stand for: `narrow` if an fp32 tensor carries it, and fp32 for an
    explicit fp32 island, which runs in fp64 tensors. Casts, casts back, `torch.finfo(x.dtype)` and branches on the
    dtype then behave as in a module of that dtype. Casts to a dtype in `alike` count as casts to `narrow`.
    """

    CASTS = {"float": torch.float32, "bfloat16": torch.bfloat16, "half": torch.float16}  # noqa: RUF012

    def __init__(self, narrow: torch.dtype, alike: Iterable[torch.dtype] = ()):
        super().__init__()
        self.seen = {torch.float32: narrow, torch.float64: torch.float32}
        self.meant = {**dict.fromkeys((narrow, *alike), torch.float32), torch.float32: torch.float64}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, args, name = kwargs or {}, list(args), getattr(func, "__name__", "")
        if func is torch.promote_types or func is torch.can_cast:
            return func(*args, **kwargs)
        if func in BACKWARD:
            return backward(self, func, args, kwargs)
        if name in self.CASTS and isinstance(args[0], Tensor):
            func, args = Tensor.to, [args[0], self.CASTS[name]]
        # A tensor cast to fp32, or created as fp32, starts an island.
        args = [self.meant.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in args]
        kwargs = {key: self.meant.get(arg, arg) if isinstance(arg, torch.dtype) else arg for key, arg in kwargs.items()}
        out = func(*args, **kwargs)  # pyright: ignore
        # Checkpointing compares the dtypes of saved tensors, sometimes from within an op.
        if not isinstance(out, torch.dtype) or sys._getframe(1).f_globals.get("__name__") == "torch.utils.checkpoint":
            return out
        return self.seen.get(out, out)


def rounding(
    format: str | tuple[int, int] | Format,
    policy: CastPolicy = "cast",
    mode: RoundingMode = "nearest",
    seed: int = 0,
    *,
    seen: torch.dtype | None = None,
    **watching: Any,
) -> Rounding:
    """A mode in which fp32 tensors behave like tensors of `format`: `with rounding("bf16"): y = module(x)`.

    policy  "cast": everything is in the format, as after `module.to(dtype)`, except explicit fp32 islands.
            "autocast": only products and the other ops that torch's autocast lists; tensors are fp32.
    mode    "nearest" (ties to even), or "stochastic": unbiased, with its own generator keyed by `seed`.
    seen    the dtype that code inside sees, if not the format's own or one with the same range

    The fp32 format needs fp64 tensors. fp8 formats and tf32 apply only to the operands of products.
    """
    format = format_named(format)
    if policy not in ("cast", "autocast") or mode not in ("nearest", "stochastic"):
        raise ValueError(
            f"policy {policy!r}, mode {mode!r}: policy must be cast or autocast, mode nearest or stochastic"
        )
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
    islands = Islands(seen or _seen(rest), NARROW if watching.get("rounds") else ())
    return Rounding(carried, within=(islands,), entering=True, **options)


def autocasts(format: Format) -> list[AbstractContextManager[Any]]:
    """torch's own autocast to the format, on every device."""
    if format.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"autocast supports bf16 and fp16, not {format.name}; use policy='cast'")
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return [torch.autocast(device, dtype=format.dtype, cache_enabled=False) for device in devices]
