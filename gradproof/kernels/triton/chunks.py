"""Cuts rows into chunks, one per program.

Rows are sorted by expert, expert e has rows offset[e] : offset[e + 1]. No chunk has rows of two experts, so each one's
last may be short. Without experts (E = 0) all N rows are one's.
"""

# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from gradproof.kernels.triton import MULTIPROCESSORS


class Launch(NamedTuple):
    """How the rows are cut up, and the compiler's options."""

    block: int  # the width, rounded up to a power of two
    tile: int  # R: rows at a time
    chunk: int  # rows of a program
    programs: int
    options: dict[str, int]


def cut(N: int, experts: int, block: int, tile: int, warps: int, options: dict[str, int], resident: int) -> Launch:
    """One program for each that fits when `resident` warps are on a multiprocessor. Each expert's last chunk may be
    short, so there are up to E more than N/chunk."""
    programs = MULTIPROCESSORS * resident // warps
    chunk = max(1, triton.cdiv(N, tile * max(programs - experts, MULTIPROCESSORS))) * tile
    return Launch(block, tile, chunk, triton.cdiv(N, chunk) + experts, {"num_warps": warps, **options})


@triton.jit
def span(pid, offset, N, chunk, E: tl.constexpr):
    """The expert and the rows first : end of program pid; none where it is one too many."""
    expert = tl.full((), 0, tl.int64)
    first = pid.to(tl.int64) * chunk
    end = tl.minimum(first + chunk, N)
    if E > 0:
        end = tl.full((), 0, tl.int64)
        before = 0  # chunks of the experts before this one
        start = tl.load(offset)
        for e in tl.static_range(E):
            stop = tl.load(offset + e + 1)
            after = before + ((stop - start).to(tl.int32) + chunk - 1) // chunk
            mine = (pid >= before) & (pid < after)
            expert = tl.where(mine, e, expert)
            first = tl.where(mine, start + (pid - before).to(tl.int64) * chunk, first)
            end = tl.where(mine, tl.minimum(first + chunk, stop), end)
            before = after
            start = stop
    return expert, first, end


@triton.jit
def chunks_of(expert, offset, N, chunk, E: tl.constexpr):
    """The chunks before : after of an expert: the programs to which `span` gives its rows."""
    before = 0
    after = (N + chunk - 1) // chunk
    if E > 0:
        end = 0
        start = tl.load(offset)
        for e in tl.static_range(E):
            stop = tl.load(offset + e + 1)
            next = end + ((stop - start).to(tl.int32) + chunk - 1) // chunk
            before = tl.where(e == expert, end, before)
            after = tl.where(e == expert, next, after)
            end = next
            start = stop
    return before, after
