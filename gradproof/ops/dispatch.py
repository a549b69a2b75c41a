"""Dispatch: gathers the rows of each expert into a contiguous slice.

    rows_n = x[token_n],  n over the T·K choices sorted by expert (stable);   dx = Σ over the K rows of each token

There are only routed rows, so an expert without rows has an empty slice.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Contract, Example
from gradproof.ops import route


class DispatchPlan(NamedTuple):
    """Where each routed row goes. Slot t·K + k is the k-th choice of token t."""

    slot_N: Tensor  # the slot at row n
    row_TK: Tensor  # the row of slot (t, k): the inverse of slot_N
    index_TK: Tensor  # the expert of slot (t, k)
    offset_F: Tensor  # F = E + 1: the rows of expert e are offset[e] : offset[e + 1]

    def bounds(self) -> list[int]:
        """The offsets on the host. This waits for the device, unless there is only one expert."""
        return self.offset_F.tolist() if self.offset_F.numel() > 2 else [0, self.slot_N.numel()]


def plan(index_TK: Tensor, experts: int) -> DispatchPlan:
    """Sorts the choices by expert."""
    slot_N = torch.sort(index_TK.flatten(), stable=True).indices
    row_TK = torch.empty_like(slot_N).scatter_(0, slot_N, torch.arange(slot_N.numel(), device=slot_N.device))
    offset_F = torch.nn.functional.pad(route.load(index_TK, experts).cumsum(0), (1, 0))
    return DispatchPlan(slot_N, row_TK.view_as(index_TK), index_TK, offset_F)


def all_rows(rows: int, device: torch.device | str = "cpu") -> DispatchPlan:
    """A plan for one expert with all rows, in order."""
    slot_N = torch.arange(rows, device=device)
    return DispatchPlan(
        slot_N, slot_N[:, None], torch.zeros_like(slot_N)[:, None], torch.arange(2, device=device) * rows
    )


def forward(x_TI: Tensor, plan: DispatchPlan) -> tuple[Tensor, None]:
    """rows_NI, sorted by expert."""
    return x_TI[plan.slot_N // plan.row_TK.shape[1]], None


def backward(drows_NI: Tensor, saved: None, plan: DispatchPlan) -> Tensor:
    """Returns dx_TI, summed over the K choices in order: no atomics, so the bits are always the same."""
    return drows_NI[plan.row_TK].sum(1)


def draw_plan(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    """A random choice of K of E experts for each row."""
    score_TE = torch.rand(sizes["T"], sizes["E"], generator=generator)
    return dict(plan=plan(score_TE.argsort(1)[:, : sizes["K"]].contiguous(), sizes["E"]))


def _experts(example: Example) -> int:
    return example.arguments["plan"].offset_F.numel() - 1


CONTRACT = Contract(
    shapes="x[T,I] plan -> rows[N,I]",
    sizes=dict(T=(1, 2, 7, 33), I=(1, 3, 8), E=(4, 5), K=(1, 2, 4)),
    grads=("x",),
    draw=draw_plan,
    same=lambda module, example: module.plan(example.arguments["plan"].index_TK, _experts(example)),
)
