"""Error bounds of a matrix product, from the norms of its rows and columns.

Its entry is a sum of I terms, each with errors of its own. Independent ones add up like

    σ_ij² = Σ_k I·u²·a_ik²·b_kj² + σ(a)_ik²·b_kj² + a_ik²·σ(b)_kj² ≤ Σ of three ‖·_i‖₄²·‖·_j‖₄² (Cauchy–Schwarz),

so the bound of all entries is one product of a few columns by as many rows. Where terms have one sign the partial sums
are as large as the result, and a GPU's tensor cores cut off where others round: c·u·|y| besides. What is stored narrow
is one rounding off; and a factor that was rounded in another kernel may have gone the other way in one place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.ops import wide

UNIT = torch.finfo(torch.float32).eps / 2  # sums, statistics and elementwise mathematics are in fp32
UNITS = 8.0  # σ that a kernel may be off; ours stay below 2
FAINT = 1e-9  # of the largest: rows of a matrix that are smaller are judged as if they were so large
SAME = 1e-4  # from 1, that the cosine of two rows may be which differ by about a rounding to bf16
FADED = 1e-15  # gradients below it have squares that fp32 does not hold
DEEP = 16  # terms that a tensor core adds up at once


class Matrix(NamedTuple):
    """Numbers and σ of each, or one number, the ratio of ‖σ‖₄ to ‖·‖₄ of any row; None where they are what the kernel
    has, to the bit."""

    value: Tensor
    sigma: Tensor | None = None
    across: Tensor | None = None  # beside a ratio, ‖σ‖₄ of each column: one may be all but zero, and its σ not

    def at(self, index: slice | Tensor) -> Matrix:
        """Some of the rows."""
        return Matrix(self.value[index], self._each(index))

    def columns(self, at: slice) -> Matrix:
        """Some of the columns."""
        every = slice(None)
        return Matrix(self.value[:, at], self._each((every, at)), None if self.across is None else self.across[at])

    def _each(self, index: Any) -> Tensor | None:
        """σ of those numbers; a ratio is that of any."""
        return self.sigma if self.sigma is None or not self.sigma.dim() else self.sigma[index]


class Sizes(NamedTuple):
    """Of each row or column of a matrix: ‖·‖₄, that of its σ, and the largest number, where it is asked for."""

    fourth: Tensor
    sigma: Tensor | None
    most: Tensor | None

    @classmethod
    def of(cls, a: Matrix, dim: int, most: bool) -> Sizes:
        """Along an axis: 1 for the sizes of rows, 0 for those of columns."""
        if not a.value.numel():
            none = torch.zeros(a.value.shape[1 - dim], device=a.value.device)
            return cls(none, None, none if most else None)
        if most:  # ‖·‖₄² ≤ ‖·‖∞·‖·‖
            largest = torch.linalg.vector_norm(a.value, math.inf, dim).float()
            fourth = (largest.double() * norm(a.value, dim)).sqrt_().float()
        else:
            largest, fourth = None, _fourth(a.value, dim)
        if a.sigma is None:
            return cls(fourth, None, largest)
        sigma = _fourth(a.sigma, dim) if a.sigma.dim() else a.sigma * fourth
        return cls(fourth, sigma if dim or a.across is None else torch.maximum(sigma, a.across), largest)


def sizes_of_both(w_OI: Tensor, most: bool) -> tuple[Sizes, Sizes]:
    """Of rows and of columns of a large matrix."""
    if most:
        return Sizes.of(Matrix(w_OI), 1, True), Sizes.of(Matrix(w_OI), 0, True)
    power, largest = _powers(w_OI)
    rows, columns = torch.mv(power, power.new_ones(w_OI.shape[1])), torch.mv(power.T, power.new_ones(w_OI.shape[0]))
    return Sizes(_sized(rows, largest), None, None), Sizes(_sized(columns, largest), None, None)


def allowance(
    right: Tensor,
    rows: Sizes,
    columns: Sizes,
    count: int,
    stored: float,
    narrow: float = 0.0,
    same: float | Tensor = 1.0,
) -> Tensor:
    """What the entries of a product may be off, whose sums have so many terms; `stored` is the unit of the result,
    `narrow` that of the factors, of which as many as `same` are rounded together."""
    count = max(count, 1)
    down = [UNITS * math.sqrt(count) * UNIT * rows.fourth]
    across = [columns.fourth]
    for own, other in ((rows.sigma, columns.fourth), (rows.fourth, columns.sigma)):
        if own is not None and other is not None:
            down.append(UNITS * same**0.5 * own)
            across.append(other)
    if narrow and len(down) > 1 and rows.most is not None and columns.most is not None:
        down.append(2 * narrow * same * rows.most)
        across.append(columns.most)
    down.append(torch.full_like(down[0], torch.finfo(torch.float32).tiny))  # nothing is divided by 0
    across.append(torch.ones_like(across[0]))
    allowed = torch.stack(down, 1) @ torch.stack(across)
    return allowed.add_(right.abs(), alpha=stored + one_sign(count))


def one_sign(count: int) -> float:
    """The share of a sum of so many terms that adding them up may cost where they have one sign: every partial sum is
    rounded, or cut off."""
    return 2 * (math.sqrt(count) + count / DEEP) * UNIT


def neighbours(a: Tensor, rows: int) -> Tensor:
    """How many of so many rows, of which `a` is a sample, are the same as any one of them but for a rounding: what is
    rounded in one of these the other way is so in the others too, and the errors of their sum are not independent."""
    if len(a) < 2:
        return a.new_ones(())
    unit = torch.nn.functional.normalize(a.float())
    same = (unit @ unit.T > 1 - SAME).sum() - len(a)
    return 1 + (rows - 1) * (same.clamp(min=0) / (len(a) * (len(a) - 1)))


def norm(a: Tensor, dim: int) -> Tensor:
    """‖·‖ along an axis, in fp32."""
    if a.device.type == "cuda":
        return torch.linalg.vector_norm(a, dim=dim, dtype=torch.float64).float()
    if a.numel() and largest(a) < FADED:
        a = a.double()
    if dim == 0:  # where torch's own walks down every column by itself
        return wide(a).square().sum(0).sqrt_().float()
    return torch.linalg.vector_norm(wide(a), dim=dim).float()


def largest(a: Tensor) -> Tensor:
    """The largest |·|; NaN, if there is one."""
    if a.device.type == "cuda":
        return torch.linalg.vector_norm(a, math.inf)
    low, high = a.aminmax()
    return torch.maximum(-low, high)


def _fourth(a: Tensor, dim: int) -> Tensor:
    """‖·‖₄ along an axis."""
    power, largest = _powers(a)
    return _sized(torch.mv(power.T if dim == 0 else power, power.new_ones(a.shape[dim])), largest)


def _powers(a: Tensor) -> tuple[Tensor, Tensor]:
    """(a/largest)⁴ and the largest: fourth powers of small numbers would underflow."""
    largest = torch.linalg.vector_norm(a, math.inf).float().clamp(min=torch.finfo(torch.float32).tiny)
    return (a / largest).float().square_().square_(), largest


def _sized(total: Tensor, largest: Tensor) -> Tensor:
    return total.sqrt_().sqrt_().clamp_(min=FAINT).mul_(largest)
