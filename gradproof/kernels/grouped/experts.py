"""The experts' chains: one grouped product a layer, bias + LayerNorm + GELU in one kernel. See ops/experts.py.

As in `kernels/cublas/experts.py` the forward keeps h alone, and the backward turns dx into dh and h into the layer's
output in place:

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

from gradproof.kernels.triton import norm_gelu
from gradproof.kernels.workspace import Workspace
from gradproof.ops.dispatch import Plan
from gradproof.ops.experts import Chain

WIDTH = 8  # bf16 numbers in the 16 bytes that the products' rows are aligned to
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def serves(chain: Chain) -> bool:
    """Rows that are aligned, but for the last, narrow layer, which is padded; and one norm at least."""
    return chain.layers > 0 and all(width % WIDTH == 0 for width in chain.widths[:-1])


class Saved(NamedTuple):
    x_NI: Tensor
    h: list[Tensor]


def forward(
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: Plan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Saved]:
    """y_NO in fp32; h in bf16."""
    assert narrow_EP is not None
    take, N = (workspace or Workspace()).take, x_NI.shape[0]
    ends_E = plan.offset_F[1:].int()
    x_NI = input_NI = x_NI.to(narrow_EP.dtype)
    kept = []
    for i in range(chain.layers):
        h_NH = _grouped(input_NI, chain.matrices(narrow_EP, i).transpose(1, 2), ends_E)
        input_NI = take(f"x.{i % 2}", (N, chain.widths[i + 1]), narrow_EP)
        norm_gelu.ragged_forward(h_NH, plan.offset_F, *chain.vectors(theta_EP, i), chain.active[i], input_NI)
        kept.append(h_NH)
    y_NO = _grouped(input_NI, chain.matrices(narrow_EP, chain.layers).transpose(1, 2), ends_E)
    bias_EO = chain.biases(theta_EP, chain.layers)
    return y_NO.float() + bias_EO[_experts(plan, N)], Saved(x_NI, kept)


def backward(
    dy_NO: Tensor,
    saved: Saved,
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
    """Returns dx_NI, dtheta_EP; uses `saved` up."""
    assert narrow_EP is not None
    N, O = dy_NO.shape
    dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else out_EP
    ends_E = plan.offset_F[1:].int()
    member_EN = (torch.arange(len(theta_EP), device=dy_NO.device)[:, None] == _experts(plan, N)).to(dy_NO.dtype)
    db_EO = chain.biases(dtheta_EP, chain.layers)
    db_EO.copy_(member_EN @ dy_NO + db_EO if accumulate else member_EN @ dy_NO)
    dh_NO = torch.nn.functional.pad(dy_NO, (0, -O % WIDTH)).to(narrow_EP.dtype)[:, :O]
    for i in reversed(range(1, chain.layers + 1)):
        dx_NH = _grouped(dh_NO, chain.matrices(narrow_EP, i), ends_E)
        h_NH, own, grads = saved.h[i - 1], chain.vectors(theta_EP, i - 1), chain.vectors(dtheta_EP, i - 1)
        norm_gelu.ragged_backward(
            dx_NH, h_NH, plan.offset_F, *own, chain.active[i - 1], dx_NH, h_NH, *grads, accumulate
        )
        weight_gradients(dh_NO, h_NH, plan.offset_F, chain.matrices(dtheta_EP, i), accumulate)
        dh_NO = dx_NH
    weight_gradients(dh_NO, saved.x_NI, plan.offset_F, chain.matrices(dtheta_EP, 0), accumulate)
    if not want_dx:
        return None, dtheta_EP
    return _grouped(dh_NO, chain.matrices(narrow_EP, 0), ends_E).float(), dtheta_EP


def _grouped(a_NI: Tensor, b_EIO: Tensor, ends_E: Tensor) -> Tensor:
    """a b of each expert's rows."""
    return torch._grouped_mm(a_NI, b_EIO, offs=ends_E)  # pyright: ignore[reportPrivateImportUsage]


def _experts(plan: Plan, rows: int) -> Tensor:
    """The expert of each row."""
    return torch.searchsorted(plan.offset_F[1:], torch.arange(rows, device=plan.offset_F.device), right=True)


def weight_gradients(dy_NO: Tensor, x_NI: Tensor, offset_F: Tensor, out_EOI: Tensor, accumulate: bool) -> None:
    """dW = dyᵀx of each expert, accumulated and written in fp32, or added to what is there."""
    experts, outputs, inputs = out_EOI.shape
    tile_o, tile_i, deep, warps = (128, 256, 64, 8) if min(outputs, inputs) >= 128 else (32, 64, 32, 4)
    tiles = (triton.cdiv(outputs, tile_o), triton.cdiv(inputs, tile_i))
    _weight_gradients[(tiles[0] * tiles[1], experts)](
        dy_NO,
        x_NI,
        out_EOI,
        offset_F,
        dy_NO.stride(0),
        x_NI.stride(0),
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
    dy_row,
    x_row,
    out_row,
    outputs,
    inputs,
    TILE_O: tl.constexpr,
    TILE_I: tl.constexpr,
    DEEP: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    """One tile of one expert's dW: the sum over its rows, DEEP of them at a time."""
    expert = tl.program_id(1).to(tl.int64)
    across = (inputs + TILE_I - 1) // TILE_I
    o_O = (tl.program_id(0) // across) * TILE_O + tl.arange(0, TILE_O)
    i_I = (tl.program_id(0) % across) * TILE_I + tl.arange(0, TILE_I)
    start = tl.load(offset + expert)
    end = tl.load(offset + expert + 1)
    inside_1O = (o_O < outputs)[None, :]
    inside_1I = (i_I < inputs)[None, :]
    total_OI = tl.zeros((TILE_O, TILE_I), dtype=tl.float32)
    for row in range(start, end, DEEP):
        row_D1 = (row + tl.arange(0, DEEP))[:, None]
        real_D1 = row_D1 < end
        dy_DO = tl.load(dy + row_D1 * dy_row + o_O[None, :], mask=real_D1 & inside_1O, other=0.0)
        x_DI = tl.load(x + row_D1 * x_row + i_I[None, :], mask=real_D1 & inside_1I, other=0.0)
        if INTERPRETED:  # the interpreter keeps bf16 as integers, and multiplies those
            dy_DO, x_DI = dy_DO.to(tl.float32), x_DI.to(tl.float32)
        total_OI += tl.dot(tl.trans(dy_DO), x_DI)
    place_OI = out + expert * out_row + o_O[:, None].to(tl.int64) * inputs + i_I[None, :]
    inside_OI = (o_O < outputs)[:, None] & inside_1I
    if ACCUMULATE:
        total_OI += tl.load(place_OI, mask=inside_OI, other=0.0)
    tl.store(place_OI, total_OI, mask=inside_OI)
