"""The experts' chains for narrow layers: a whole chain in one kernel each way. The reference is `ops/experts.py`.

A program takes M rows of one expert through all layers; a layer's row is held whole, so bias, LayerNorm and GELU need
no second pass. Two arrays [layers + 1, N, W] hold what `weights.py` makes the weight gradients of:

    act_0 = x,  act_i = h_{i−1}, which the backward turns into the layer's input;   dh_i, the gradient of product i
"""


# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradproof.kernels.shapes import Shape
from gradproof.kernels.triton import check, check_rows, many
from gradproof.kernels.triton.weights import add_up, product, weights
from gradproof.kernels.workspace import Workspace
from gradproof.ops import gelu, layernorm
from gradproof.ops.dispatch import DispatchPlan
from gradproof.ops.experts import Chain

WIDEST = 128
EPS = tl.constexpr(layernorm.EPS)
CUBIC = tl.constexpr(gelu.CUBIC)
TWICE = tl.constexpr(2 * gelu.SCALE)
NEGATED = tl.constexpr(-2 * gelu.SCALE / math.log(2))  # exp(−2v) = exp2(NEGATED·(n + a·n³))
PARTS = 8  # the most that an expert's rows are cut into for the weight gradients


def serves(chain: Chain) -> bool:
    """Chains of equal hidden widths up to 128, each layer with a GELU."""
    inner = set(chain.widths[1:-1])
    return len(inner) == 1 and max(chain.widths) <= WIDEST and all(chain.active)


class Saved(NamedTuple):
    act_LNW: Tensor


class ChainLayout(NamedTuple):
    """Where things are in a row of theta, and how rows are cut."""

    width: int  # W: all widths rounded up to one power of two
    tile: int  # M
    tiles: int
    parts: int  # S
    constants: dict[str, Any]


def _layout(N: int, experts: int, theta_EP: Tensor, chain: Chain) -> ChainLayout:
    if not serves(chain):
        raise ValueError(f"widths {chain.widths}: these kernels take equal hidden widths up to {WIDEST}")
    at, layers = chain.offsets, chain.layers
    later = at["linear.1.weight"] if layers > 1 else 0
    constants = dict(
        I=chain.widths[0],
        H=chain.widths[1],
        O=chain.widths[-1],
        LAYERS=layers,
        BIAS0=at["linear.0.bias"],
        GAMMA0=at["norm.0.weight"],
        BETA0=at["norm.0.bias"],
        W1=later,
        BIAS1=at["linear.1.bias"] if layers > 1 else 0,
        GAMMA1=at["norm.1.weight"] if layers > 1 else 0,
        BETA1=at["norm.1.bias"] if layers > 1 else 0,
        STEP=at["linear.2.weight"] - later if layers > 1 else 0,
        WLAST=at[f"linear.{layers}.weight"],
        BLAST=at[f"linear.{layers}.bias"],
        W=max(16, triton.next_power_of_2(max(chain.widths))),
        E=experts,
    )
    _, tile, parts = _cut(N, experts)
    return ChainLayout(constants["W"], tile, triton.cdiv(N, tile) + experts, parts, constants)


def launch(shape: Shape) -> dict[str, Any]:
    """What a call branches on."""
    N, tile, parts = _cut(shape.rows * shape.k, shape.experts)
    return {"tile": tile, "parts": parts, "tiles": many(triton.cdiv(N, tile), 1)}


