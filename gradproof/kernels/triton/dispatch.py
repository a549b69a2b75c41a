"""Dispatch: a stable counting sort of the choices by expert, and the moves of the rows. The reference is
`ops/dispatch.py`.

    row of slot n = offset[expert] + slots of the same expert before n
    rows_n = x[slot_n // K];   dx_t = Σ_k drows[row_tk]

The slots are cut into blocks: a kernel counts the experts of each, one program turns the counts into the block's first
rows, and a kernel ranks the slots within their block. Few blocks need no program between, a single one no counts.
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
from gradproof.ops.dispatch import DispatchPlan, all_rows

__all__ = ["DispatchPlan", "all_rows", "backward", "forward", "plan"]

FEW = 64  # blocks whose counts each program adds up itself
DEEP = 64  # blocks that the program between reads at a time


def launch(shape: Shape) -> dict[str, Any]:
    """What a call branches on."""
    _, block, blocks = _blocks(shape.rows * shape.k, shape.experts)
    return {"block": block, "all": triton.next_power_of_2(min(blocks, FEW)), "programs": many(blocks, FEW)}


def _blocks(N: int, experts: int) -> tuple[int, int, int]:
    """E rounded up to a power of two, the choices of a program, and the programs."""
    width = triton.next_power_of_2(experts)
    block = max(64, min(1024, 8192 // width, triton.next_power_of_2(max(N, 1))))
    return width, block, max(1, triton.cdiv(N, block))


def plan(index_TK: Tensor, experts: int) -> DispatchPlan:
    """Sorts the choices by expert."""
    index_TK = index_TK.contiguous()
    N = index_TK.numel()
    width, block, blocks = _blocks(N, experts)
    slot_N, row_TK = torch.empty_like(index_TK.view(-1)), torch.empty_like(index_TK)
    offset_F = torch.empty(experts + 1, dtype=torch.int64, device=index_TK.device)
    count_BE = torch.empty(blocks, width, dtype=torch.int32, device=index_TK.device)
    first_BE = torch.empty_like(count_BE) if blocks > FEW else None
    if blocks > 1:
        _count[(blocks,)](index_TK, count_BE, N, WIDTH=width, BLOCK=block, num_warps=4)
    if first_BE is not None:
        _first[(1,)](count_BE, first_BE, offset_F, blocks, E=experts, WIDTH=width, DEEP=DEEP, num_warps=4)
    _rank[(blocks,)](
        index_TK,
        count_BE,
        first_BE,
        offset_F,
        slot_N,
        row_TK,
        N,
        blocks,
        E=experts,
        WIDTH=width,
        BLOCK=block,
        ALL=triton.next_power_of_2(min(blocks, FEW)),
        ALONE=blocks == 1,
        num_warps=4,
    )
    return DispatchPlan(slot_N, row_TK, index_TK, offset_F)


def forward(x_TI: Tensor, plan: DispatchPlan, dtype: torch.dtype | None = None) -> tuple[Tensor, None]:
    """rows_NI, sorted by expert, in `dtype` where given."""
    x_TI = rows(x_TI)
    I, N = x_TI.shape[1], plan.slot_N.numel()
    rows_NI = torch.empty(N, I, dtype=dtype or x_TI.dtype, device=x_TI.device)
    tile, block = _tile(I)
    _gather[(triton.cdiv(N, tile), triton.cdiv(I, block))](
        x_TI, plan.slot_N, rows_NI, N, x_TI.stride(0), I=I, K=plan.row_TK.shape[1], R=tile, BLOCK=block, num_warps=4
    )
    return rows_NI, None


def backward(drows_NI: Tensor, saved: None, plan: DispatchPlan) -> Tensor:
    """Returns dx_TI, summed over the K choices in their order."""
    check(drows_NI)
    drows_NI, (T, K) = rows(drows_NI), plan.row_TK.shape
    I = drows_NI.shape[1]
    dx_TI = torch.empty(T, I, dtype=drows_NI.dtype, device=drows_NI.device)
    tile, block = _tile(I)
    _add_choices[(triton.cdiv(T, tile), triton.cdiv(I, block))](
        drows_NI, plan.row_TK, dx_TI, T, drows_NI.stride(0), I=I, K=K, R=tile, BLOCK=block, num_warps=4
    )
    return dx_TI


def _tile(I: int) -> tuple[int, int]:
    """Rows and columns of a program."""
    block = min(1024, triton.next_power_of_2(I))
    return 2048 // block, block


@triton.jit
def _onehot(index, pid, N, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """1 where a slot of this block has an expert, and the slots."""
    slot_N = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    expert_N = tl.load(index + slot_N, mask=slot_N < N, other=-1).to(tl.int32)
    return (tl.arange(0, WIDTH)[:, None] == expert_N[None, :]).to(tl.int32), slot_N


# count_e of each block
@triton.jit(do_not_specialize=["N"])
def _count(index, count, N, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    onehot_EN, _slot = _onehot(index, pid, N, WIDTH, BLOCK)
    tl.store(count + pid * WIDTH + tl.arange(0, WIDTH), tl.sum(onehot_EN, 1))


# offset_e = Σ of the counts of the experts before;  first[b, e] = offset_e + Σ of the counts of e in the blocks before
@triton.jit(do_not_specialize=["blocks"])
def _first(count, first, offset, blocks, E: tl.constexpr, WIDTH: tl.constexpr, DEEP: tl.constexpr):
    expert_E = tl.arange(0, WIDTH)
    total_E = tl.zeros((WIDTH,), tl.int32)
    for start in range(0, blocks, DEEP):
        block_1D = start + tl.arange(0, DEEP)[None, :]
        total_E += tl.sum(tl.load(count + block_1D * WIDTH + expert_E[:, None], mask=block_1D < blocks, other=0), 1)
    after_E = tl.cumsum(total_E, 0)
    _store_offsets(offset, after_E, E, WIDTH)
    next_E = after_E - total_E
    for start in range(0, blocks, DEEP):
        block_1D = start + tl.arange(0, DEEP)[None, :]
        count_ED = tl.load(count + block_1D * WIDTH + expert_E[:, None], mask=block_1D < blocks, other=0)
        first_ED = next_E[:, None] + tl.cumsum(count_ED, 1) - count_ED
        tl.store(first + block_1D * WIDTH + expert_E[:, None], first_ED, mask=block_1D < blocks)
        next_E += tl.sum(count_ED, 1)


@triton.jit
def _store_offsets(offset, after_E, E: tl.constexpr, WIDTH: tl.constexpr):
    """0 and the running totals."""
    expert_E = tl.arange(0, WIDTH)
    tl.store(offset + 1 + expert_E, after_E.to(tl.int64), mask=expert_E < E)
    tl.store(offset, tl.full((), 0, tl.int64))


# row of slot = first row of its expert in this block + slots of the expert before it in the block
@triton.jit(do_not_specialize=["N", "blocks"])
def _rank(
    index,
    count,
    first,
    offset,
    slot,
    row,
    N,
    blocks,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,
    ALONE: tl.constexpr,
):
    pid = tl.program_id(0)
    onehot_EN, slot_N = _onehot(index, pid, N, WIDTH, BLOCK)
    expert_E = tl.arange(0, WIDTH)
    if first is not None:
        first_E = tl.load(first + pid * WIDTH + expert_E)
    else:
        if ALONE:
            total_E = tl.sum(onehot_EN, 1)
            before_E = tl.zeros((WIDTH,), tl.int32)
        else:
            block_1B = tl.arange(0, ALL)[None, :]
            count_EB = tl.load(count + block_1B * WIDTH + expert_E[:, None], mask=block_1B < blocks, other=0)
            total_E = tl.sum(count_EB, 1)
            before_E = tl.sum(tl.where(block_1B < pid, count_EB, 0), 1)
        after_E = tl.cumsum(total_E, 0)
        first_E = after_E - total_E + before_E
        if pid == 0:
            _store_offsets(offset, after_E, E, WIDTH)
    rank_EN = tl.cumsum(onehot_EN, 1) - onehot_EN
    row_N = tl.sum(onehot_EN * (first_E[:, None] + rank_EN), 0).to(tl.int64)
    tl.store(row + slot_N, row_N, mask=slot_N < N)
    tl.store(slot + row_N, slot_N, mask=slot_N < N)


# rows_n = x[slot_n // K]
@triton.jit(do_not_specialize=["N"])
def _gather(x, slot, out, N, x_row, I: tl.constexpr, K: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column_1I = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    token_R1 = tl.load(slot + row_R, mask=row_R < N, other=0)[:, None] // K
    inside_RI = (row_R < N)[:, None] & (column_1I < I)
    x_RI = tl.load(x + token_R1 * x_row + column_1I, mask=inside_RI, other=0.0)
    tl.store(out + row_R[:, None] * I + column_1I, x_RI, mask=inside_RI)


# dx_t = Σ_k drows[row_tk]
@triton.jit(do_not_specialize=["T"])
def _add_choices(drows, row, dx, T, drows_row, I: tl.constexpr, K: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    token_R1 = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    column_1I = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside_RI = (token_R1 < T) & (column_1I < I)
    dx_RI = tl.zeros((R, BLOCK), tl.float32)
    for k in tl.static_range(K):
        row_R1 = tl.load(row + token_R1 * K + k, mask=token_R1 < T, other=0)
        dx_RI += tl.load(drows + row_R1 * drows_row + column_1I, mask=inside_RI, other=0.0).to(tl.float32)
    tl.store(dx + token_R1 * I + column_1I, dx_RI, mask=inside_RI)
