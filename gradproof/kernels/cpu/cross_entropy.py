"""Cross-entropy of logits against class indices. See ops/cross_entropy.py."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready
from gradproof.ops import cross_entropy as reference
from gradproof.ops.cross_entropy import count

__all__ = ["backward", "count", "forward"]


def forward(
    z_TC: Tensor,
    target_T: Tensor,
    class_weight_C: Tensor | None = None,
    total: Tensor | float | None = None,
    ignore: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss; `saved` is w_t/W as scale_T. Refuses a target outside 0..C−1 that is not `ignore`."""
    z_TC = ready(z_TC)
    T, C = z_TC.shape
    if T == 0 or target_T.shape != (T,) or target_T.dtype != torch.int64:
        return reference.forward(z_TC, target_T, class_weight_C, total, ignore)  # which says what is wrong
    target_T = target_T.contiguous()
    weight_C = None if class_weight_C is None else ready(class_weight_C, (C,))
    scale_T, loss = z_TC.new_empty(T), z_TC.new_empty(())
    wrong = library().cross_entropy_forward(
        z_TC.data_ptr(),
        target_T.data_ptr(),
        None if weight_C is None else weight_C.data_ptr(),
        total is not None,
        0.0 if total is None else float(total),
        None if ignore is None else ctypes.byref(ctypes.c_int64(ignore)),
        T,
        C,
        scale_T.data_ptr(),
        loss.data_ptr(),
        torch.get_num_threads(),
    )
    if wrong >= 0:
        raise ValueError(f"target[{wrong}] = {int(target_T[wrong])} is out of range: the classes are 0..{C - 1}")
    return loss, scale_T


def backward(dloss: Tensor, saved: Tensor, z_TC: Tensor, target_T: Tensor) -> Tensor:
    """Returns dz_TC."""
    dloss, saved, z_TC = ready(dloss, ()), ready(saved, target_T.shape), ready(z_TC)
    target_T = target_T.contiguous()
    dz_TC = torch.empty_like(z_TC)
    pointers = (dloss.data_ptr(), saved.data_ptr(), z_TC.data_ptr(), target_T.data_ptr())
    library().cross_entropy_backward(*pointers, *z_TC.shape, dz_TC.data_ptr(), torch.get_num_threads())
    return dz_TC
