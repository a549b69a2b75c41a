"""How well scores separate calls to block from calls to allow.

A score is high for what should be blocked. Recall is that of block: the share of calls to block whose score lies above
a threshold that at most a given share of the calls to allow lies above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gradproof.streams import philox
from gradproof.train.auc import auc

SHARES = {"recall_at_1pct": 0.01, "recall_at_0_1pct": 0.001}
DRAWS = 1000  # of the bootstrap


class Scored(NamedTuple):
    """One test fold: score_R, and block_R, whether the call should be blocked."""

    score_R: np.ndarray
    block_R: np.ndarray


def auc_error(auc: float, positives: int, negatives: int) -> float:
    """The standard error of an AUC, by Hanley and McNeil."""
    if not positives or not negatives:
        return 0.0
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    spread = auc * (1 - auc) + (positives - 1) * (q1 - auc * auc) + (negatives - 1) * (q2 - auc * auc)
    return math.sqrt(max(0.0, spread) / (positives * negatives))


def threshold(allowed_R: np.ndarray, share: float) -> float:
    """The lowest score above which at most `share` of the calls to allow lies; what equals it is allowed."""
    descending = np.sort(allowed_R)[::-1]
    return float(descending[int(share * len(descending))])


def recall_at(score_R: np.ndarray, block_R: np.ndarray, share: float) -> float | None:
    """The recall of block at that share of false blocks; None without both classes."""
    if not block_R.any() or block_R.all():
        return None
    return float((score_R[block_R] > threshold(score_R[~block_R], share)).mean())


def curve(score_R: np.ndarray, block_R: np.ndarray, most: int = 400) -> list[tuple[float, float]]:
    """(share of allowed calls blocked, recall), from the strictest threshold to the loosest; at most so many points."""
    if not len(score_R):
        return []
    order_R = np.argsort(-score_R, kind="stable")
    last_R = np.append(np.diff(score_R[order_R]) != 0, True)  # ties are passed together
    blocked_R = np.cumsum(block_R[order_R])[last_R] / max(1, block_R.sum())
    alarms_R = np.cumsum(~block_R[order_R])[last_R] / max(1, (~block_R).sum())
    # Half of the points where few are blocked falsely: that is where a gate works.
    even = np.linspace(0, 1, most // 2)
    wanted = np.searchsorted(alarms_R, np.unique(np.concatenate((even, even**4))))
    picked = np.unique(np.clip(wanted, 0, len(alarms_R) - 1))
    return [(0.0, 0.0), *((float(alarms_R[i]), float(blocked_R[i])) for i in picked)]


def figures(folds: Sequence[Scored]) -> dict[str, float | None]:
    """`auc`, `recall_at_1pct`, `recall_at_0_1pct`: each the mean over the folds that have both classes."""
    means: dict[str, float | None] = {"auc": _mean([auc(*fold) for fold in folds])}
    for name, share in SHARES.items():
        means[name] = _mean([recall_at(*fold, share) for fold in folds])
    return means


def paired_bootstrap(
    ours: Sequence[Scored], theirs: Sequence[Scored], draws: int | None = None, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Ours minus theirs on the same folds: the mean, and the 2.5% and 97.5% points when the calls of each fold and
    class are drawn anew, the same for both."""
    generator = np.random.Generator(philox(seed, "bootstrap"))
    differences: dict[str, list[float]] = {name: [] for name in ("auc", *SHARES)}
    for _ in range(draws or DRAWS):
        drawn = [_redrawn(fold.block_R, generator) for fold in ours]
        a, b = (
            figures([Scored(f.score_R[i], f.block_R[i]) for f, i in zip(s, drawn, strict=True)]) for s in (ours, theirs)
        )
        for name, values in differences.items():
            values.append(_difference(a, b, name))
    whole_a, whole_b = figures(ours), figures(theirs)
    return {
        name: {
            "difference": _difference(whole_a, whole_b, name),
            "low": float(np.quantile(values, 0.025)),
            "high": float(np.quantile(values, 0.975)),
        }
        for name, values in differences.items()
    }


def _redrawn(block_R: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return np.concatenate(
        [generator.choice(np.flatnonzero(block_R == c), int((block_R == c).sum())) for c in (True, False)]
    )


def _difference(a: Mapping[str, float | None], b: Mapping[str, float | None], name: str) -> float:
    first, second = a[name], b[name]
    return float("nan") if first is None or second is None else first - second


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
