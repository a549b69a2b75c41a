"""The experts' chains: one grouped product a layer, bias + LayerNorm + GELU in one kernel. See ops/experts.py.

As in `kernels/cublas/experts.py` the forward keeps h and its rows' mean and rstd, and the backward turns dx into dh and
h into the layer's output in place:

    dx = dh_i W_i;   dh_{i−1}, x_i = norm_gelu backward of (dx, h_{i−1});   dW_i = dh_iᵀ x_i
"""


# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gradproof.kernels.triton import check_rows, norm_gelu
from gradproof.kernels.workspace import Workspace
from gradproof.ops.dispatch import DispatchPlan
from gradproof.ops.experts import Chain

WIDTH = 8  # bf16 numbers in the 16 bytes that the products' rows are aligned to
NEAR = tl.constexpr(4)  # rows of tiles whose dy neighbouring programs read while the cache has it
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def serves(chain: Chain) -> bool:
    """Rows that are aligned, but for the last, narrow layer, which is padded; and one norm at least."""
    return chain.layers > 0 and all(width % WIDTH == 0 for width in chain.widths[:-1])


class Saved(NamedTuple):
    x_NI: Tensor
    ends_E: Tensor
    expert_N: Tensor
    h: list[Tensor]
    stats: list[Tensor]


def forward(
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: DispatchPlan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Saved]:
    """y_NO in fp32; h in bf16."""
    check_rows(theta_EP, narrow_EP)
    x_NI = x_NI.contiguous()
    assert narrow_EP is not None
    take, N = (workspace or Workspace()).take, x_NI.shape[0]
    ends_E = plan.offset_F[1:].int()
    expert_N = _experts(ends_E, N)
    x_NI = input_NI = x_NI.to(narrow_EP.dtype)
    kept, stats = [], []
    for i in range(chain.layers):
        h_NH = _grouped(input_NI, chain.matrices(narrow_EP, i).transpose(1, 2), ends_E)
        input_NI = take(f"x.{i % 2}", (N, chain.widths[i + 1]), narrow_EP)
        own = chain.vectors(theta_EP, i)
        stats.append(norm_gelu.ragged_forward(h_NH, plan.offset_F, *own, chain.active[i], input_NI))
        kept.append(h_NH)
    y_NO = _grouped(input_NI, chain.matrices(narrow_EP, chain.layers).transpose(1, 2), ends_E)
    y_NO = chain.biases(theta_EP, chain.layers)[expert_N].add_(y_NO)
    return y_NO, Saved(x_NI, ends_E, expert_N, kept, stats)


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
    assert narrow_EP is not None
    O, E, ends_E = dy_NO.shape[1], len(theta_EP), saved.ends_E
    workspace = workspace or Workspace()
    dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else out_EP
    member_EN = torch.arange(E, device=dy_NO.device)[:, None].eq(saved.expert_N).to(dy_NO.dtype)
    db_EO = chain.biases(dtheta_EP, chain.layers)
    torch.addmm(db_EO, member_EN, dy_NO, beta=float(accumulate), out=db_EO)
    dh_NO = torch.nn.functional.pad(dy_NO, (0, -O % WIDTH)).to(narrow_EP.dtype)[:, :O]
    for i in reversed(range(1, chain.layers + 1)):
        dx_NH = _grouped(dh_NO, chain.matrices(narrow_EP, i), ends_E)
        h_NH, stat_N2, active = saved.h[i - 1], saved.stats[i - 1], chain.active[i - 1]
        own, grads = chain.vectors(theta_EP, i - 1), chain.vectors(dtheta_EP, i - 1)
        workspace.show("h", i - 1, h_NH)
        norm_gelu.ragged_backward(dx_NH, h_NH, stat_N2, plan.offset_F, *own, active, dx_NH, h_NH, *grads, accumulate)
        weight_gradients(dh_NO, h_NH, plan.offset_F, chain.matrices(dtheta_EP, i), accumulate)
        dh_NO = dx_NH
        workspace.show("x", i - 1, h_NH)
        workspace.show("dh", i - 1, dh_NO)
    weight_gradients(dh_NO, saved.x_NI, plan.offset_F, chain.matrices(dtheta_EP, 0), accumulate)
    if not want_dx:
        return None, dtheta_EP
    return _grouped(dh_NO, chain.matrices(narrow_EP, 0), ends_E).float(), dtheta_EP


