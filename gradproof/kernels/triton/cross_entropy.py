"""Cross-entropy of logits against class indices. The reference is `ops/cross_entropy.py`.

    L = Σ_t w_t·nll_t/W,  nll_t = log Σ_c exp(z_tc − max) − (z_ty − max),  w_t = class weight of y_t or 1
    dz = dL·w_t/W·(softmax(z_t) − onehot(y_t))

A program has a block of rows and writes its Σ w·nll and Σ w; one program more adds them up, in order, and divides.
Where one block holds all rows, it does so itself.
"""

# Triton's annotations are those of Python, not of its own language.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradproof.kernels.shapes import Shape
from gradproof.kernels.triton import check, many, rows
from gradproof.ops import cross_entropy as reference
from gradproof.ops.cross_entropy import count

__all__ = ["WIDEST", "Saved", "backward", "count", "forward"]

WIDEST = 1024
DEEP = 256  # parts that the last program reads at a time


class Saved(NamedTuple):
    class_weight_C: Tensor | None
    total: Tensor  # W, in fp32
    ignore: int | None


def _tile(C: int) -> tuple[int, int]:
    """Rows of a program, and C rounded up to a power of two."""
    if not 1 <= C <= WIDEST:
        raise ValueError(f"C = {C} classes: the kernel holds whole rows, of 1 to {WIDEST} logits")
    block = triton.next_power_of_2(C)
    return min(256, 8192 // block), block


def launch(shape: Shape) -> dict[str, Any]:
    """What a call branches on."""
    return {"programs": many(triton.cdiv(shape.tokens, _tile(max(shape.chain.widths[-1], 2))[0]), DEEP)}


def forward(
    z_TC: Tensor,
    target_T: Tensor,
    class_weight_C: Tensor | None = None,
    total: Tensor | float | None = None,
    ignore: int | None = None,
) -> tuple[Tensor, Saved]:
    """The loss. Refuses a target outside 0..C−1 that is not `ignore`: on the device by an assertion that nothing waits
    for."""
    check(z_TC)
    T, C = z_TC.shape
    if not z_TC.is_cuda or T == 0 or target_T.shape != (T,) or target_T.dtype != torch.int64:
        reference.check_target(z_TC, target_T, ignore)
    z_TC, (tile, block) = rows(z_TC), _tile(C)
    blocks = triton.cdiv(T, tile)
    loss, divisor, fine = z_TC.new_empty(()), *z_TC.new_empty(2, dtype=torch.float32).unbind(0)
    part_B3 = torch.empty(blocks, 3, dtype=torch.float32, device=z_TC.device)
    if isinstance(total, Tensor):
        total = total.float() if total.device == z_TC.device else float(total)
    given = dict(TOTAL="device" if isinstance(total, Tensor) else "none" if total is None else "host")
    total = 0.0 if total is None else total if isinstance(total, Tensor) else float(total)
    class_weight_C = None if class_weight_C is None else class_weight_C.contiguous()
    _forward[(blocks,)](
        z_TC,
        target_T.contiguous(),
        class_weight_C,
        part_B3,
        loss,
        divisor,
        fine,
        total,
        T,
        Z_ROW=z_TC.stride(0),
        C=C,
        R=tile,
        BLOCK=block,
        ALONE=blocks == 1,
        IGNORE=ignore,
        **given,
        num_warps=8,
    )
    if blocks != 1:
        _add_up[(1,)](part_B3, loss, divisor, fine, total, blocks, DEEP=DEEP, **given, num_warps=4)
    if z_TC.is_cuda:
        torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
            fine, f"a target is out of range: the classes are 0..{C - 1}"
        )
    return loss, Saved(class_weight_C, divisor, ignore)


def backward(dloss: Tensor, saved: Saved, z_TC: Tensor, target_T: Tensor) -> Tensor:
    """Returns dz_TC."""
    check(z_TC)
    z_TC, (T, C) = rows(z_TC), z_TC.shape
    tile, block = _tile(C)
    dz_TC = torch.empty(T, C, dtype=z_TC.dtype, device=z_TC.device)
    _backward[(triton.cdiv(T, tile),)](
        dloss,
        z_TC,
        target_T.contiguous(),
        saved.class_weight_C,
        saved.total,
        dz_TC,
        T,
        Z_ROW=z_TC.stride(0),
        C=C,
        R=tile,
        BLOCK=block,
        IGNORE=saved.ignore,
        num_warps=8,
    )
    return dz_TC


@triton.jit
def _last(sum_, weight, bad, loss, divisor, fine, total, TOTAL: tl.constexpr):
    """L = Σ w·nll/W, and 1 where every target is in range."""
    if TOTAL == "device":
        weight = tl.load(total)
    if TOTAL == "host":
        weight = total
    weight = tl.where(weight == 0, 1.0, weight)  # no row has any weight: neither loss nor gradient
    tl.store(divisor, weight)
    tl.store(loss, sum_ / weight)
    tl.store(fine, tl.where(bad > 0, 0.0, 1.0))


