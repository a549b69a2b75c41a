"""The parameters' gradients of narrow chains, from what `experts.py` keeps of the rows, [layers + 1, N, W] each:

    dW_i = dh_iᵀ act_i over the rows of each expert, cut into S parts that are added up in order

The vectors' are sums over tiles of rows, which its backward has made; they are added up beside.
"""

# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def product(a, b):
    """a b, accumulated in fp32; fp32 operands in full precision."""
    if INTERPRETED:  # the interpreter keeps bf16 as integers, and multiplies those
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def weights(
    act,
    dh,
    part,
    offset,
    N,
    P,
    S: tl.constexpr,
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
    """One part of the rows of one expert in one layer: its share of dW, in the place that it has in theta."""
    expert = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1)
    part_id = tl.program_id(2)
    from_row = tl.load(offset + expert)
    to_row = tl.load(offset + expert + 1)
    count = to_row - from_row
    start = from_row + count * part_id // S
    end = from_row + count * (part_id + 1) // S
    column_W = tl.arange(0, W)
    plane = (from_row * 0 + N) * W
    total = tl.zeros((W, W), dtype=tl.float32)
    for row in range(start, end, M):
        row_M = row + tl.arange(0, M)
        real_M = row_M < end
        place_MW = layer * plane + row_M[:, None] * W + column_W[None, :]
        a_MW = tl.load(act + place_MW, mask=real_M[:, None], other=0.0)
        d_WM = tl.load(dh + layer * plane + row_M[None, :] * W + column_W[:, None], mask=real_M[None, :], other=0.0)
        total += product(d_WM, a_MW)
    inputs = tl.where(layer == 0, I, H)
    outputs = tl.where(layer == LAYERS, O, H)
    at = tl.where(layer == 0, 0, tl.where(layer == LAYERS, WLAST, W1 + (layer - 1) * STEP))
    out = part + (part_id * E + expert) * P + at
    inside = (column_W < outputs)[:, None] & (column_W < inputs)[None, :]
    tl.store(out + column_W[:, None] * inputs + column_W[None, :], total, mask=inside)


@triton.jit
def add_up(
    part,
    sums,
    dtheta,
    offset,
    P,
    dtheta_row,
    S: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
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
    """The parts of some rows of a matrix, added up in order; the first program of a layer does its vectors too."""
    expert = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1)
    column_W = tl.arange(0, W)
    inputs = tl.where(layer == 0, I, H)
    outputs = tl.where(layer == LAYERS, O, H)
    at = tl.where(layer == 0, 0, tl.where(layer == LAYERS, WLAST, W1 + (layer - 1) * STEP))
    out = dtheta + expert * dtheta_row

    row_R = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inside = (row_R < outputs)[:, None] & (column_W < inputs)[None, :]
    place = at + row_R[:, None] * inputs + column_W[None, :]
    total = tl.zeros((ROWS, W), dtype=tl.float32)
    for s in tl.static_range(S):
        total += tl.load(part + (s * E + expert) * P + place, mask=inside, other=0.0)
    if ACCUMULATE:
        total += tl.load(out + place, mask=inside, other=0.0)
    tl.store(out + place, total, mask=inside)

    if tl.program_id(2) == 0:
        first = 0
        for e in tl.static_range(E):
            tiles = ((tl.load(offset + e + 1) - tl.load(offset + e) + M - 1) // M).to(tl.int32)
            first += tl.where(e < expert, tiles, 0)
        last = first + ((tl.load(offset + expert + 1) - tl.load(offset + expert) + M - 1) // M).to(tl.int32)
        b = tl.zeros((W,), dtype=tl.float32)
        g = tl.zeros((W,), dtype=tl.float32)
        shift = tl.zeros((W,), dtype=tl.float32)
        inside_W = column_W < outputs
        normed_W = inside_W & (column_W * 0 + layer < LAYERS)
        for tile in range(first, last):
            own = sums + ((expert * 0 + tile) * (3 * LAYERS + 1) + 3 * layer) * W + column_W
            b += tl.load(own)
            g += tl.load(own + W, mask=normed_W, other=0.0)
            shift += tl.load(own + 2 * W, mask=normed_W, other=0.0)
        later = (layer - 1) * STEP
        bias = tl.where(layer == 0, BIAS0, tl.where(layer == LAYERS, BLAST, BIAS1 + later))
        gamma = tl.where(layer == 0, GAMMA0, GAMMA1 + later)
        beta = tl.where(layer == 0, BETA0, BETA1 + later)
        if ACCUMULATE:
            b += tl.load(out + bias + column_W, mask=inside_W, other=0.0)
            g += tl.load(out + gamma + column_W, mask=normed_W, other=0.0)
            shift += tl.load(out + beta + column_W, mask=normed_W, other=0.0)
        tl.store(out + bias + column_W, b, mask=inside_W)
        tl.store(out + gamma + column_W, g, mask=normed_W)
        tl.store(out + beta + column_W, shift, mask=normed_W)
