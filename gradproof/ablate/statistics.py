"""Statistics of differences between families over seeds.

Each seed splits the same table anew, so the scores of two seeds share training rows and vary less than they would on
new tables. Nadeau and Bengio's correction adds the share of rows that are tested on to the variance of a mean of S
scores:

    var(mean) = (1/S + n_test/n_train)·s²,   t = mean/√var(mean) with S − 1 degrees of freedom

Families are compared on the same splits, seed by seed, and Holm's correction holds the chance of one false finding
among all comparisons of a study at 5%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.05


class Estimate(NamedTuple):
    """A mean over seeds with its 95% interval; without one where there is one seed."""

    mean: float
    low: float | None
    high: float | None
    deviation: float | None  # between seeds, uncorrected

    def to_dict(self) -> dict[str, float | None]:
        return self._asdict()


class Comparison(NamedTuple):
    """`first` minus `second`, seed by seed, in accuracy. `p` is two-sided, `p_holm` after Holm's correction."""

    first: str
    second: str
    difference: Estimate
    effect: float | None  # the mean difference in standard deviations between seeds
    fewer_errors: float | None  # the share of the second's errors that the first does not make
    p: float | None
    p_holm: float | None = None

    @property
    def significant(self) -> bool:
        return self.p_holm is not None and self.p_holm < LEVEL

    def to_dict(self) -> dict[str, object]:
        return {**self._asdict(), "difference": self.difference.to_dict(), "significant": self.significant}


def estimate(scores: Sequence[float], test_share: float) -> Estimate:
    """The mean and its interval; `test_share` is n_test/n_train, 0 for scores that share no rows."""
    x_S = np.asarray(scores, np.float64)
    mean = float(x_S.mean())
    if len(x_S) < 2:
        return Estimate(mean, None, None, None)
    from scipy.stats import t

    deviation = float(x_S.std(ddof=1))
    half = float(t.ppf(1 - LEVEL / 2, len(x_S) - 1)) * deviation * math.sqrt(1 / len(x_S) + test_share)
    return Estimate(mean, mean - half, mean + half, deviation)


def compare(
    first: str, second: str, a: Sequence[float], b: Sequence[float], test_share: float, tested: bool = True
) -> Comparison:
    """The corrected resampled t-test of two families' accuracies on the same splits, in the same order of seeds."""
    if len(a) != len(b):
        raise ValueError(f"{first} has {len(a)} scores and {second} {len(b)}; a paired test needs the same seeds")
    d_S = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    difference = estimate(d_S.tolist(), test_share)
    errors = 1 - float(np.mean(b))
    fewer = difference.mean / errors if errors > 0 else None
    if len(d_S) == 2 and difference.mean and np.ptp(d_S) < 1e-9:  # multiples of 1/rows: two may well agree by chance
        difference = Estimate(difference.mean, None, None, None)
    if difference.deviation is None or not tested:
        return Comparison(first, second, difference, None, fewer, None)
    return Comparison(first, second, difference, _effect(difference), fewer, p_value(d_S.tolist(), test_share))


def p_value(differences: Sequence[float], test_share: float) -> float:
    """Two-sided, of no difference."""
    from scipy.stats import t

    d_S = np.asarray(differences, np.float64)
    error = float(d_S.std(ddof=1)) * math.sqrt(1 / len(d_S) + test_share)
    mean = float(d_S.mean())
    if error == 0:  # the same difference at every seed
        return 1.0 if mean == 0 else 0.0
    return float(2 * t.sf(abs(mean) / error, len(d_S) - 1))


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """With `p_holm`: the i-th smallest of m p-values times m − i + 1, and never below the one before."""
    tested = sorted((i for i, c in enumerate(comparisons) if c.p is not None), key=lambda i: comparisons[i].p or 0.0)
    corrected, floor = list(comparisons), 0.0
    for rank, i in enumerate(tested):
        floor = max(floor, min(1.0, (comparisons[i].p or 0.0) * (len(tested) - rank)))
        corrected[i] = comparisons[i]._replace(p_holm=floor)
    return corrected


def _effect(difference: Estimate) -> float | None:
    """Cohen's d of paired scores; none where the seeds agree exactly."""
    return difference.mean / difference.deviation if difference.deviation else None
