"""The memory layout of tensors, which copies preserve because kernels read memory.

A transposed view, or a slice of something larger, holds the same numbers as its contiguous copy in other places.
"""

from __future__ import annotations

from torch import Tensor, nn

from gradproof.proof.structure import dense

ROOM = 8  # times the numbers themselves: with larger gaps a copy is made without them


def strides_to_keep(tensor: Tensor) -> tuple[int, ...] | None:
    """The strides that a copy needs; None if it can be contiguous: because the tensor is, because its entries share
    memory, or because the gaps are too large."""
    if type(tensor) not in (Tensor, nn.Parameter) or not dense(tensor) or tensor.is_contiguous():
        return None
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < extent:
            return None
        extent += (size - 1) * stride
    return tensor.stride() if extent <= ROOM * tensor.numel() else None


def laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A differentiable copy with these strides, and zeros in the gaps."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    return tensor.detach().new_zeros(extent).as_strided(tensor.shape, strides).detach().copy_(tensor)


def permuted(tensor: Tensor, *axes: int) -> Tensor:
    """The same numbers, with axes `axes` the slowest to the fastest in memory."""
    back = [axes.index(axis) for axis in range(tensor.dim())]
    return tensor.permute(axes).contiguous().permute(back)
