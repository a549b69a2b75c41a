"""The tensors that the kernels read and write."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Workspace(Protocol):
    """Buffers that a step uses again and again."""

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The buffer of this name and shape, unwritten or as the last user left it."""
        ...


def take(workspace: Workspace | None, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A buffer of the workspace, or a new one."""
    return like.new_empty(shape) if workspace is None else workspace.take(name, shape, like)


def ready(tensor: Tensor) -> Tensor:
    """The tensor as the kernels read it: contiguous float32 on the CPU."""
    if tensor.dtype is not torch.float32 or not tensor.is_cpu:
        raise TypeError(f"the CPU kernels take float32 on the CPU, not {tensor.dtype} on {tensor.device}")
    return tensor.contiguous()
