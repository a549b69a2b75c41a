"""The experts' chains: a loop of cuBLAS products over contiguous slices, bias + LayerNorm + GELU in one kernel a layer.

The forward keeps h, and mean and rstd of its rows. The backward of layer i needs h and the layer's output x:

    dx = dh_i W_i;   dh_{i−1}, x_i = norm_gelu backward of (dx, h_{i−1});   dW_i = dh_iᵀ x_i

Of a few narrow layers the forward keeps x too, which saves a pass over memory, and dh is written over h. Otherwise the
backward makes x again, in the room of h, and writes dh over dx. Besides the tape, which it uses up, it holds one array
as wide as a layer, or two.

Each expert's slice is rounded up to a multiple of STEP rows (R rows in all): cuBLAS chooses its kernel anew for every
shape that it has not seen, which takes longer than a product of 2,000 rows, and routing changes at every step. The rows
that fill up are zero going in and have a zero gradient coming back, so they add nothing to any sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.cublas.product import algorithm, alignment, product, room_like
from gradproof.kernels.triton import check_rows, norm_gelu
from gradproof.kernels.workspace import Workspace
from gradproof.ops import NARROW
from gradproof.ops.dispatch import DispatchPlan
from gradproof.ops.experts import Chain

STEP = 64
KEPT = 16  # layers, up to which their outputs are kept: in a narrow format both take what h alone takes in fp32
WIDTH = 8  # narrow numbers in the 16 bytes that rows are aligned to, or cuBLAS has slow kernels only


class Padded(NamedTuple):
    """Where the rows stand when each expert's slice is rounded up: in R places, some of them behind the last slice."""

    rows: int  # R
    offset_F: Tensor
    place_N: Tensor | None  # of each row; its own where there is one expert
    counts: Tensor | None  # on their way to the host
    arrived: torch.cuda.Event | None

    def slices(self) -> list[tuple[int, int]]:
        """Of each expert. Reading the row counts is the one wait for the device."""
        if self.arrived is None or self.counts is None:
            return [(0, self.rows)]
        self.arrived.synchronize()
        return list(pairwise(self.counts.tolist()))


class Saved(NamedTuple):
    padded: Padded
    slices: list[tuple[int, int]]
    x: list[Tensor]  # what goes into each layer; only the first where outputs are not kept
    h: list[Tensor]
    stats: list[Tensor]