def _grouped(a_NI: Tensor, b_EIO: Tensor, ends_E: Tensor) -> Tensor:
    """a b of each expert's rows."""
    return torch._grouped_mm(a_NI, b_EIO, offs=ends_E)  # pyright: ignore[reportPrivateImportUsage]


def _experts(ends_E: Tensor, rows: int) -> Tensor:
    """The expert of each row."""
    return torch.searchsorted(ends_E, torch.arange(rows, device=ends_E.device, dtype=torch.int32), right=True)


def weight_gradients(dy_NO: Tensor, x_NI: Tensor, offset_F: Tensor, out_EOI: Tensor, accumulate: bool) -> None:
    """dW = dyᵀx of each expert, accumulated and written in fp32, or added to what is there."""
    experts, outputs, inputs = out_EOI.shape
    tile_o, tile_i, deep, warps = (128, 256, 64, 8) if min(outputs, inputs) >= 128 else (32, 64, 32, 4)
    tiles = triton.cdiv(outputs, tile_o) * triton.cdiv(inputs, tile_i)
    _weight_gradients[(tiles, experts)](
        TensorDescriptor.from_tensor(dy_NO, [deep, tile_o]),
        TensorDescriptor.from_tensor(x_NI, [deep, tile_i]),
        out_EOI,
        offset_F,
        out_EOI.stride(0),
        outputs,
        inputs,
        TILE_O=tile_o,
        TILE_I=tile_i,
        DEEP=deep,
        ACCUMULATE=accumulate,
        num_warps=warps,
        num_stages=3,
    )


@triton.jit
def _weight_gradients(
    dy,
    x,
    out,
    offset,
    out_row,
    outputs,
    inputs,
    TILE_O: tl.constexpr,
    TILE_I: tl.constexpr,
    DEEP: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    """One tile of one expert's dW: the sum over its rows, DEEP of them at a time. What lies outside the arrays is read
    as zero; the next expert's rows must be made so."""
    expert = tl.program_id(1).to(tl.int64)
    across = (inputs + TILE_I - 1) // TILE_I
    down = (outputs + TILE_O - 1) // TILE_O
    band = tl.program_id(0) // (NEAR * across)
    high = tl.minimum(down - band * NEAR, NEAR)
    within = tl.program_id(0) % (NEAR * across)
    o = (band * NEAR + within % high) * TILE_O
    i = (within // high) * TILE_I
    start = tl.load(offset + expert).to(tl.int32)
    end = tl.load(offset + expert + 1).to(tl.int32)
    whole = start + (end - start) // DEEP * DEEP
    total_OI = tl.zeros((TILE_O, TILE_I), dtype=tl.float32)
    for row in range(start, whole, DEEP):
        total_OI = _add_product(dy.load([row, o]), x.load([row, i]), total_OI)
    if whole < end:
        real_D1 = (whole + tl.arange(0, DEEP))[:, None] < end
        dy_DO = tl.where(real_D1, dy.load([whole, o]), 0.0)
        x_DI = tl.where(real_D1, x.load([whole, i]), 0.0)
        total_OI = _add_product(dy_DO.to(dy.dtype), x_DI.to(x.dtype), total_OI)
    o_O = o + tl.arange(0, TILE_O)
    i_I = i + tl.arange(0, TILE_I)
    place_OI = out + expert * out_row + o_O[:, None].to(tl.int64) * inputs + i_I[None, :]
    inside_OI = (o_O < outputs)[:, None] & (i_I < inputs)[None, :]
    if ACCUMULATE:
        total_OI += tl.load(place_OI, mask=inside_OI, other=0.0)
    tl.store(place_OI, total_OI, mask=inside_OI)


@triton.jit
def _add_product(dy_DO, x_DI, total_OI):
    """total + dyᵀx."""
    if INTERPRETED:  # the interpreter keeps bf16 as integers, and multiplies those
        dy_DO, x_DI = dy_DO.to(tl.float32), x_DI.to(tl.float32)
    return tl.dot(tl.trans(dy_DO), x_DI, total_OI)
