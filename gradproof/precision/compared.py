"""A low-precision gradient l (after removing the loss scale) compared with the reference g.

error = ‖l − g‖,  norm ratio = ‖l‖/‖g‖,  cosine = ⟨l, g⟩/‖l‖‖g‖
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Compared:
    """One tensor of one run, compared with the reference."""

    size: float  # ‖g‖
    error: float  # ‖l − g‖
    low: float  # ‖l‖
    dot: float  # ⟨l, g⟩
    lost: float  # ‖g where l is 0‖
    scatter: float  # the error or ‖l − unrounded‖, whichever is smaller: the effect of rounding alone
    bias: float  # Σ(l − g)/‖l − g‖: about N(0, 1) for errors of random sign, ±√n if all have the same sign
    finite: bool
    numel: int

    @property
    def relative(self) -> float:
        return ratio(self.error, self.size)

    @property
    def norm_ratio(self) -> float:
        return ratio(self.low, self.size)

    @property
    def cosine(self) -> float:
        return self.dot / (self.low * self.size) if self.low and self.size else math.nan


def ratio(a: float, b: float) -> float:
    """a/b; infinite if only b is zero."""
    return a / b if b else 0.0 if a == 0 else math.inf


def compare(low: Tensor, g: Tensor, scale: float = 1.0, unrounded: Tensor | None = None) -> Compared:
    """Compares a gradient, multiplied by `scale`, with the reference and the unrounded gradient."""
    low = low.double() / scale
    error = low - g
    size = float(error.norm())
    return Compared(
        size=float(g.norm()),
        error=size,
        low=float(low.norm()),
        dot=float((low * g).sum()),
        lost=float(g[low == 0].norm()),
        scatter=size if unrounded is None else min(size, float((low - unrounded).norm())),
        bias=float(error.sum()) / size if size else 0.0,
        finite=bool(low.isfinite().all()),
        numel=g.numel(),
    )