def _padded(plan: DispatchPlan, rows: int) -> Padded:
    """All of it on the device, so that it can be queued before the host knows the counts."""
    F = plan.offset_F.numel()
    if F == 2:
        return Padded(rows, plan.offset_F, None, None, None)
    n_N = torch.arange(rows, device=plan.offset_F.device)
    steps_E = (plan.offset_F.diff() + (STEP - 1)) // STEP
    offset_F = torch.nn.functional.pad(steps_E.cumsum(0) * STEP, (1, 0))
    counts = torch.empty(F, dtype=torch.int64, pin_memory=True).copy_(offset_F, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    expert_N = torch.searchsorted(plan.offset_F[1:], n_N, right=True)
    place_N = n_N + (offset_F - plan.offset_F)[expert_N]
    return Padded(rows + STEP * (F - 1), offset_F, place_N, counts, arrived)


def _filled(x_NI: Tensor, padded: Padded, dtype: torch.dtype) -> Tensor:
    """The rows in their places, zeros between."""
    if padded.place_N is None:
        return x_NI.to(dtype)
    x_RI = x_NI.new_zeros(padded.rows, x_NI.shape[1], dtype=dtype)
    return x_RI.index_copy_(0, padded.place_N, x_NI.to(dtype))


def _taken(y_RO: Tensor, padded: Padded) -> Tensor:
    """The rows without what stands between."""
    return y_RO if padded.place_N is None else y_RO[padded.place_N]


def forward(
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: DispatchPlan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Saved]:
    """y_NO in fp32; h in the format of the products."""
    check_rows(theta_EP, narrow_EP)
    x_NI = x_NI.contiguous()
    take = (workspace or Workspace()).take
    matrices_EP = theta_EP if narrow_EP is None else narrow_EP
    padded = _padded(plan, x_NI.shape[0])
    input_RI = _filled(x_NI, padded, matrices_EP.dtype)
    slices, R, keeps = padded.slices(), padded.rows, _keeps(chain, matrices_EP)
    room = take("room", room_like(matrices_EP), matrices_EP)
    inputs, kept, stats = [input_RI], [], []
    for i, width in enumerate(chain.widths[1:-1]):
        h_RH = take(f"h.{i}", (R, width), matrices_EP)
        for (start, end), w_HI in zip(slices, chain.matrices(matrices_EP, i), strict=True):
            product(input_RI[start:end], w_HI.T, h_RH[start:end], room)
        input_RI = take(f"x.{i if keeps else i % 2}", (R, width), matrices_EP)
        own = chain.vectors(theta_EP, i)
        stats.append(norm_gelu.ragged_forward(h_RH, padded.offset_F, *own, chain.active[i], input_RI))
        kept.append(h_RH)
        if keeps:
            inputs.append(input_RI)
    y_RO = theta_EP.new_empty(R, chain.widths[-1])
    last_EQH, bias_EO = _last(chain, matrices_EP), chain.biases(theta_EP, chain.layers)
    y_RQ = take("y", (R, last_EQH.shape[1]), theta_EP)
    for (start, end), w_QH, b_O in zip(slices, last_EQH, bias_EO, strict=True):
        product(input_RI[start:end], w_QH.T, y_RQ[start:end], room)
        torch.add(y_RQ[start:end, : len(b_O)], b_O, out=y_RO[start:end])
    return _taken(y_RO, padded), Saved(padded, slices, inputs, kept, stats)


def backward(
    dy_NO: Tensor,
    saved: Saved,
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
    """Returns dx_NI, dtheta_EP; uses `saved` up."""
    check_rows(theta_EP, narrow_EP, out_EP)
    dy_NO, x_NI = dy_NO.contiguous(), x_NI.contiguous()
    workspace = workspace or Workspace()
    take = workspace.take
    matrices_EP = theta_EP if narrow_EP is None else narrow_EP
    dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else out_EP
    padded, slices, R, keeps = saved.padded, saved.slices, saved.padded.rows, _keeps(chain, matrices_EP)
    room = take("room", room_like(matrices_EP), matrices_EP)
    dy_RQ = _filled(_aligned(dy_NO, 1), padded, dy_NO.dtype)
    for (start, end), db_O in zip(slices, chain.biases(dtheta_EP, chain.layers), strict=True):
        total_O = dy_RQ[start:end, : len(db_O)].sum(0)
        db_O.add_(total_O) if accumulate else db_O.copy_(total_O)
    dh_RO = dy_RQ.to(matrices_EP.dtype)
    for i in reversed(range(1, chain.layers + 1)):
        dx_RH = take("dx" if keeps else f"x.{i % 2}", (R, chain.widths[i]), matrices_EP)
        weights = chain.matrices(matrices_EP, i) if i < chain.layers else _last(chain, matrices_EP)
        for (start, end), w_OH in zip(slices, weights, strict=True):
            product(dh_RO[start:end], w_OH, dx_RH[start:end], room)
        h_RH, stat_R2, active = saved.h[i - 1], saved.stats[i - 1], chain.active[i - 1]
        own, grads = chain.vectors(theta_EP, i - 1), chain.vectors(dtheta_EP, i - 1)
        dh_RH, x_RH = (h_RH, saved.x[i]) if keeps else (dx_RH, h_RH)
        made_RH = None if keeps else x_RH
        workspace.show("h", i - 1, h_RH, slices)
        norm_gelu.ragged_backward(
            dx_RH, h_RH, stat_R2, padded.offset_F, *own, active, dh_RH, made_RH, *grads, accumulate
        )
        dw_EOH = chain.matrices(dtheta_EP, i)
        _weight_gradients(dh_RO[:, : chain.widths[i + 1]], x_RH, slices, dw_EOH, room, accumulate)
        dh_RO = dh_RH
        workspace.show("x", i - 1, x_RH, slices)
        workspace.show("dh", i - 1, dh_RH, slices)
    dh_RO = dh_RO[:, : chain.widths[1]]
    _weight_gradients(dh_RO, saved.x[0], slices, chain.matrices(dtheta_EP, 0), room, accumulate)
    if not want_dx:
        return None, dtheta_EP
    dx_RI = torch.empty_like(saved.x[0])
    for (start, end), w_HI in zip(slices, chain.matrices(matrices_EP, 0), strict=True):
        product(dh_RO[start:end], w_HI, dx_RI[start:end], room)
    return _taken(dx_RI, padded).to(theta_EP.dtype), dtheta_EP


def products(
    x_NI: Tensor, theta_EP: Tensor, plan: DispatchPlan, chain: Chain, narrow_EP: Tensor | None = None
) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """A product for each algorithm of cuBLAS that an expert with up to so many rows can meet, with as few rows as meet
    it: its label, its factors and its result. In fp32 torch chooses, by the exact shape."""
    if narrow_EP is None:
        return
    most = 1 << max(0, plan.row_TK.shape[0] - 1).bit_length()
    room, met = narrow_EP.new_empty(room_like(narrow_EP)), set[tuple[object, ...]]()
    spare = narrow_EP.new_empty(most, max(*chain.widths, WIDTH)).normal_()
    layers, dtheta_EP = dict[tuple[object, ...], tuple[Tensor, Tensor, bool]](), torch.zeros_like(theta_EP)
    for i in range(chain.layers + 1):
        last = i == chain.layers
        weights = _last(chain, narrow_EP) if last else chain.matrices(narrow_EP, i)
        for w_OI, dw_OI in zip(weights, chain.matrices(dtheta_EP, i), strict=True):
            layers[w_OI.shape, last, alignment(w_OI), alignment(dw_OI)] = w_OI, dw_OI, last
    for w_OI, dw_OI, last in layers.values():
        (O, I), like = w_OI.shape, theta_EP if last else narrow_EP
        for rows in range(STEP, most + STEP, STEP):
            n = min(rows, most)
            x_nI, dy_nO = (spare.view(-1)[: n * width].view(n, width) for width in (I, O))
            dw = (dy_nO[:, : len(dw_OI)].T, x_nI, dw_OI)
            kinds = {"forward": (x_nI, w_OI.T, like), "input": (dy_nO, w_OI, narrow_EP), "weight": dw}
            for kind, (a, b, to) in kinds.items():
                out = to if kind == "weight" else to.new_empty(a.shape[0], b.shape[1])
                way = (kind, I, O, algorithm(a, b, out))
                if way not in met:
                    met.add(way)
                    product(a, b, out, room)
                    yield f"{kind} {I} × {O}, {n} rows", a, b, out


def _keeps(chain: Chain, matrices_EP: Tensor) -> bool:
    return chain.layers <= KEPT and matrices_EP.dtype in NARROW


def _aligned(x: Tensor, axis: int) -> Tensor:
    """The same with zeros behind, up to a multiple of WIDTH along an axis."""
    after = -x.shape[axis] % WIDTH
    return torch.nn.functional.pad(x, (*(0, 0) * (x.ndim - 1 - axis), 0, after)) if after else x


def _last(chain: Chain, matrices_EP: Tensor) -> Tensor:
    """The last layer's weights [E, Q, H]: its O rows, and zeros."""
    return _aligned(chain.matrices(matrices_EP, chain.layers), 1)


def _weight_gradients(
    dy_RO: Tensor, x_RI: Tensor, slices: list[tuple[int, int]], out_EOI: Tensor, room: Tensor, accumulate: bool
) -> None:
    """dW = dyᵀx of each expert, in fp32: never rounded to the narrow format."""
    for (start, end), dw_OI in zip(slices, out_EOI, strict=True):
        product(dy_RO[start:end].T, x_RI[start:end], dw_OI, room, accumulate)
