"""Bias, LayerNorm and GELU, fused: one pass over memory each way. The reference is `ops/norm_gelu.py`.

x = h + b,  x̂ = (x − mean)·rstd,  n = x̂·γ + β,  y = n·σ(2v) where active, else n;  2v = 2√(2/π)(n + a·n³)
dn = dy·(σ + n·σ(1 − σ)·(2v)′),  dx̂ = dn·γ,  dh = rstd·(dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂))
db = Σ dh,  dγ = Σ dn·x̂,  dβ = Σ dn

Ragged: rows are sorted by expert, expert e has rows offset[e] : offset[e + 1] and row e of each parameter. A program
takes a chunk of rows of one expert, R of them at a time, and holds the sums of the backward in registers; a second
kernel adds up the chunks of each expert, in order. The forward keeps mean and rstd of each row: a reduction over a wide
row makes all warps wait for each other, and the backward has one left where it would have three.
"""

# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradproof.kernels.triton import check, rows
from gradproof.kernels.triton.chunks import Launch, chunks_of, cut, span
from gradproof.ops import gelu, layernorm
from gradproof.ops.norm_gelu import Grads

WIDEST = 8192
STAGES = tl.constexpr(3)  # tiles of the backward on their way from memory or in work
SLICE = 32  # columns of a program that adds up chunks
DEEP = 64  # chunks that it reads at a time

WIDE = tl.constexpr(1024)  # from this width on a thread has whole columns of a tile
EPS = tl.constexpr(layernorm.EPS)
TWICE = tl.constexpr(2 * gelu.SCALE)
CUBED = tl.constexpr(2 * gelu.SCALE * gelu.CUBIC)  # 2v = n·(TWICE + CUBED·n²)
BITS = tl.constexpr(-1 / math.log(2))  # exp(−2v) = exp2(BITS·2v)


