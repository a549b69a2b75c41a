"""Checks the tensors that the kernels read and write. They are handed over as pointers, so nothing later would notice a
wrong shape."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.workspace import Workspace


def take(workspace: Workspace | None, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A buffer of the workspace, or a new one."""
    return like.new_empty(shape) if workspace is None else workspace.take(name, shape, like)


def ready(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """The tensor as the kernels read it: contiguous float32 on the CPU, of this shape."""
    _check(tensor, shape)
    return tensor.contiguous()


def in_place(tensor: Tensor, shape: tuple[int, ...]) -> int:
    """Where a kernel finds the tensor itself, to read or to write it."""
    _check(tensor, shape)
    if not tensor.is_contiguous():
        raise ValueError("what is written in place must be contiguous; this tensor has gaps")
    return tensor.data_ptr()


def rows_ready(tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    """The tensor itself, for it may be written to: its rows may be at any distance, but without gaps in them."""
    _check(tensor, shape)
    if tensor.stride(1) != 1:
        raise ValueError("the parameters or gradients of an expert are one row; this one has gaps in it")
    return tensor


def _check(tensor: Tensor, shape: tuple[int, ...] | None) -> None:
    if tensor.dtype is not torch.float32 or not tensor.is_cpu:
        raise TypeError(f"the CPU kernels take float32 on the CPU, not {tensor.dtype} on {tensor.device}")
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"a tensor of {list(tensor.shape)} is given where {list(shape)} is expected")