def _cut(N: int, experts: int) -> tuple[int, int, int]:
    """N, the rows of a tile, and the parts of an expert's."""
    return N, 64 if N >= 64 * 132 else 16, max(1, min(PARTS, N // (128 * experts)))


def forward(
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: DispatchPlan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Saved]:
    """y_NO in fp32."""
    check_rows(theta_EP, narrow_EP)
    x_NI = x_NI.contiguous()
    check(x_NI, theta_EP)
    take = (workspace or Workspace()).take
    N, matrices_EP = x_NI.shape[0], theta_EP if narrow_EP is None else narrow_EP
    layout = _layout(N, theta_EP.shape[0], theta_EP, chain)
    act_LNW = take("act", (chain.layers + 1, N, layout.width), matrices_EP)
    y_NO = take("y", (N, chain.widths[-1]), theta_EP)
    _forward[(layout.tiles,)](
        x_NI,
        matrices_EP,
        theta_EP,
        act_LNW,
        y_NO,
        plan.offset_F,
        N,
        x_NI.stride(0),
        matrices_EP.stride(0),
        theta_EP.stride(0),
        M=layout.tile,
        num_warps=4,
        **layout.constants,
    )
    return y_NO, Saved(act_LNW)


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
    N, matrices_EP = dy_NO.shape[0], theta_EP if narrow_EP is None else narrow_EP
    dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else out_EP
    experts, P = theta_EP.shape
    layout = _layout(N, experts, theta_EP, chain)
    dh_LNW = take("dh", (chain.layers + 1, N, layout.width), matrices_EP)
    sums_CLW = take("sums", (layout.tiles, 3 * chain.layers + 1, layout.width), theta_EP)
    dx_NI = take("dx", (N, chain.widths[0]), theta_EP)
    for i, width in enumerate(chain.widths[1:-1]):
        workspace.show("h", i, saved.act_LNW[i + 1, :, :width])
    dy_NO = dy_NO.contiguous()
    _backward[(layout.tiles,)](
        dy_NO,
        matrices_EP,
        theta_EP,
        saved.act_LNW,
        dh_LNW,
        sums_CLW,
        dx_NI,
        plan.offset_F,
        N,
        matrices_EP.stride(0),
        theta_EP.stride(0),
        M=layout.tile,
        WANT_DX=want_dx,
        num_warps=4,
        **layout.constants,
    )
    part_SEP = take("parts", (layout.parts, experts, P), theta_EP)
    weights[(experts, chain.layers + 1, layout.parts)](
        saved.act_LNW,
        dh_LNW,
        part_SEP,
        plan.offset_F,
        N,
        P,
        S=layout.parts,
        M=64,
        num_warps=8,
        **layout.constants,
    )
    add_up[(experts, chain.layers + 1, triton.cdiv(layout.width, 8))](
        part_SEP,
        sums_CLW,
        dtheta_EP,
        plan.offset_F,
        P,
        dtheta_EP.stride(0),
        S=layout.parts,
        M=layout.tile,
        ROWS=8,
        ACCUMULATE=accumulate,
        num_warps=4,
        **layout.constants,
    )
    for i, width in reversed(list(enumerate(chain.widths[1:-1]))):
        workspace.show("x", i, saved.act_LNW[i + 1, :, :width])
        workspace.show("dh", i, dh_LNW[i, :, :width])
    return (dx_NI if want_dx else None), dtheta_EP


@triton.jit
def _tile(offset, tile, M: tl.constexpr, E: tl.constexpr):
    """The expert of a tile, and its rows start : end; no rows for a surplus tile."""
    expert = 0
    start = tl.load(offset) * 0
    end = start
    first = tile * 0
    for e in tl.static_range(E):
        from_row = tl.load(offset + e)
        to_row = tl.load(offset + e + 1)
        tiles = ((to_row - from_row + M - 1) // M).to(tl.int32)
        inside = (tile >= first) & (tile < first + tiles)
        expert = tl.where(inside, e, expert)
        start = tl.where(inside, from_row + (tile - first) * M, start)
        end = tl.where(inside, to_row, end)
        first += tiles
    return expert, start, end


@triton.jit
def _matrix(weights, at: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, column_W):
    """w_OI, zero outside."""
    inside = (column_W < outputs)[:, None] & (column_W < inputs)[None, :]
    return tl.load(weights + at + column_W[:, None] * inputs + column_W[None, :], mask=inside, other=0.0)


@triton.jit
def _transposed(weights, at: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, column_W):
    """w_IO, zero outside."""
    inside = (column_W < inputs)[:, None] & (column_W < outputs)[None, :]
    return tl.load(weights + at + column_W[None, :] * inputs + column_W[:, None], mask=inside, other=0.0)


@triton.jit
def _normed(h, vectors, bias: tl.constexpr, gamma: tl.constexpr, beta: tl.constexpr, column_W, H: tl.constexpr):
    """x̂, rstd and n of a tile whose rows are whole."""
    inside_W = column_W < H
    b = tl.load(vectors + bias + column_W, mask=inside_W, other=0.0)
    g = tl.load(vectors + gamma + column_W, mask=inside_W, other=0.0)
    shift = tl.load(vectors + beta + column_W, mask=inside_W, other=0.0)
    x = h.to(tl.float32) + b[None, :]
    mean = tl.sum(tl.where(inside_W[None, :], x, 0.0), 1) / H
    centred = tl.where(inside_W[None, :], x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / H + EPS)
    xhat = centred * rstd[:, None]
    return xhat, rstd, xhat * g[None, :] + shift[None, :], g


@triton.jit
def _gelu_sigmoid(n):
    """σ(2v)."""
    return 1.0 / (1.0 + tl.exp2((n + n * n * n * CUBIC) * NEGATED))


@triton.jit
def _forward(
    x,
    matrices,
    theta,
    act,
    y,
    offset,
    N,
    x_row,
    matrices_row,
    theta_row,
    M: tl.constexpr,
    I: tl.constexpr,
    H: tl.constexpr,
    O: tl.constexpr,
    LAYERS: tl.constexpr,
    BIAS0: tl.constexpr,
    GAMMA0: tl.constexpr,
    BETA0: tl.constexpr,
    W1: tl.constexpr,
    BIAS1: tl.constexpr,
    GAMMA1: tl.constexpr,
    BETA1: tl.constexpr,
    STEP: tl.constexpr,
    WLAST: tl.constexpr,
    BLAST: tl.constexpr,
    W: tl.constexpr,
    E: tl.constexpr,
):
    expert, start, end = _tile(offset, tl.program_id(0), M, E)
    if start == end:
        return
    row_M = start + tl.arange(0, M)
    real_M1 = (row_M < end)[:, None]
    column_W = tl.arange(0, W)
    dtype = act.dtype.element_ty
    weights = matrices + expert.to(tl.int64) * matrices_row
    vectors = theta + expert.to(tl.int64) * theta_row
    place_MW = row_M[:, None] * W + column_W[None, :]
    plane = (start * 0 + N) * W  # in 64 bits, as offsets are

    a_MW = tl.load(x + row_M[:, None] * x_row + column_W[None, :], mask=real_M1 & (column_W < I)[None, :], other=0.0)
    a_MW = a_MW.to(dtype)
    tl.store(act + place_MW, a_MW, mask=real_M1)
    for i in tl.static_range(LAYERS):
        w_IH = _transposed(weights, 0 if i == 0 else W1 + (i - 1) * STEP, I if i == 0 else H, H, column_W)
        h_MW = product(a_MW, w_IH).to(dtype)
        tl.store(act + (i + 1) * plane + place_MW, h_MW, mask=real_M1)
        _, _, n_MW, _ = _normed(
            h_MW,
            vectors,
            BIAS0 if i == 0 else BIAS1 + (i - 1) * STEP,
            GAMMA0 if i == 0 else GAMMA1 + (i - 1) * STEP,
            BETA0 if i == 0 else BETA1 + (i - 1) * STEP,
            column_W,
            H,
        )
        a_MW = (n_MW * _gelu_sigmoid(n_MW)).to(dtype)
    w_HO = _transposed(weights, WLAST, H, O, column_W)
    b_O = tl.load(vectors + BLAST + column_W, mask=column_W < O, other=0.0)
    y_MO = product(a_MW, w_HO) + b_O[None, :]
    tl.store(y + row_M[:, None] * O + column_W[None, :], y_MO, mask=real_M1 & (column_W < O)[None, :])


@triton.jit
def _backward(
    dy,
    matrices,
    theta,
    act,
    dh,
    sums,
    dx,
    offset,
    N,
    matrices_row,
    theta_row,
    M: tl.constexpr,
    WANT_DX: tl.constexpr,
    I: tl.constexpr,
    H: tl.constexpr,
    O: tl.constexpr,
    LAYERS: tl.constexpr,
    BIAS0: tl.constexpr,
    GAMMA0: tl.constexpr,
    BETA0: tl.constexpr,
    W1: tl.constexpr,
    BIAS1: tl.constexpr,
    GAMMA1: tl.constexpr,
    BETA1: tl.constexpr,
    STEP: tl.constexpr,
    WLAST: tl.constexpr,
    BLAST: tl.constexpr,
    W: tl.constexpr,
    E: tl.constexpr,
):
    tile = tl.program_id(0)
    expert, start, end = _tile(offset, tile, M, E)
    if start == end:
        return
    row_M = start + tl.arange(0, M)
    real_M1 = (row_M < end)[:, None]
    column_W = tl.arange(0, W)
    dtype = act.dtype.element_ty
    weights = matrices + expert.to(tl.int64) * matrices_row
    vectors = theta + expert.to(tl.int64) * theta_row
    place_MW = row_M[:, None] * W + column_W[None, :]
    plane = (start * 0 + N) * W  # in 64 bits, as offsets are
    own = sums + tile.to(tl.int64) * (3 * LAYERS + 1) * W + column_W

    dy_MO = tl.load(dy + row_M[:, None] * O + column_W[None, :], mask=real_M1 & (column_W < O)[None, :], other=0.0)
    tl.store(own + 3 * LAYERS * W, tl.sum(dy_MO, 0))
    dh_MW = dy_MO.to(dtype)
    tl.store(dh + LAYERS * plane + place_MW, dh_MW, mask=real_M1)
    w_OH = _matrix(weights, WLAST, H, O, column_W)
    for back in tl.static_range(LAYERS):
        da_MW = product(dh_MW, w_OH).to(dtype).to(tl.float32)
        i = LAYERS - 1 - back
        at = act + (i + 1) * plane + place_MW
        h_MW = tl.load(at, mask=real_M1, other=0.0)
        xhat_MW, rstd_M, n_MW, gamma_W = _normed(
            h_MW,
            vectors,
            BIAS0 if back == LAYERS - 1 else BIAS1 + (LAYERS - 2 - back) * STEP,
            GAMMA0 if back == LAYERS - 1 else GAMMA1 + (LAYERS - 2 - back) * STEP,
            BETA0 if back == LAYERS - 1 else BETA1 + (LAYERS - 2 - back) * STEP,
            column_W,
            H,
        )
        s_MW = _gelu_sigmoid(n_MW)
        tl.store(at, (n_MW * s_MW).to(dtype), mask=real_M1)
        # Beyond |n| = 10 the slope is 0 or 1 in every precision, and n² may overflow there.
        m_MW = tl.minimum(tl.maximum(n_MW, -10.0), 10.0)
        slope_MW = s_MW + m_MW * s_MW * (1 - s_MW) * (m_MW * m_MW * (3 * CUBIC) + 1) * TWICE
        dn_MW = tl.where(real_M1, da_MW * slope_MW, 0.0)
        dxhat_MW = dn_MW * gamma_W[None, :]
        mean_M = tl.sum(dxhat_MW, 1) / H
        along_M = tl.sum(dxhat_MW * xhat_MW, 1) / H
        wide_MW = rstd_M[:, None] * (dxhat_MW - mean_M[:, None] - xhat_MW * along_M[:, None])
        wide_MW = tl.where(real_M1 & (column_W < H)[None, :], wide_MW, 0.0)
        tl.store(own + 3 * i * W, tl.sum(wide_MW, 0))
        tl.store(own + (3 * i + 1) * W, tl.sum(dn_MW * xhat_MW, 0))
        tl.store(own + (3 * i + 2) * W, tl.sum(dn_MW, 0))
        dh_MW = wide_MW.to(dtype)
        tl.store(dh + i * plane + place_MW, dh_MW, mask=real_M1)
        w_OH = _matrix(
            weights,
            0 if back == LAYERS - 1 else W1 + (LAYERS - 2 - back) * STEP,
            I if back == LAYERS - 1 else H,
            H,
            column_W,
        )
    if WANT_DX:
        dx_MI = product(dh_MW, w_OH)
        tl.store(dx + row_M[:, None] * I + column_W[None, :], dx_MI, mask=real_M1 & (column_W < I)[None, :])
