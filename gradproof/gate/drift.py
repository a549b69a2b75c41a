"""Drift: of the input distribution and of the error rate.

error rate   Page–Hinkley: m_t = Σ_{i≤t} (e_i − mean_i − δ);  drift where m_t − min_{i≤t} m_i > λ
inputs       population stability index over the bins of a histogram: Σ (q − p)·ln(q/p);  drift where it is > 0.25
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

DELTA, LAMBDA = 0.02, 8.0  # a rate that rises by 0.2 is found after about 50 judged decisions
SHIFTED = 0.25
BINS = 10
FEWEST = 100  # decisions before the index says anything


class Errors(NamedTuple):
    """Page–Hinkley over errors (1 wrong, 0 right), in the order they were judged; `risen` is m_t − min m."""

    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: float = 0.0
    sum: float = 0.0
    least: float = 0.0

    def after(self, error: float) -> Errors:
        count = self.count + 1
        mean = self.mean + (error - self.mean) / count
        total = self.sum + error - mean - DELTA
        return Errors(count, mean, total, min(self.least, total))

    @property
    def risen(self) -> float:
        return self.sum - self.least

    @property
    def drift(self) -> bool:
        return self.risen > LAMBDA


def errors(judged: Iterable[float]) -> Errors:
    """The state after a stream."""
    state = Errors()
    for error in judged:
        state = state.after(error)
    return state


def histogram(values: Iterable[float], edges: Sequence[float]) -> list[int]:
    """Counts in the bins between edges, and beyond the first and the last."""
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[bisect_right(edges, value)] += 1
    return counts


def deciles(values: Sequence[float]) -> list[float]:
    """The edges of bins that hold about equally many each; fewer where values are the same."""
    ordered = sorted(values)
    return sorted({ordered[len(ordered) * i // BINS] for i in range(1, BINS)}) if ordered else []


def stability(reference: Sequence[int], recent: Sequence[int]) -> float:
    """The index between two histograms; half a count is added to each bin, so that an empty one has a logarithm."""
    a = [(n + 0.5) / (sum(reference) + 0.5 * len(reference)) for n in reference]
    b = [(n + 0.5) / (sum(recent) + 0.5 * len(recent)) for n in recent]
    return sum((q - p) * math.log(q / p) for p, q in zip(a, b, strict=True))


def shifted(reference: Sequence[int], recent: Sequence[int]) -> bool:
    """Whether the calls are others than the model was made with."""
    return sum(recent) >= FEWEST and sum(reference) >= FEWEST and stability(reference, recent) > SHIFTED
