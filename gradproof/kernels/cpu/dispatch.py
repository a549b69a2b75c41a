"""Dispatch: gathers the rows of each expert. See ops/dispatch.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready, take
from gradproof.kernels.workspace import Workspace
from gradproof.ops.dispatch import DispatchPlan


def plan(index_TK: Tensor, experts: int) -> DispatchPlan:
    """Sorts the choices by expert, counting."""
    index_TK = index_TK.contiguous()
    N = index_TK.numel()
    slot_N, row_TK, offset_F = index_TK.new_empty(N), torch.empty_like(index_TK), index_TK.new_empty(experts + 1)
    pointers = (slot_N.data_ptr(), row_TK.data_ptr(), offset_F.data_ptr())
    wrong = library().dispatch_plan(index_TK.data_ptr(), N, experts, *pointers)
    if wrong >= 0:
        raise ValueError(f"there is no expert {int(index_TK.view(-1)[wrong])}; they are 0..{experts - 1}")
    return DispatchPlan(slot_N, row_TK, index_TK, offset_F)


def forward(x_TI: Tensor, plan: DispatchPlan, workspace: Workspace | None = None) -> tuple[Tensor, None]:
    """rows_NI, sorted by expert."""
    x_TI = ready(x_TI)
    N, K, I = plan.slot_N.numel(), plan.row_TK.shape[1], x_TI.shape[1]
    rows_NI = take(workspace, "dispatch.rows", (N, I), x_TI)
    pointers = (x_TI.data_ptr(), plan.slot_N.data_ptr())
    library().dispatch_forward(*pointers, N, K, I, rows_NI.data_ptr(), torch.get_num_threads())
    return rows_NI, None


def backward(drows_NI: Tensor, saved: None, plan: DispatchPlan, workspace: Workspace | None = None) -> Tensor:
    """Returns dx_TI, summed over the K choices in their order."""
    drows_NI = ready(drows_NI)
    (T, K), I = plan.row_TK.shape, drows_NI.shape[1]
    dx_TI = take(workspace, "dispatch.dx", (T, I), drows_NI)
    pointers = (drows_NI.data_ptr(), plan.row_TK.contiguous().data_ptr())
    library().dispatch_backward(*pointers, T, K, I, dx_TI.data_ptr(), torch.get_num_threads())
    return dx_TI
