"""The router: scores, choice, gates and the auxiliary loss in one kernel. The reference is `ops/route.py`.

softmax: l = z, score = q = softmax(z)          sigmoid: l = log σ(z), score = σ(z), q = softmax(l)
S: K times the largest score (+ c) that is left, the lowest index on a tie
gates on S: the score, or softmax of l over S;  aux = balance·E/T·Σ_e f_e·Σ_t q_te + z_loss/T·Σ_t logsumexp(z_t)²

A program has a block of rows and writes its part of the sums over rows: count_e, Σ q_e, Σ logsumexp². One program more
adds the parts up, in order; where one block holds all rows, it does so itself.
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
from gradproof.ops.route import Routed, Routing, Saved, Whole, rebalance

__all__ = ["WIDEST", "backward", "forward", "load", "rebalance"]

WIDEST = 64
DEEP = 64  # parts that the last program reads at a time


def _block(E: int) -> tuple[int, int]:
    """Rows of a program, and E rounded up to a power of two."""
    if not 1 <= E <= WIDEST:
        raise ValueError(f"E = {E} experts: the kernel holds the scores of 1 to {WIDEST}")
    block = triton.next_power_of_2(E)
    return min(256, 2048 // block), block


def launch(shape: Shape) -> dict[str, Any]:
    """What a call branches on."""
    return {"programs": many(triton.cdiv(shape.rows, _block(shape.experts)[0]), DEEP)}


def forward(z_TE: Tensor, c_E: Tensor | None, routing: Routing, whole: Whole | None = None) -> tuple[Routed, Saved]:
    """Gates and the auxiliary loss; the chosen experts are `saved.index_TK`."""
    check(z_TE)
    T, E = z_TE.shape
    if routing.k > E:
        raise ValueError(f"k = {routing.k}: k must be between 1 and E = {E}")
    z_TE, (block, width) = rows(z_TE), _block(E)
    blocks = triton.cdiv(T, block)
    q_TE, gates_TE = (torch.empty(T, E, dtype=z_TE.dtype, device=z_TE.device) for _ in range(2))
    index_TK = torch.empty(T, routing.k, dtype=torch.int64, device=z_TE.device)
    share_E, aux = z_TE.new_empty(E), z_TE.new_empty(())
    part_B = torch.empty(blocks, 2 * width + 1, dtype=torch.float32, device=z_TE.device)
    batch, load_E = (T, None) if whole is None else whole
    # What the sums are divided by and weighed with, and the options of both kernels.
    weights = (float(batch * routing.k), routing.balance * E / batch, routing.z_loss / batch)
    options = dict(E=E, WIDTH=width, BALANCE=bool(routing.balance), Z_LOSS=bool(routing.z_loss), num_warps=4)
    _forward[(blocks,)](
        z_TE,
        None if c_E is None else c_E.contiguous(),
        q_TE,
        gates_TE,
        index_TK,
        part_B,
        load_E,
        share_E,
        aux,
        T,
        *weights,
        Z_ROW=z_TE.stride(0),
        K=routing.k,
        BLOCK=block,
        SIGMOID=routing.scores == "sigmoid",
        RENORMALISE=routing.renormalise,
        ALONE=blocks == 1,
        **options,
    )
    if blocks != 1:
        _add_up[(1,)](part_B, load_E, share_E, aux, blocks, *weights, DEEP=DEEP, **options)
    return Routed(gates_TE, aux), Saved(z_TE, q_TE, gates_TE, index_TK, share_E, batch)


def backward(dy: Routed, saved: Saved, routing: Routing) -> Tensor:
    """Returns dz_TE."""
    z_TE, q_TE, gates_TE, index_TK, share_E, batch = saved
    check(z_TE, dy.gates_TE)
    T, E = z_TE.shape
    dgates_TE, (block, width) = rows(dy.gates_TE), _block(E)
    on_device = isinstance(dy.aux, Tensor) and dy.aux.device == z_TE.device
    dz_TE = torch.empty(T, E, dtype=z_TE.dtype, device=z_TE.device)
    _backward[(triton.cdiv(T, block),)](
        dgates_TE,
        dy.aux if on_device else float(dy.aux),
        z_TE,
        q_TE,
        gates_TE,
        index_TK,
        share_E,
        dz_TE,
        T,
        routing.balance * E / batch,
        2 * routing.z_loss / batch,
        DGATES_ROW=dgates_TE.stride(0),
        Z_ROW=z_TE.stride(0),
        E=E,
        WIDTH=width,
        K=routing.k,
        BLOCK=block,
        SIGMOID=routing.scores == "sigmoid",
        RENORMALISE=routing.renormalise,
        BALANCE=bool(routing.balance),
        Z_LOSS=bool(routing.z_loss),
        ON_DEVICE=on_device,
        num_warps=4,
    )
    return dz_TE


def load(index_TK: Tensor, experts: int) -> Tensor:
    """count_E: how many rows chose each expert, without a wait for the device (`torch.bincount` has one)."""
    return (index_TK.flatten()[:, None] == torch.arange(experts, device=index_TK.device)).sum(0)


@triton.jit
def _log_sigmoid(z):
    return tl.minimum(z, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(z)))


@triton.jit
def _last(
    load_E,
    q_E,
    square,
    given,
    share,
    aux,
    places,
    balance,
    z_loss,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BALANCE: tl.constexpr,
    Z_LOSS: tl.constexpr,
):
    """f_e = count_e/(T·K), and the auxiliary loss, from the sums over all rows."""
    expert_E = tl.arange(0, WIDTH)
    inside_E = expert_E < E
    if given is not None:
        share_E = tl.div_rn(tl.load(given + expert_E, mask=inside_E, other=0).to(tl.float32), places)
    else:
        share_E = tl.div_rn(load_E.to(tl.float32), places)
    tl.store(share + expert_E, share_E, mask=inside_E)
    loss = tl.full((), 0.0, tl.float32)
    if BALANCE:
        loss += balance * tl.sum(tl.where(inside_E, share_E * q_E, 0.0), 0)
    if Z_LOSS:
        loss += z_loss * square
    tl.store(aux, loss)


# S, gates, and this block's count_e, Σ q_e, Σ logsumexp(z)²
@triton.jit(do_not_specialize=["T"])
def _forward(
    z,
    c,
    q,
    gates,
    index,
    part,
    given,
    share,
    aux,
    T,
    places,
    balance,
    z_loss,
    Z_ROW: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr,
    BALANCE: tl.constexpr,
    Z_LOSS: tl.constexpr,
    ALONE: tl.constexpr,
):
    pid = tl.program_id(0)
    row_T1 = (pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    expert_1E = tl.arange(0, WIDTH)[None, :]
    inside_TE = (row_T1 < T) & (expert_1E < E)
    z_TE = tl.load(z + row_T1 * Z_ROW + expert_1E, mask=inside_TE, other=0.0).to(tl.float32)
    l_TE = _log_sigmoid(z_TE) if SIGMOID else z_TE
    l_TE = tl.where(expert_1E < E, l_TE, float("-inf"))
    exp_TE = tl.exp(l_TE - tl.max(l_TE, 1)[:, None])
    q_TE = exp_TE / tl.sum(exp_TE, 1)[:, None]
    tl.store(q + row_T1 * E + expert_1E, q_TE, mask=inside_TE)
    score_TE = tl.sigmoid(z_TE) if SIGMOID else q_TE

    key_TE = score_TE
    if c is not None:
        key_TE += tl.load(c + expert_1E, mask=expert_1E < E, other=0.0).to(tl.float32)
    key_TE = tl.where(key_TE == key_TE, key_TE, float("inf"))  # a sort puts NaN first
    free_TE = tl.broadcast_to(expert_1E < E, (BLOCK, WIDTH))
    for k in tl.static_range(K):
        best_T = tl.max(tl.where(free_TE, key_TE, float("-inf")), 1)
        here_TE = free_TE & (key_TE == best_T[:, None])
        index_T = tl.min(tl.where(here_TE, expert_1E, WIDTH), 1)
        tl.store(index + row_T1 * K + k, index_T[:, None].to(tl.int64), mask=row_T1 < T)
        free_TE = free_TE & (expert_1E != index_T[:, None])
    chosen_TE = (expert_1E < E) & ~free_TE

    if RENORMALISE:
        top_T = tl.max(tl.where(chosen_TE, l_TE, float("-inf")), 1)
        exp_TE = tl.where(chosen_TE, tl.exp(l_TE - top_T[:, None]), 0.0)
        score_TE = exp_TE / tl.sum(exp_TE, 1)[:, None]
    tl.store(gates + row_T1 * E + expert_1E, tl.where(chosen_TE, score_TE, 0.0), mask=inside_TE)

    load_E = tl.sum((chosen_TE & inside_TE).to(tl.int32), 0)
    q_E = tl.sum(tl.where(inside_TE, q_TE, 0.0), 0)
    square = tl.full((), 0.0, tl.float32)
    if Z_LOSS:
        z_TE = tl.where(expert_1E < E, z_TE, float("-inf"))
        top_T = tl.max(z_TE, 1)
        lse_T = top_T + tl.log(tl.sum(tl.exp(z_TE - top_T[:, None]), 1))
        square = tl.sum(tl.where(pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK) < T, lse_T * lse_T, 0.0), 0)
    if ALONE:
        _last(load_E, q_E, square, given, share, aux, places, balance, z_loss, E, WIDTH, BALANCE, Z_LOSS)
    else:
        part += pid.to(tl.int64) * (2 * WIDTH + 1)
        tl.store(part + tl.arange(0, WIDTH), load_E.to(tl.float32))
        tl.store(part + WIDTH + tl.arange(0, WIDTH), q_E)
        tl.store(part + 2 * WIDTH, square)


# The sums over all blocks
@triton.jit(do_not_specialize=["blocks"])
def _add_up(
    part,
    given,
    share,
    aux,
    blocks,
    places,
    balance,
    z_loss,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    DEEP: tl.constexpr,
    BALANCE: tl.constexpr,
    Z_LOSS: tl.constexpr,
):
    expert_1E = tl.arange(0, WIDTH)[None, :]
    load_DE = tl.zeros((DEEP, WIDTH), tl.int32)
    q_DE = tl.zeros((DEEP, WIDTH), tl.float32)
    square_D = tl.zeros((DEEP,), tl.float32)
    for start in range(0, blocks, DEEP):
        block_D = start + tl.arange(0, DEEP)
        part_D = part + block_D * (2 * WIDTH + 1)
        inside_D1 = (block_D < blocks)[:, None]
        load_DE += tl.load(part_D[:, None] + expert_1E, mask=inside_D1, other=0.0).to(tl.int32)
        q_DE += tl.load(part_D[:, None] + WIDTH + expert_1E, mask=inside_D1, other=0.0)
        square_D += tl.load(part_D + 2 * WIDTH, mask=block_D < blocks, other=0.0)
    load_E, q_E, square = tl.sum(load_DE, 0), tl.sum(q_DE, 0), tl.sum(square_D, 0)
    _last(load_E, q_E, square, given, share, aux, places, balance, z_loss, E, WIDTH, BALANCE, Z_LOSS)


# dl = q(dw − ⟨q, dw⟩), or by the gates, plus q(dq − ⟨q, dq⟩);  dz = dl·(1 or 1 − s) + z_loss·2·logsumexp·softmax/T·daux
@triton.jit(do_not_specialize=["T"])
def _backward(
    dgates,
    daux,
    z,
    q,
    gates,
    index,
    share,
    dz,
    T,
    balance,
    z_loss,
    DGATES_ROW: tl.constexpr,
    Z_ROW: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr,
    BALANCE: tl.constexpr,
    Z_LOSS: tl.constexpr,
    ON_DEVICE: tl.constexpr,
):
    row_T1 = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    expert_1E = tl.arange(0, WIDTH)[None, :]
    inside_TE = (row_T1 < T) & (expert_1E < E)
    q_TE = tl.load(q + row_T1 * E + expert_1E, mask=inside_TE, other=0.0).to(tl.float32)
    gates_TE = tl.load(gates + row_T1 * E + expert_1E, mask=inside_TE, other=0.0).to(tl.float32)
    dw_TE = tl.load(dgates + row_T1 * DGATES_ROW + expert_1E, mask=inside_TE, other=0.0).to(tl.float32)
    chosen_TE = expert_1E == tl.load(index + row_T1 * K, mask=row_T1 < T, other=-1)
    for k in tl.static_range(1, K):
        chosen_TE = chosen_TE | (expert_1E == tl.load(index + row_T1 * K + k, mask=row_T1 < T, other=-1))
    dw_TE = tl.where(chosen_TE, dw_TE, 0.0)  # gates off S are constants, whatever cotangent they are given
    if RENORMALISE:
        dl_TE = gates_TE * (dw_TE - tl.sum(gates_TE * dw_TE, 1)[:, None])
    elif SIGMOID:
        dl_TE = gates_TE * dw_TE
    else:
        dl_TE = q_TE * (dw_TE - tl.sum(q_TE * dw_TE, 1)[:, None])
    if BALANCE or Z_LOSS:
        d_aux = tl.load(daux).to(tl.float32) if ON_DEVICE else daux
    if BALANCE:
        dq_1E = d_aux * balance * tl.load(share + expert_1E, mask=expert_1E < E, other=0.0).to(tl.float32)
        dl_TE += q_TE * (dq_1E - tl.sum(q_TE * dq_1E, 1)[:, None])
    if SIGMOID or Z_LOSS:
        z_TE = tl.load(z + row_T1 * Z_ROW + expert_1E, mask=inside_TE, other=0.0).to(tl.float32)
    if SIGMOID:
        dl_TE = dl_TE * tl.sigmoid(-z_TE)
    if Z_LOSS:
        z_TE = tl.where(expert_1E < E, z_TE, float("-inf"))
        top_T = tl.max(z_TE, 1)
        exp_TE = tl.exp(z_TE - top_T[:, None])
        sum_T = tl.sum(exp_TE, 1)
        dl_TE += (d_aux * z_loss * (top_T + tl.log(sum_T)) / sum_T)[:, None] * exp_TE
    tl.store(dz + row_T1 * E + expert_1E, dl_TE, mask=inside_TE)
