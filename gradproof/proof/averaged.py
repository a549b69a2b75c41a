"""Estimates the factor of a gradient that rounding hides in a single run, by averaging over runs at other points.

The gradient of an attention's key bias nearly cancels, so that in bf16 rounding moves it by several percent. A wrong
factor is the same everywhere, while rounding errors differ from point to point. So the module runs at points near the
given one, each with its own cotangent: in float64 (h), in the dtype that trains (g), and there once more with every
result off by up to a unit (j).

    f = Σ⟨g, h⟩ / Σ⟨h, h⟩    beside its standard error, from the residuals ⟨g − f·h, h⟩, each without its own run
    σ² = n·Σ⟨j − g, h⟩² / (Σ⟨h, h⟩)²,    what rounding does in one run: an error that all runs share is below 1.5 σ
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from gradproof.proof.as_trained import SCALES, BandOf, Deviation, faint, in_words, least_factor

RUNS = (16, 32)  # at least, and at most where a few of them outweigh the others
ENOUGH = 8.0  # runs of equal weight
WEAK = 0.03  # a deviation of the factor that one run should show
HOPELESS = 0.5  # spread of the factor in one run, above which a gradient is rounding alone
ERRORS = 8.0  # standard errors: 1e-4 to 1e-6 of right gradients are further off, by Student's t for 8 to 16 runs
SHARED = 1.5  # σ; over the Hugging Face models of the tests right factors are off by up to 0.9, and there by 0.5%


def hidden(band: BandOf) -> bool:
    """Whether one run would show only a large factor."""
    return WEAK / SCALES < band.factor < HOPELESS


@dataclass
class FactorEstimate:
    """One tensor over the runs: ⟨h, h⟩, ⟨g, h⟩ and ⟨j − g, h⟩ of each."""

    sizes: list[float] = field(default_factory=list)
    along: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    numel: int = 0

    def add(self, right: Tensor | None, grad: Tensor | None, off: Tensor | None) -> None:
        """One run; without effect where a gradient is missing or not finite."""
        if right is None or grad is None or off is None:
            return
        right = right.detach().double()
        numbers = [float((a * right).sum()) for a in (right, grad, off - grad)]
        if all(map(math.isfinite, numbers)):
            self.numel = right.numel()
            for kept, number in zip((self.sizes, self.along, self.moved), numbers, strict=True):
                kept.append(number)

    @property
    def effective(self) -> float:
        """How many runs of equal weight these are worth."""
        squares = sum(size * size for size in self.sizes)
        return sum(self.sizes) ** 2 / squares if squares else 0.0

    def deviation(self, unit: float) -> Deviation | None:
        """What is wrong about the factor, if neither chance nor rounding explains it."""
        if self.effective < ENOUGH:
            return None
        total, number = sum(self.sizes), len(self.sizes)
        factor = sum(self.along) / total
        pairs = zip(self.along, self.sizes, strict=True)
        error = math.sqrt(sum(((a - factor * w) / (1 - w / total)) ** 2 for a, w in pairs)) / total
        spread = math.sqrt(number * sum(m * m for m in self.moved)) / total
        bound = max(ERRORS * error, SHARED * spread, least_factor(unit))
        off = abs(factor - 1)
        if off <= bound or off * math.sqrt(total / number) <= faint(unit) * math.sqrt(self.numel):
            return None
        return Deviation(in_words(factor, off, 1.0), off, bound)
