"""A dispatch mode that records the discrete decisions of a forward, and how coarse its numbers become.

Differences across a kink or a top-k boundary say nothing about the derivative, so two probes are compared only when
their `signature` is the same: a hash over the sequence of aten ops, every integer or boolean result computed from
floating values (comparisons, sort and top-k indices, arg-max), and the side of the kink that piecewise ops were on.

With `promote`, casts, factories and stray tensors of the dtypes that it names become wider, and grouped products,
which have no float64 kernel, are decomposed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten

Promotion = Mapping[torch.dtype, torch.dtype]
FLOAT32: Promotion = {torch.float32: torch.float64, torch.complex64: torch.complex128}
EVERY_FLOAT: Promotion = {**FLOAT32, torch.float16: torch.float64, torch.bfloat16: torch.float64}
AS_IT_IS: Promotion = {}

# Piecewise ops that return no indices, and the pattern that tells on which piece each element is.
PIECES: dict[Any, Callable[..., Tensor | None]] = {
    aten.relu: lambda x, *_: x > 0,
    aten.relu_: lambda x, *_: x > 0,
    aten.leaky_relu: lambda x, *_: x > 0,
    aten.leaky_relu_: lambda x, *_: x > 0,
    aten.rrelu_with_noise: lambda x, *_: x > 0,
    aten._prelu_kernel: lambda x, *_: x > 0,
    aten.elu: lambda x, *_: x > 0,
    aten.elu_: lambda x, *_: x > 0,
    aten.celu: lambda x, *_: x > 0,
    aten.celu_: lambda x, *_: x > 0,
    aten.abs: lambda x, *_: x > 0,
    aten.abs_: lambda x, *_: x > 0,
    aten.sign: lambda x, *_: x > 0,
    aten.sign_: lambda x, *_: x > 0,
    aten.sgn: lambda x, *_: x > 0,
    aten.angle: lambda x, *_: x < 0,
    aten.copysign: lambda x, y, *_: y > 0 if isinstance(y, Tensor) else None,
    aten.huber_loss: lambda x, y, _=1, delta=1.0: (x - y).abs() > delta,
    aten.smooth_l1_loss: lambda x, y, _=1, beta=1.0: (x - y).abs() > beta,
    aten.linalg_vector_norm: lambda x, *_: x > 0,
    aten.threshold: lambda x, threshold, *_: x > threshold,
    aten.threshold_: lambda x, threshold, *_: x > threshold,
    aten.hardshrink: lambda x, width=0.5, *_: x.abs() > width,
    aten.softshrink: lambda x, width=0.5, *_: x.abs() > width,
    aten.hardtanh: lambda x, low=-1, high=1, *_: (x > low).int() + (x > high).int(),
    aten.hardtanh_: lambda x, low=-1, high=1, *_: (x > low).int() + (x > high).int(),
    aten.hardsigmoid: lambda x, *_: (x > -3).int() + (x > 3).int(),
    aten.hardsigmoid_: lambda x, *_: (x > -3).int() + (x > 3).int(),
    aten.hardswish: lambda x, *_: (x > -3).int() + (x > 3).int(),
    aten.hardswish_: lambda x, *_: (x > -3).int() + (x > 3).int(),
    aten.clamp: lambda x, low=None, high=None, *_: _clamped(x, low, high),
    aten.clamp_: lambda x, low=None, high=None, *_: _clamped(x, low, high),
    aten.clamp_min: lambda x, low, *_: x > low,
    aten.clamp_min_: lambda x, low, *_: x > low,
    aten.clamp_max: lambda x, high, *_: x > high,
    aten.clamp_max_: lambda x, high, *_: x > high,
    aten.maximum: lambda x, y, *_: x > y,
    aten.minimum: lambda x, y, *_: x > y,
    aten.fmax: lambda x, y, *_: x > y,
    aten.fmin: lambda x, y, *_: x > y,
    aten.amax: lambda x, dim=(), *_: x == x.amax(dim, keepdim=True),
    aten.amin: lambda x, dim=(), *_: x == x.amin(dim, keepdim=True),
    aten.max: lambda x, *rest: _extreme(x, x.max, *rest),
    aten.min: lambda x, *rest: _extreme(x, x.min, *rest),
    aten.floor: lambda x, *_: x.floor(),
    aten.floor_: lambda x, *_: x.floor(),
    aten.ceil: lambda x, *_: x.ceil(),
    aten.ceil_: lambda x, *_: x.ceil(),
    aten.trunc: lambda x, *_: x.trunc(),
    aten.trunc_: lambda x, *_: x.trunc(),
    aten.frac: lambda x, *_: x.trunc(),
    aten.frac_: lambda x, *_: x.trunc(),
    aten.remainder: lambda x, y, *_: torch.floor(x / y),
    aten.remainder_: lambda x, y, *_: torch.floor(x / y),
    aten.fmod: lambda x, y, *_: torch.trunc(x / y),
    aten.fmod_: lambda x, y, *_: torch.trunc(x / y),
}

# Ops whose result tells the piece: (result, arguments, keywords) to the pattern.
STEPS: dict[Any, Callable[[Any, Any, Any], Tensor | None]] = {
    aten.round: lambda y, *_: y,
    aten.round_: lambda y, *_: y,
    aten.floor_divide: lambda y, *_: y,
    aten.floor_divide_: lambda y, *_: y,
    aten.div: lambda y, _, options: y if options.get("rounding_mode") else None,
    aten.div_: lambda y, _, options: y if options.get("rounding_mode") else None,
    aten._linalg_slogdet: lambda y, *_: y[0],
    aten.index_reduce: lambda y, args, _: _winners(y.index_select, *args),
    aten.scatter_reduce: lambda y, args, _: _winners(y.gather, *args),
}


def _winners(
    read: Callable[[int, Tensor], Tensor], _: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *__
):
    """Which entries of `source`, as far as it is read, are the extreme that was kept."""
    if reduce not in ("amin", "amax"):
        return None
    kept = read(dim, index)
    return kept == source[tuple(map(slice, kept.shape))]


def _clamped(x: Tensor, low: Any, high: Any) -> Tensor:
    above_low = x > low if low is not None else torch.zeros_like(x, dtype=torch.bool)
    return above_low.int() + (x > high).int() if high is not None else above_low


def _extreme(x: Tensor, extreme: Callable[[], Tensor], other: Any = None, *_: Any) -> Tensor | None:
    """Which side of another tensor, or which entry of all; along an axis the indices say it."""
    if other is None:
        return x == extreme()
    return x > other if isinstance(other, Tensor) else None


class Recorder(TorchDispatchMode):
    """Watches what runs inside. `signature` is comparable between runs of one process; `coarsest` is the largest
    machine epsilon that a floating value was rounded to."""

    def __init__(self, promote: Promotion = AS_IT_IS):
        super().__init__()
        self.promote = promote
        self.signature = 0
        self.coarsest = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.promote:
            args, kwargs = _promoted(func, args, kwargs, self.promote)
        packet = func.overloadpacket
        # The pattern is taken before an in-place op overwrites its argument.
        piece = PIECES.get(packet) if args and _floating(args[0]) else None
        pattern = piece(*args) if piece else None
        if self.promote and packet is aten._grouped_mm and args[0].dtype == torch.float64:
            out = grouped_mm(*args, **kwargs)
        else:
            out = func(*args, **kwargs)
        if packet in STEPS and args and _floating(args[0]):
            pattern = STEPS[packet](out, args, kwargs)
        self._note(func, args, out, pattern)
        return out

    def _note(self, func: Any, args: Any, out: Any, pattern: Tensor | None) -> None:
        marks: list[Any] = [func]
        if pattern is not None:
            marks.append(_bits(pattern))
        if any(tensor.dtype.is_floating_point for tensor in _tensors(args)):
            for result in _tensors(out if isinstance(out, (tuple, list)) else (out,)):
                if not (result.dtype.is_floating_point or result.dtype.is_complex):
                    marks.append(_bits(result))
                elif result.numel():
                    self.coarsest = max(self.coarsest, _epsilon(result.dtype))
        self.signature = hash((self.signature, *marks))


@functools.cache
def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating_point


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among an op's arguments or results, lists of tensors included."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _bits(tensor: Tensor) -> bytes:
    tensor = tensor.detach()
    if tensor.is_meta or tensor.layout != torch.strided:
        return b""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return (tensor.double() if tensor.dtype.is_floating_point else tensor).contiguous().cpu().numpy().tobytes()


def _promoted(func: Any, args: Any, kwargs: dict[str, Any], wider: Promotion) -> tuple[Any, dict[str, Any]]:
    if kwargs.get("dtype") in wider:
        kwargs = {**kwargs, "dtype": wider[kwargs["dtype"]]}

    def widen(value: Any) -> Any:
        return value.to(wider[value.dtype]) if isinstance(value, Tensor) and value.dtype in wider else value

    # A view or a write must keep its own storage, so only ops that make new tensors see wider arguments.
    if not (func._schema.is_mutable or func.is_view):
        args, kwargs = tree_map(widen, (args, kwargs))
    return args, kwargs


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """`torch._grouped_mm` as one product a group; rows after the last group, unwritten by the kernel, are 0."""
    if offs is None:
        out = a @ b
    else:
        ends = offs.tolist()
        groups = list(zip([0, *ends[:-1]], ends, strict=True))
        if a.dim() == 2 and b.dim() == 2:  # groups along the summed axis
            out = torch.stack([a[:, i:j] @ b[i:j] for i, j in groups])
        elif a.dim() == 2:  # groups along the rows of a
            out = a.new_zeros(a.shape[0], b.shape[-1])
            for g, (i, j) in enumerate(groups):
                out[i:j] = a[i:j] @ b[g]
        else:  # groups along the columns of b
            out = a.new_zeros(a.shape[-2], b.shape[-1])
            for g, (i, j) in enumerate(groups):
                out[:, i:j] = a[g] @ b[:, i:j]
    return out if bias is None else out + bias
