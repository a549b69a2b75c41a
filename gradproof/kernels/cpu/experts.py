"""Experts: each one's chain on its own rows, in one call each way. See ops/experts.py."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.memory import Workspace, ready, take
from gradproof.ops import experts as reference
from gradproof.ops.dispatch import Plan
from gradproof.ops.experts import Chain


APART = 2**24  # floats that gradients of one expert in several threads may take; above it, threads share every product


class Saved(NamedTuple):
    h: Tensor  # h_NH of one layer after the other
    stats: Tensor  # mean and rstd of each row of each layer


class _Shape(NamedTuple):
    numbers: Tensor  # the chain as the kernels read it
    scratch: int  # how many floats they work in


def forward(
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: Plan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Any]:
    """y_NO. What is returned lives in the workspace, until its next forward. Narrow formats run the reference."""
    if narrow_EP is not None:
        return reference.forward(x_NI, theta_EP, plan, chain, narrow_EP)
    x_NI, theta_EP = ready(x_NI), _rows_ready(theta_EP)
    N, threads = x_NI.shape[0], torch.get_num_threads()
    shape = _shape(chain, threads)
    h = take(workspace, "experts.h", (N * sum(chain.widths[1:-1]),), x_NI)
    stats = take(workspace, "experts.stats", (chain.layers, N, 2), x_NI)
    scratch = take(workspace, "experts.scratch", (shape.scratch,), x_NI)
    y_NO = take(workspace, "experts.y", (N, chain.widths[-1]), x_NI)
    library().experts_forward(
        shape.numbers.data_ptr(),
        x_NI.data_ptr(),
        theta_EP.data_ptr(),
        theta_EP.stride(0),
        plan.offset_F.data_ptr(),
        theta_EP.shape[0],
        h.data_ptr(),
        stats.data_ptr(),
        scratch.data_ptr(),
        y_NO.data_ptr(),
        threads,
    )
    return y_NO, Saved(h, stats)


def backward(
    dy_NO: Tensor,
    saved: Any,
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: Plan,
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
    dy_NO, x_NI, theta_EP = ready(dy_NO), ready(x_NI), _rows_ready(theta_EP)
    dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else out_EP
    threads = torch.get_num_threads()
    shape = _shape(chain, threads)
    scratch = take(workspace, "experts.scratch", (shape.scratch,), x_NI)
    dx_NI = take(workspace, "experts.dx", (x_NI.shape[0], x_NI.shape[1]), x_NI) if want_dx else None
    library().experts_backward(
        shape.numbers.data_ptr(),
        x_NI.data_ptr(),
        theta_EP.data_ptr(),
        theta_EP.stride(0),
        plan.offset_F.data_ptr(),
        theta_EP.shape[0],
        saved.h.data_ptr(),
        saved.stats.data_ptr(),
        scratch.data_ptr(),
        dy_NO.data_ptr(),
        dtheta_EP.data_ptr(),
        dtheta_EP.stride(0),
        accumulate,
        None if dx_NI is None else dx_NI.data_ptr(),
        threads,
    )
    return dx_NI, dtheta_EP


def _rows_ready(theta_EP: Tensor) -> Tensor:
    """Experts may be at any distance."""
    return theta_EP if theta_EP.dtype is torch.float32 and theta_EP.stride(1) == 1 else ready(theta_EP)


@lru_cache(maxsize=64)
def _shape(chain: Chain, threads: int) -> _Shape:
    offsets, layers = chain.offsets, range(chain.layers)
    numbers = [chain.layers, chain.length, threads * chain.length > APART, *chain.widths, *chain.active]
    numbers += [offsets[f"linear.{i}.weight"] for i in range(chain.layers + 1)]
    numbers += [offsets[f"linear.{i}.bias"] for i in range(chain.layers + 1)]
    numbers += [offsets[f"norm.{i}.weight"] for i in layers] + [offsets[f"norm.{i}.bias"] for i in layers]
    tensor = torch.tensor(numbers, dtype=torch.int64)
    return _Shape(tensor, library().experts_scratch(tensor.data_ptr(), threads))
