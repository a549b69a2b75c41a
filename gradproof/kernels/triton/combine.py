"""Combine: sums the expert rows of each token, weighted by their gates. The reference is `ops/combine.py`.

y_t = Σ_k w_tk·rows[t, k];   drows[t, k] = w_tk·dy_t;   dw_tk = ⟨dy_t, rows[t, k]⟩ on S, 0 off S

A program has whole tokens: it reads their K rows, and writes the gradients of just these.
"""

# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradproof.kernels.shapes import Shape
from gradproof.kernels.triton import check, many, rows
from gradproof.ops.dispatch import DispatchPlan

WIDEST = 1024


def _tile(O: int, E: int) -> tuple[int, int, int]:
    """Tokens of a program; O and E rounded up to powers of two."""
    if not 1 <= O <= WIDEST:
        raise ValueError(f"rows of width {O}: the kernel holds whole rows, of 1 to {WIDEST} numbers")
    block, width = triton.next_power_of_2(O), triton.next_power_of_2(E)
    return max(1, min(64, 2048 // max(block, width))), block, width


def launch(shape: Shape) -> dict[str, Any]:
    """What a call branches on."""
    tile, _, _ = _tile(shape.chain.widths[-1], shape.experts)
    return {"programs": many(triton.cdiv(shape.rows, tile), 1)}


def forward(rows_NO: Tensor, gates_TE: Tensor, plan: DispatchPlan) -> tuple[Tensor, None]:
    """y_TO, summed over the K choices in their order."""
    check(rows_NO, gates_TE)
    (T, K), O, E = plan.row_TK.shape, rows_NO.shape[1], gates_TE.shape[1]
    rows_NO, gates_TE = rows(rows_NO), rows(gates_TE)
    dtype = torch.promote_types(rows_NO.dtype, gates_TE.dtype)
    y_TO = torch.empty(T, O, dtype=dtype, device=rows_NO.device)
    tile, block, _ = _tile(O, E)
    _forward[(triton.cdiv(T, tile),)](
        rows_NO,
        gates_TE,
        plan.row_TK,
        plan.index_TK,
        y_TO,
        T,
        ROWS_ROW=rows_NO.stride(0),
        GATES_ROW=gates_TE.stride(0),
        O=O,
        K=K,
        R=tile,
        BLOCK=block,
        num_warps=4,
    )
    return y_TO, None


def backward(
    dy_TO: Tensor, saved: None, rows_NO: Tensor, gates_TE: Tensor, plan: DispatchPlan
) -> tuple[Tensor, Tensor]:
    """Returns drows_NO, dgates_TE."""
    check(dy_TO, rows_NO, gates_TE)
    (T, K), (N, O), E = plan.row_TK.shape, rows_NO.shape, gates_TE.shape[1]
    dy_TO, rows_NO, gates_TE = rows(dy_TO), rows(rows_NO), rows(gates_TE)
    dtype = torch.promote_types(dy_TO.dtype, gates_TE.dtype)
    drows_NO = torch.empty(N, O, dtype=dtype, device=rows_NO.device)
    dgates_TE = torch.empty(T, E, dtype=gates_TE.dtype, device=rows_NO.device)
    tile, block, width = _tile(O, E)
    _backward[(triton.cdiv(T, tile),)](
        dy_TO,
        rows_NO,
        gates_TE,
        plan.row_TK,
        plan.index_TK,
        drows_NO,
        dgates_TE,
        T,
        DY_ROW=dy_TO.stride(0),
        ROWS_ROW=rows_NO.stride(0),
        GATES_ROW=gates_TE.stride(0),
        O=O,
        E=E,
        K=K,
        R=tile,
        BLOCK=block,
        WIDTH=width,
        num_warps=4,
    )
    return drows_NO, dgates_TE


# y_t = Σ_k w_tk·rows[row_tk]
@triton.jit(do_not_specialize=["T"])
def _forward(
    rows,
    gates,
    row,
    index,
    y,
    T,
    ROWS_ROW: tl.constexpr,
    GATES_ROW: tl.constexpr,
    O: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token_R1 = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    column_1O = tl.arange(0, BLOCK)[None, :]
    inside_RO = (token_R1 < T) & (column_1O < O)
    y_RO = tl.zeros((R, BLOCK), tl.float32)
    for k in tl.static_range(K):
        row_R1 = tl.load(row + token_R1 * K + k, mask=token_R1 < T, other=0)
        expert_R1 = tl.load(index + token_R1 * K + k, mask=token_R1 < T, other=0)
        gate_R1 = tl.load(gates + token_R1 * GATES_ROW + expert_R1, mask=token_R1 < T, other=0.0).to(tl.float32)
        y_RO += gate_R1 * tl.load(rows + row_R1 * ROWS_ROW + column_1O, mask=inside_RO, other=0.0).to(tl.float32)
    tl.store(y + token_R1 * O + column_1O, y_RO, mask=inside_RO)


# drows[row_tk] = w_tk·dy_t,  dw_tk = ⟨dy_t, rows[row_tk]⟩
@triton.jit(do_not_specialize=["T"])
def _backward(
    dy,
    rows,
    gates,
    row,
    index,
    drows,
    dgates,
    T,
    DY_ROW: tl.constexpr,
    ROWS_ROW: tl.constexpr,
    GATES_ROW: tl.constexpr,
    O: tl.constexpr,
    E: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    token_R1 = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    column_1O = tl.arange(0, BLOCK)[None, :]
    expert_1E = tl.arange(0, WIDTH)[None, :]
    inside_RO = (token_R1 < T) & (column_1O < O)
    dy_RO = tl.load(dy + token_R1 * DY_ROW + column_1O, mask=inside_RO, other=0.0).to(tl.float32)
    dgates_RE = tl.zeros((R, WIDTH), tl.float32)
    for k in tl.static_range(K):
        row_R1 = tl.load(row + token_R1 * K + k, mask=token_R1 < T, other=0)
        expert_R1 = tl.load(index + token_R1 * K + k, mask=token_R1 < T, other=0)
        gate_R1 = tl.load(gates + token_R1 * GATES_ROW + expert_R1, mask=token_R1 < T, other=0.0).to(tl.float32)
        tl.store(drows + row_R1 * O + column_1O, gate_R1 * dy_RO, mask=inside_RO)
        rows_RO = tl.load(rows + row_R1 * ROWS_ROW + column_1O, mask=inside_RO, other=0.0).to(tl.float32)
        dgate_R1 = tl.sum(dy_RO * rows_RO, 1)[:, None]
        dgates_RE = tl.where(expert_1E == expert_R1, dgate_R1, dgates_RE)
    tl.store(dgates + token_R1 * E + expert_1E, dgates_RE, mask=(token_R1 < T) & (expert_1E < E))
