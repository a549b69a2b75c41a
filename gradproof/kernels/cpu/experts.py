"""Experts: applies each expert's chain to its own rows, in one call each way. See ops/experts.py."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready, rows_ready, take
from gradproof.kernels.workspace import Workspace
from gradproof.ops import experts as reference
from gradproof.ops.dispatch import DispatchPlan
from gradproof.ops.experts import Chain

APART = 2**24  # floats that gradients of one expert in several threads may take; above it, threads share every product


class Saved(NamedTuple):
    kept: Tensor  # h_NH of one layer after the other, then mean and rstd of each row, likewise


class _Shape(NamedTuple):
    numbers: Tensor  # the chain as the kernels read it
    kept: int  # floats a row

    def scratch(self, rows: int, experts: int, threads: int) -> tuple[int]:
        """Floats that the kernels work in."""
        return (library().experts_scratch(self.numbers.data_ptr(), rows, experts, threads),)


def forward(
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: DispatchPlan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Any]:
    """y_NO. What is returned lives in the workspace, until its next forward. Narrow formats run the reference."""
    if narrow_EP is not None:
        return reference.forward(x_NI, theta_EP, plan, chain, narrow_EP)
    N, E, threads = plan.slot_N.numel(), plan.offset_F.numel() - 1, torch.get_num_threads()
    x_NI, theta_EP = ready(x_NI, (N, chain.widths[0])), rows_ready(theta_EP, (E, chain.length))
    shape = _shape(chain, threads)
    kept = take(workspace, "experts.kept", (N * shape.kept,), x_NI)
    scratch = take(workspace, "experts.scratch", shape.scratch(N, E, threads), x_NI)
    y_NO = take(workspace, "experts.y", (N, chain.widths[-1]), x_NI)
    library().experts_forward(
        shape.numbers.data_ptr(),
        x_NI.data_ptr(),
        theta_EP.data_ptr(),
        theta_EP.stride(0),
        plan.offset_F.data_ptr(),
        E,
        kept.data_ptr(),
        scratch.data_ptr(),
        y_NO.data_ptr(),
        threads,
    )
    return y_NO, Saved(kept)


def backward(
    dy_NO: Tensor,
    saved: Any,
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: DispatchPlan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    out_EP: Tensor | None = None,
    accumulate: bool = False,
    want_dx: bool = True,
    workspace: Workspace | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Returns dx_NI, dtheta_EP; the latter is written to `out_EP` where given, or added to it. Its padding is left as
    it is."""
    if narrow_EP is not None:
        more = (narrow_EP, out_EP, accumulate, want_dx)
        return reference.backward(dy_NO, saved, x_NI, theta_EP, plan, chain, *more)
    N, E, threads = plan.slot_N.numel(), plan.offset_F.numel() - 1, torch.get_num_threads()
    x_NI, dy_NO = ready(x_NI, (N, chain.widths[0])), ready(dy_NO, (N, chain.widths[-1]))
    theta_EP = rows_ready(theta_EP, (E, chain.length))
    dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else rows_ready(out_EP, (E, chain.length))
    shape = _shape(chain, threads)
    scratch = take(workspace, "experts.scratch", shape.scratch(N, E, threads), x_NI)
    dx_NI = take(workspace, "experts.dx", (N, chain.widths[0]), x_NI) if want_dx else None
    if workspace is not None:
        start = 0
        for i, width in enumerate(chain.widths[1:-1]):
            workspace.show("h", i, saved.kept[start : start + N * width].view(N, width))
            start += N * width
    library().experts_backward(
        shape.numbers.data_ptr(),
        x_NI.data_ptr(),
        theta_EP.data_ptr(),
        theta_EP.stride(0),
        plan.offset_F.data_ptr(),
        E,
        saved.kept.data_ptr(),
        scratch.data_ptr(),
        dy_NO.data_ptr(),
        dtheta_EP.data_ptr(),
        dtheta_EP.stride(0),
        accumulate,
        None if dx_NI is None else dx_NI.data_ptr(),
        threads,
    )
    return dx_NI, dtheta_EP


def numbers_of(chain: Chain, threads: int) -> list[int]:
    """The chain as the kernels read it."""
    offsets, layers = chain.offsets, range(chain.layers)
    numbers = [chain.layers, chain.length, threads * chain.length > APART, *chain.widths, *chain.active]
    numbers += [offsets[f"linear.{i}.weight"] for i in range(chain.layers + 1)]
    numbers += [offsets[f"linear.{i}.bias"] for i in range(chain.layers + 1)]
    return numbers + [offsets[f"norm.{i}.{name}"] for name in ("weight", "bias") for i in layers]


@lru_cache(maxsize=64)
def _shape(chain: Chain, threads: int) -> _Shape:
    tensor = torch.tensor(numbers_of(chain, threads), dtype=torch.int64)
    kept = sum(chain.widths[1:-1]) + 2 * chain.layers
    return _Shape(tensor, kept)