def _forward_launch(N: int, H: int, experts: int) -> Launch:
    block = _block(H)
    if block == 4096:
        return cut(N, experts, block, 1, 4, {"maxnreg": 168}, 12)
    options = {"maxnreg": 128} if block >= 2048 else {}
    return cut(N, experts, block, max(2, 2048 // block), max(4, block // 512), options, _resident(block))


def _backward_launch(N: int, H: int, experts: int) -> Launch:
    """The sums take three registers for each column of a thread, so tiles are small. A thread has 8 columns; of 4096
    it has 32, and all the registers there are: fewer steps from thread to thread, for fewer threads."""
    block = _block(H)
    if block == 4096:
        return cut(N, experts, block, 1, 4, {"maxnreg": 255}, 8)
    tile = max(1024 // block, 1 if block > 4096 else 2)
    return cut(N, experts, block, tile, min(16, max(4, block // 256)), {"maxnreg": 128}, _resident(block))


def _block(H: int) -> int:
    if not 1 <= H <= WIDEST:
        raise ValueError(f"rows of width {H}: the kernel holds whole rows, of 1 to {WIDEST} numbers")
    return triton.next_power_of_2(H)


def _resident(block: int) -> int:
    return 16 if block >= WIDE.value else 32


def forward(h_TH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor, activate: bool = True) -> tuple[Tensor, None]:
    """y_TH in the format of h_TH."""
    y_TH = torch.empty_like(h_TH, memory_format=torch.contiguous_format)
    _run_forward(h_TH, None, b_H[None], gamma_H[None], beta_H[None], activate, y_TH, None)
    return y_TH, None


def backward(
    dy_TH: Tensor, saved: None, h_TH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor, activate: bool = True
) -> Grads:
    """dh_TH in the format of h_TH; the parameters' gradients in fp32."""
    dh_TH = torch.empty_like(h_TH, memory_format=torch.contiguous_format)
    sums_3H = torch.empty(3, h_TH.shape[1], dtype=torch.float32, device=h_TH.device)
    params = (b_H[None], gamma_H[None], beta_H[None])
    _run_backward(dy_TH, h_TH, None, None, *params, activate, dh_TH, None, *sums_3H[:, None].unbind(0), False)
    return Grads(dh_TH, *sums_3H.unbind(0))


def ragged_forward(
    h_NH: Tensor,
    offset_F: Tensor,
    b_EH: Tensor,
    gamma_EH: Tensor,
    beta_EH: Tensor,
    activate: bool,
    out_NH: Tensor,
) -> Tensor:
    """Writes y_NH to `out_NH`, which may be h_NH itself; returns stat_N2, mean and rstd of each row."""
    stat_N2 = torch.empty(h_NH.shape[0], 2, dtype=torch.float32, device=h_NH.device)
    _run_forward(h_NH, offset_F, b_EH, gamma_EH, beta_EH, activate, out_NH, stat_N2)
    return stat_N2


def ragged_backward(
    dy_NH: Tensor,
    h_NH: Tensor,
    stat_N2: Tensor,
    offset_F: Tensor,
    b_EH: Tensor,
    gamma_EH: Tensor,
    beta_EH: Tensor,
    activate: bool,
    dh_NH: Tensor,
    y_NH: Tensor | None,
    db_EH: Tensor,
    dgamma_EH: Tensor,
    dbeta_EH: Tensor,
    accumulate: bool,
) -> None:
    """Writes dh_NH, which may be dy_NH or h_NH itself; y_NH, what the forward returned, which may be h_NH itself, or
    None; and the parameters' gradients, in fp32, or adds to them. An expert without rows has zeros, or what it had."""
    sums = (db_EH, dgamma_EH, dbeta_EH)
    _run_backward(dy_NH, h_NH, stat_N2, offset_F, b_EH, gamma_EH, beta_EH, activate, dh_NH, y_NH, *sums, accumulate)


def _run_forward(
    h_NH: Tensor,
    offset_F: Tensor | None,
    b_EH: Tensor,
    gamma_EH: Tensor,
    beta_EH: Tensor,
    activate: bool,
    y_NH: Tensor,
    stat_N2: Tensor | None,
) -> None:
    check(h_NH, b_EH, gamma_EH, beta_EH)
    N, H = h_NH.shape
    h_NH, b_EH, gamma_EH, beta_EH = rows(h_NH), rows(b_EH), rows(gamma_EH), rows(beta_EH)
    experts = 0 if offset_F is None else b_EH.shape[0]
    plan = _forward_launch(N, H, experts)
    _forward[(plan.programs,)](
        h_NH,
        y_NH,
        b_EH,
        gamma_EH,
        beta_EH,
        stat_N2,
        offset_F,
        N,
        plan.chunk,
        h_NH.stride(0),
        y_NH.stride(0),
        b_EH.stride(0),
        gamma_EH.stride(0),
        beta_EH.stride(0),
        H=H,
        BLOCK=plan.block,
        R=plan.tile,
        E=experts,
        ACTIVE=activate,
        **plan.options,
    )


def _run_backward(
    dy_NH: Tensor,
    h_NH: Tensor,
    stat_N2: Tensor | None,
    offset_F: Tensor | None,
    b_EH: Tensor,
    gamma_EH: Tensor,
    beta_EH: Tensor,
    activate: bool,
    dh_NH: Tensor,
    y_NH: Tensor | None,
    db_EH: Tensor,
    dgamma_EH: Tensor,
    dbeta_EH: Tensor,
    accumulate: bool,
) -> None:
    check(dy_NH, h_NH, b_EH, gamma_EH, beta_EH)
    N, H = h_NH.shape
    dy_NH, h_NH, b_EH, gamma_EH, beta_EH = rows(dy_NH), rows(h_NH), rows(b_EH), rows(gamma_EH), rows(beta_EH)
    experts = 0 if offset_F is None else b_EH.shape[0]
    plan = _backward_launch(N, H, experts)
    part_C3H = torch.empty(plan.programs, 3, H, dtype=torch.float32, device=h_NH.device)
    _backward[(plan.programs,)](
        dy_NH,
        h_NH,
        dh_NH,
        y_NH,
        b_EH,
        gamma_EH,
        beta_EH,
        part_C3H,
        stat_N2,
        offset_F,
        N,
        plan.chunk,
        dy_NH.stride(0),
        h_NH.stride(0),
        dh_NH.stride(0),
        0 if y_NH is None else y_NH.stride(0),
        b_EH.stride(0),
        gamma_EH.stride(0),
        beta_EH.stride(0),
        H=H,
        BLOCK=plan.block,
        R=plan.tile,
        E=experts,
        ACTIVE=activate,
        **plan.options,
    )
    _add_up[(max(experts, 1), triton.cdiv(H, SLICE))](
        part_C3H,
        db_EH,
        dgamma_EH,
        dbeta_EH,
        offset_F,
        N,
        plan.chunk,
        db_EH.stride(0),
        dgamma_EH.stride(0),
        dbeta_EH.stride(0),
        H=H,
        SLICE=SLICE,
        DEEP=DEEP,
        E=experts,
        ACCUMULATE=accumulate,
        num_warps=4,
    )


@triton.jit
def _statistics(x_RH, column_1H, H: tl.constexpr, BLOCK: tl.constexpr):
    """Mean and rstd of each row, by two passes over registers: the mean, then the centred squares."""
    mean_R1 = tl.sum(x_RH, 1, keep_dims=True) * (1 / H)
    centred_RH = x_RH - mean_R1
    if H != BLOCK:
        centred_RH = tl.where(column_1H < H, centred_RH, 0.0)
    return mean_R1, tl.rsqrt(tl.sum(centred_RH * centred_RH, 1, keep_dims=True) * (1 / H) + EPS)


@triton.jit
def _inverse(x_RH, EXACT: tl.constexpr):
    """1/x. The square of 1/√x costs two instructions, a division five: worth it where the result is rounded anyway."""
    if EXACT:
        inverse_RH = 1.0 / x_RH
    else:
        root_RH = tl.rsqrt(x_RH)
        inverse_RH = root_RH * root_RH
    return inverse_RH


@triton.jit
def _gelu(n_RH, EXACT: tl.constexpr):
    """n·σ(2v)."""
    power_RH = n_RH * (BITS * TWICE + (BITS * CUBED) * n_RH * n_RH)
    return n_RH * _inverse(1.0 + tl.exp2(power_RH), EXACT)


@triton.jit
def _gelu_slope(n_RH, EXACT: tl.constexpr):
    """σ(2v), and the derivative of n·σ(2v), which is σ + σ·(1 − σ)·n·(2v)′/n. Far out σ is 0 or 1 in fp32, but n² or
    exp(−2v) may overflow, and 0·∞ is not a gradient. 1 − σ = exp(−2v)·σ keeps its digits, where they count."""
    square_RH = tl.minimum(n_RH * n_RH, 256.0)
    power_RH = n_RH * (BITS * TWICE + (BITS * CUBED) * square_RH)
    if EXACT:
        power_RH = tl.minimum(power_RH, 126.0)
    exp_RH = tl.exp2(power_RH)
    sigmoid_RH = _inverse(1.0 + exp_RH, EXACT)
    rest_RH = exp_RH * sigmoid_RH if EXACT else 1.0 - sigmoid_RH
    steep_RH = n_RH * (TWICE + (3 * CUBED) * square_RH)
    return sigmoid_RH, sigmoid_RH * (1.0 + rest_RH * steep_RH)


@triton.jit
def _vector(place_1H, inside_1H):
    """A parameter, the same for each row."""
    return tl.load(place_1H, mask=inside_1H, other=0.0).to(tl.float32)


# y = n·σ(2v), n = x̂·γ + β
@triton.jit(do_not_specialize=["N", "chunk"])
def _forward(
    h,
    y,
    b,
    gamma,
    beta,
    stat,
    offset,
    N,
    chunk,
    h_row,
    y_row,
    b_row,
    gamma_row,
    beta_row,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    R: tl.constexpr,
    E: tl.constexpr,
    ACTIVE: tl.constexpr,
):
    expert, first, end = span(tl.program_id(0), offset, N, chunk, E)
    if first >= end:
        return
    column_1H = tl.arange(0, BLOCK)[None, :]
    inside_1H = column_1H < H
    bias_1H = _vector(b + expert * b_row + column_1H, inside_1H)
    scale_1H = _vector(gamma + expert * gamma_row + column_1H, inside_1H)
    shift_1H = _vector(beta + expert * beta_row + column_1H, inside_1H)
    row_R1 = first + tl.arange(0, R)[:, None]
    coming_RH = tl.load(h + row_R1 * h_row + column_1H, mask=(row_R1 < end) & inside_1H, other=0.0)
    for _ in range(first, end, R):
        h_RH = coming_RH
        ahead_R1 = row_R1 + R
        coming_RH = tl.load(h + ahead_R1 * h_row + column_1H, mask=(ahead_R1 < end) & inside_1H, other=0.0)
        x_RH = h_RH.to(tl.float32) + bias_1H
        mean_R1, rstd_R1 = _statistics(x_RH, column_1H, H, BLOCK)
        if stat is not None:
            tl.store(stat + 2 * row_R1, mean_R1, mask=row_R1 < end)
            tl.store(stat + 2 * row_R1 + 1, rstd_R1, mask=row_R1 < end)
        n_RH = (x_RH - mean_R1) * rstd_R1 * scale_1H + shift_1H
        if ACTIVE:
            n_RH = _gelu(n_RH, h.dtype.element_ty == tl.float32)
        tl.store(y + row_R1 * y_row + column_1H, n_RH, mask=(row_R1 < end) & inside_1H)
        row_R1 = ahead_R1


# dn = dy·GELU′(n), dx̂ = dn·γ, dh = rstd·(dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂)); the chunk's Σ dh, Σ dn·x̂, Σ dn
@triton.jit(do_not_specialize=["N", "chunk"])
def _backward(
    dy,
    h,
    dh,
    y,
    b,
    gamma,
    beta,
    part,
    stat,
    offset,
    N,
    chunk,
    dy_row,
    h_row,
    dh_row,
    y_row,
    b_row,
    gamma_row,
    beta_row,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    R: tl.constexpr,
    E: tl.constexpr,
    ACTIVE: tl.constexpr,
):
    EXACT: tl.constexpr = h.dtype.element_ty == tl.float32
    pid = tl.program_id(0)
    expert, first, end = span(pid, offset, N, chunk, E)
    if first >= end:
        return
    column_1H = tl.arange(0, BLOCK)[None, :]
    inside_1H = column_1H < H
    bias_1H = _vector(b + expert * b_row + column_1H, inside_1H)
    scale_1H = _vector(gamma + expert * gamma_row + column_1H, inside_1H)
    shift_1H = _vector(beta + expert * beta_row + column_1H, inside_1H)
    db_RH = tl.zeros((1 if BLOCK >= WIDE else R, BLOCK), tl.float32)
    dgamma_RH = tl.zeros((1 if BLOCK >= WIDE else R, BLOCK), tl.float32)
    dbeta_RH = tl.zeros((1 if BLOCK >= WIDE else R, BLOCK), tl.float32)
    for start in tl.range(first, end, R, num_stages=STAGES):
        row_R1 = start + tl.arange(0, R)[:, None]
        inside_RH = (row_R1 < end) & inside_1H
        h_RH = tl.load(h + row_R1 * h_row + column_1H, mask=inside_RH, other=0.0)
        dn_RH = tl.load(dy + row_R1 * dy_row + column_1H, mask=inside_RH, other=0.0).to(tl.float32)
        x_RH = h_RH.to(tl.float32) + bias_1H
        if stat is None:
            mean_R1, rstd_R1 = _statistics(x_RH, column_1H, H, BLOCK)
        else:
            mean_R1 = tl.load(stat + 2 * row_R1, mask=row_R1 < end, other=0.0)
            rstd_R1 = tl.load(stat + 2 * row_R1 + 1, mask=row_R1 < end, other=0.0)
        xhat_RH = (x_RH - mean_R1) * rstd_R1  # as one multiply-add it would not be 0 where all numbers are equal
        y_RH = xhat_RH * scale_1H + shift_1H
        if ACTIVE:
            sigmoid_RH, slope_RH = _gelu_slope(y_RH, EXACT)
            y_RH = y_RH * sigmoid_RH
            dn_RH = dn_RH * slope_RH
        if y is not None:
            tl.store(y + row_R1 * y_row + column_1H, y_RH, mask=inside_RH)
        dgamma_RH += tl.sum(dn_RH * xhat_RH, 0, keep_dims=True) if BLOCK >= WIDE else dn_RH * xhat_RH
        dbeta_RH += tl.sum(dn_RH, 0, keep_dims=True) if BLOCK >= WIDE else dn_RH
        dxhat_RH = dn_RH * scale_1H
        both_RH2 = tl.join(dxhat_RH, dxhat_RH * xhat_RH)
        mean_R, along_R = tl.split(tl.sum(both_RH2, 1) * (1 / H))
        dh_RH = (dxhat_RH - mean_R[:, None] - xhat_RH * along_R[:, None]) * rstd_R1
        tl.store(dh + row_R1 * dh_row + column_1H, dh_RH, mask=inside_RH)
        db_RH += tl.sum(dh_RH, 0, keep_dims=True) if BLOCK >= WIDE else dh_RH
    column_H = tl.arange(0, BLOCK)
    part += pid.to(tl.int64) * (3 * H) + column_H
    tl.store(part, tl.sum(db_RH, 0), mask=column_H < H)
    tl.store(part + H, tl.sum(dgamma_RH, 0), mask=column_H < H)
    tl.store(part + 2 * H, tl.sum(dbeta_RH, 0), mask=column_H < H)


# Σ over the chunks of an expert
@triton.jit(do_not_specialize=["N", "chunk"])
def _add_up(
    part,
    db,
    dgamma,
    dbeta,
    offset,
    N,
    chunk,
    db_row,
    dgamma_row,
    dbeta_row,
    H: tl.constexpr,
    SLICE: tl.constexpr,
    DEEP: tl.constexpr,
    E: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    expert = tl.program_id(0)
    before, after = chunks_of(expert, offset, N, chunk, E)
    column_H = tl.program_id(1) * SLICE + tl.arange(0, SLICE)
    inside_H = column_H < H
    db_DH = tl.zeros((DEEP, SLICE), tl.float32)
    dgamma_DH = tl.zeros((DEEP, SLICE), tl.float32)
    dbeta_DH = tl.zeros((DEEP, SLICE), tl.float32)
    for start in range(before, after, DEEP):
        chunk_D1 = start + tl.arange(0, DEEP)[:, None]
        inside_DH = (chunk_D1 < after) & inside_H[None, :]
        part_DH = part + chunk_D1.to(tl.int64) * (3 * H) + column_H[None, :]
        db_DH += tl.load(part_DH, mask=inside_DH, other=0.0)
        dgamma_DH += tl.load(part_DH + H, mask=inside_DH, other=0.0)
        dbeta_DH += tl.load(part_DH + 2 * H, mask=inside_DH, other=0.0)
    expert = expert.to(tl.int64)
    _put(db + expert * db_row + column_H, tl.sum(db_DH, 0), inside_H, ACCUMULATE)
    _put(dgamma + expert * dgamma_row + column_H, tl.sum(dgamma_DH, 0), inside_H, ACCUMULATE)
    _put(dbeta + expert * dbeta_row + column_H, tl.sum(dbeta_DH, 0), inside_H, ACCUMULATE)


@triton.jit
def _put(place_H, sum_H, inside_H, ACCUMULATE: tl.constexpr):
    """Writes the sum, or adds it."""
    if ACCUMULATE:
        sum_H += tl.load(place_H, mask=inside_H, other=0.0)
    tl.store(place_H, sum_H, mask=inside_H)