@triton.jit
def _weights(target_R1, inside_R1, class_weight, C: tl.constexpr, IGNORE: tl.constexpr):
    """w_t; 0 for a target that is ignored, or out of range, which is refused elsewhere."""
    if IGNORE is not None:
        inside_R1 = inside_R1 & (target_R1 != IGNORE)
    weight_R1 = inside_R1.to(tl.float32)
    if class_weight is not None:
        legal_R1 = inside_R1 & (target_R1 >= 0) & (target_R1 < C)
        weight_R1 = tl.load(class_weight + target_R1, mask=legal_R1, other=0.0).to(tl.float32)
    return weight_R1


# Σ w·nll, Σ w and the targets out of range in this block
@triton.jit(do_not_specialize=["T"])
def _forward(
    z,
    target,
    class_weight,
    part,
    loss,
    divisor,
    fine,
    total,
    T,
    Z_ROW: tl.constexpr,
    C: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
    ALONE: tl.constexpr,
    TOTAL: tl.constexpr,
    IGNORE: tl.constexpr,
):
    pid = tl.program_id(0)
    row_R1 = (pid.to(tl.int64) * R + tl.arange(0, R))[:, None]
    class_1C = tl.arange(0, BLOCK)[None, :]
    inside_RC = (row_R1 < T) & (class_1C < C)
    z_RC = tl.load(z + row_R1 * Z_ROW + class_1C, mask=inside_RC, other=0.0).to(tl.float32)
    z_RC = tl.where(class_1C < C, z_RC, float("-inf"))
    target_R1 = tl.load(target + row_R1, mask=row_R1 < T, other=0)
    below_RC = z_RC - tl.max(z_RC, 1)[:, None]
    chosen_R = tl.sum(tl.where(class_1C == target_R1, below_RC, 0.0), 1)
    nll_R1 = (tl.log(tl.sum(tl.exp(below_RC), 1)) - chosen_R)[:, None]
    weight_R1 = _weights(target_R1, row_R1 < T, class_weight, C, IGNORE)
    sum_ = tl.sum(tl.sum(tl.where(row_R1 < T, weight_R1 * nll_R1, 0.0), 1), 0)
    weight = tl.sum(tl.sum(weight_R1, 1), 0)
    bad_R1 = (target_R1 < 0) | (target_R1 >= C)
    if IGNORE is not None:
        bad_R1 = bad_R1 & (target_R1 != IGNORE)
    bad = tl.sum(tl.sum(bad_R1.to(tl.float32), 1), 0)
    if ALONE:
        _last(sum_, weight, bad, loss, divisor, fine, total, TOTAL)
    else:
        tl.store(part + pid * 3, sum_)
        tl.store(part + pid * 3 + 1, weight)
        tl.store(part + pid * 3 + 2, bad)


# The sums over all blocks
@triton.jit(do_not_specialize=["blocks"])
def _add_up(part, loss, divisor, fine, total, blocks, DEEP: tl.constexpr, TOTAL: tl.constexpr):
    sum_D = tl.zeros((DEEP,), tl.float32)
    weight_D = tl.zeros((DEEP,), tl.float32)
    bad_D = tl.zeros((DEEP,), tl.float32)
    for start in range(0, blocks, DEEP):
        block_D = start + tl.arange(0, DEEP)
        sum_D += tl.load(part + block_D * 3, mask=block_D < blocks, other=0.0)
        weight_D += tl.load(part + block_D * 3 + 1, mask=block_D < blocks, other=0.0)
        bad_D += tl.load(part + block_D * 3 + 2, mask=block_D < blocks, other=0.0)
    _last(tl.sum(sum_D, 0), tl.sum(weight_D, 0), tl.sum(bad_D, 0), loss, divisor, fine, total, TOTAL)


# dz = dL·w_t/W·(softmax(z_t) − onehot(y_t))
@triton.jit(do_not_specialize=["T"])
def _backward(
    dloss,
    z,
    target,
    class_weight,
    divisor,
    dz,
    T,
    Z_ROW: tl.constexpr,
    C: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
    IGNORE: tl.constexpr,
):
    row_R1 = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    class_1C = tl.arange(0, BLOCK)[None, :]
    inside_RC = (row_R1 < T) & (class_1C < C)
    z_RC = tl.load(z + row_R1 * Z_ROW + class_1C, mask=inside_RC, other=0.0).to(tl.float32)
    z_RC = tl.where(class_1C < C, z_RC, float("-inf"))
    target_R1 = tl.load(target + row_R1, mask=row_R1 < T, other=0)
    exp_RC = tl.exp(z_RC - tl.max(z_RC, 1)[:, None])
    p_RC = exp_RC / tl.sum(exp_RC, 1)[:, None]
    weight_R1 = _weights(target_R1, row_R1 < T, class_weight, C, IGNORE)
    scale_R1 = weight_R1 / tl.load(divisor) * tl.load(dloss).to(tl.float32)
    dz_RC = scale_R1 * tl.where(class_1C == target_R1, p_RC - 1.0, p_RC)
    tl.store(dz + row_R1 * C + class_1C, dz_RC, mask=inside_RC)
