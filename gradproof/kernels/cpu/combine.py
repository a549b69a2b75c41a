"""Combine: sums the expert rows of each token, weighted by their gates. See ops/combine.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready, take
from gradproof.kernels.workspace import Workspace
from gradproof.ops.dispatch import DispatchPlan


def forward(
    rows_NO: Tensor, gates_TE: Tensor, plan: DispatchPlan, workspace: Workspace | None = None
) -> tuple[Tensor, None]:
    """y_TO, summed over the K choices in their order."""
    rows_NO, gates_TE = ready(rows_NO), ready(gates_TE)
    (T, E), K, O = gates_TE.shape, plan.row_TK.shape[1], rows_NO.shape[1]
    y_TO = take(workspace, "combine.y", (T, O), rows_NO)
    pointers = (rows_NO.data_ptr(), gates_TE.data_ptr(), plan.index_TK.data_ptr(), plan.row_TK.data_ptr())
    library().combine_forward(*pointers, T, E, K, O, y_TO.data_ptr(), torch.get_num_threads())
    return y_TO, None


def backward(
    dy_TO: Tensor,
    saved: None,
    rows_NO: Tensor,
    gates_TE: Tensor,
    plan: DispatchPlan,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns drows_NO, dgates_TE."""
    dy_TO, rows_NO, gates_TE = ready(dy_TO), ready(rows_NO), ready(gates_TE)
    (T, E), K, (N, O) = gates_TE.shape, plan.row_TK.shape[1], rows_NO.shape
    drows_NO = take(workspace, "combine.drows", (N, O), rows_NO)
    dgates_TE = take(workspace, "combine.dgates", (T, E), rows_NO)
    library().combine_backward(
        dy_TO.data_ptr(),
        rows_NO.data_ptr(),
        gates_TE.data_ptr(),
        plan.index_TK.data_ptr(),
        plan.row_TK.data_ptr(),
        T,
        E,
        K,
        O,
        drows_NO.data_ptr(),
        dgates_TE.data_ptr(),
        torch.get_num_threads(),
    )
    return drows_NO, dgates_TE
