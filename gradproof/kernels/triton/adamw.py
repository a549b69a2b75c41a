"""AdamW over the flat buffers in one pass. The reference is `ops/adamw.py`.

    g ← g/divisor;  p ← p(1 − lr·wd) where decayed;  m ← m + (1 − β₁)(g − m),  v ← v + (1 − β₂)(g² − v)
    p ← p − lr/(1 − β₁ᵗ)·m/(√v/√(1 − β₂ᵗ) + eps)

Learning rate, step count, divisor and the flag to skip are read from the device. The narrow copy of the parameters is
written with them.
"""

# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradproof.kernels.shapes import Shape
from gradproof.kernels.triton import MULTIPROCESSORS, check, many
from gradproof.ops.adamw import BETAS, DECAY, EPS, out_of_place
from gradproof.params import ALIGNMENT

LINES = 16  # of ALIGNMENT elements, for a program of the update
BLOCK = 2048  # elements that a program adds up at a time
PROGRAMS = 16 * MULTIPROCESSORS


def step(
    p_P: Tensor,
    g_P: Tensor,
    m_P: Tensor,
    v_P: Tensor,
    decayed_B: Tensor,
    count: Tensor,
    rate: Tensor,
    divisor: Tensor | None = None,
    skip: Tensor | None = None,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = DECAY,
    narrow_P: Tensor | None = None,
) -> None:
    """Step number `count`, in place, or nothing where `skip` > 0. `decayed_B` has a flag for every 64 elements; g_P is
    only read. `narrow_P` is a copy of the parameters that follows them."""
    check(p_P, g_P, m_P, v_P, count, rate)
    P = p_P.numel()
    if decayed_B.numel() * ALIGNMENT < P:
        raise ValueError(f"{P} parameters need a flag for every {ALIGNMENT}; decayed_B has {decayed_B.numel()}")
    _step[(triton.cdiv(P, LINES * ALIGNMENT),)](
        p_P,
        g_P,
        m_P,
        v_P,
        narrow_P,
        decayed_B,
        count,
        rate,
        divisor,
        skip,
        P,
        LOG_1=math.log(betas[0]) if betas[0] else None,
        LOG_2=math.log(betas[1]) if betas[1] else None,
        REST_1=1 - betas[0],
        REST_2=1 - betas[1],
        EPS=eps,
        DECAY=weight_decay,
        LINES=LINES,
        ALIGNMENT=ALIGNMENT,
        num_warps=4,
    )


def launch(shape: Shape) -> dict[str, Any]:
    """What a call branches on: whether all blocks are whole, and how often a program of the norm goes on."""
    P = shape.parameters
    turns = triton.cdiv(P, BLOCK * PROGRAMS)
    return {"whole": P % (LINES * ALIGNMENT) == 0, "turns": many(turns, 1), "far": P >= 2**31}


forward = out_of_place(step)


def norm(g_P: Tensor) -> Tensor:
    """‖g‖, in fp32; the sum's parts are added in float64."""
    check(g_P)
    P = g_P.numel()
    chunk = max(1, triton.cdiv(P, BLOCK * PROGRAMS)) * BLOCK
    programs = max(1, triton.cdiv(P, chunk))
    part_C = torch.empty(programs, dtype=torch.float32, device=g_P.device)
    total = torch.empty((), dtype=torch.float32, device=g_P.device)
    _squares[(programs,)](g_P, part_C, P, chunk, BLOCK=BLOCK, num_warps=8)
    _total[(1,)](part_C, total, programs, DEEP=triton.next_power_of_2(PROGRAMS), num_warps=4)
    return total


@triton.jit
def _correction(count, LOG: tl.constexpr):
    """1 − βᵗ, in float64: at the first steps little is left of 1."""
    if LOG is None:
        rest = tl.full((), 1.0, tl.float64)
    else:
        rest = 1.0 - tl.exp(count.to(tl.float64) * LOG)
    return rest


# p, m, v of a block, after the step
@triton.jit
def _step(
    p,
    g,
    m,
    v,
    narrow,
    decayed,
    count,
    rate,
    divisor,
    skip,
    P,
    LOG_1: tl.constexpr,
    LOG_2: tl.constexpr,
    REST_1: tl.constexpr,
    REST_2: tl.constexpr,
    EPS: tl.constexpr,
    DECAY: tl.constexpr,
    LINES: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    line_L1 = (tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES))[:, None]
    # Four at a time for all, or the narrow store would want eight and the others a way through shared memory.
    at_LA = tl.max_contiguous(line_L1 * ALIGNMENT + tl.arange(0, ALIGNMENT)[None, :], [1, 4])
    inside_LA = at_LA < P
    g_LA = tl.load(g + at_LA, mask=inside_LA, other=0.0).to(tl.float32)
    m_LA = tl.load(m + at_LA, mask=inside_LA, other=0.0)
    v_LA = tl.load(v + at_LA, mask=inside_LA, other=0.0)
    p_LA = tl.load(p + at_LA, mask=inside_LA, other=0.0)
    lr = tl.load(rate).to(tl.float32)
    steps = tl.load(count)
    size = (lr.to(tl.float64) / _correction(steps, LOG_1)).to(tl.float32)
    root = tl.sqrt(_correction(steps, LOG_2)).to(tl.float32)
    if divisor is not None:
        g_LA = tl.div_rn(g_LA, tl.load(divisor).to(tl.float32))
    if DECAY != 0:
        flag_L1 = tl.load(decayed + line_L1, mask=line_L1 * ALIGNMENT < P, other=0)
        p_LA = tl.where(flag_L1 != 0, p_LA * (1.0 - lr * DECAY), p_LA)
    m_LA += REST_1 * (g_LA - m_LA)
    v_LA += REST_2 * (g_LA * g_LA - v_LA)
    # Rounded as torch does: the quick root and quotient err by an ulp or two in one direction, and a training adds up.
    p_LA -= tl.div_rn(size * m_LA, tl.div_rn(tl.sqrt_rn(v_LA), root) + EPS)
    if skip is not None:
        inside_LA = at_LA < tl.where(tl.load(skip) > 0, 0, P)
    tl.store(m + at_LA, m_LA, mask=inside_LA)
    tl.store(v + at_LA, v_LA, mask=inside_LA)
    tl.store(p + at_LA, p_LA, mask=inside_LA)
    if narrow is not None:
        tl.store(narrow + at_LA, p_LA, mask=inside_LA)


# Σ g² of a chunk
@triton.jit(do_not_specialize=["chunk"])
def _squares(g, part, P, chunk, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    first = pid.to(tl.int64) * chunk
    end = tl.minimum(first + chunk, P)
    sum_B = tl.zeros((BLOCK,), tl.float32)
    for start in range(first, end, BLOCK):
        at_B = start + tl.arange(0, BLOCK)
        g_B = tl.load(g + at_B, mask=at_B < end, other=0.0).to(tl.float32)
        sum_B += g_B * g_B
    tl.store(part + pid, tl.sum(sum_B, 0))


# the root of Σ over the chunks
@triton.jit(do_not_specialize=["chunks"])
def _total(part, total, chunks, DEEP: tl.constexpr):
    chunk_D = tl.arange(0, DEEP)
    part_D = tl.load(part + chunk_D, mask=chunk_D < chunks, other=0.0).to(tl.float64)
    tl.store(total, tl.sqrt(tl.sum(part_D, 0)).to(tl.float32))
