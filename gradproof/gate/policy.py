"""Turns a probability into a decision: allow, ask or block.

    p ≥ allow_at: allow;   p < block_below: block;   between: ask

Both thresholds are chosen on calls that the model did not learn from: of those to block, at most the share
`false_allow` lies at or above allow_at; of those to allow, at most the share `false_block` lies below block_below.
Where the model tells them apart so well that the two cross, one threshold halfway serves as both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gradproof.gate.signals import Outcome


class Policy(NamedTuple):
    allow_at: float
    block_below: float

    def decide(self, p: float) -> Outcome:
        return "allow" if p >= self.allow_at else "block" if p < self.block_below else "ask"

    def leans(self, p: float) -> bool:
        """Whether the model would allow, if it could not ask."""
        return p >= min(max(0.5, self.block_below), self.allow_at)

    def corrected(self, p: float, allow: bool) -> float:
        """A probability that decides as a correction says: at least halfway from the threshold to certainty."""
        return max(p, (1 + self.allow_at) / 2) if allow else min(p, self.block_below / 2)


ASK = Policy(math.nextafter(1.0, 2.0), 0.0)  # every probability asks


def choose(p_T: np.ndarray, allow_T: np.ndarray, false_allow: float, false_block: float) -> Policy:
    """The thresholds for the two budgets; without calls of both classes, every call is asked about."""
    ok_T, bad_T = np.sort(p_T[allow_T]), np.sort(p_T[~allow_T])[::-1]
    if not len(ok_T) or not len(bad_T):
        return ASK
    # So many may lie on the wrong side; the next one is where the threshold goes.
    highest_bad, lowest_ok = bad_T[int(false_allow * len(bad_T))], ok_T[int(false_block * len(ok_T))]
    allow_at, block_below = float(np.nextafter(highest_bad, 2.0)), float(lowest_ok)
    if allow_at < block_below:
        allow_at = block_below = _logistic((_logit(allow_at) + _logit(block_below)) / 2)
    return Policy(allow_at, block_below)


def calibrate(z_T: np.ndarray, allow_T: np.ndarray, steps: int = 50) -> tuple[float, float]:
    """Platt's slope and offset: P(allow) = σ(slope·z + offset), by Newton's method on the smoothed labels
    (n₊+1)/(n₊+2) and 1/(n₋+2). Without both classes, (1, 0)."""
    positive, negative = int(allow_T.sum()), int((~allow_T).sum())
    if not positive or not negative:
        return 1.0, 0.0
    t_T = np.where(allow_T, (positive + 1) / (positive + 2), 1 / (negative + 2))
    features_T2 = np.stack([z_T, np.ones_like(z_T)], 1)
    theta, loss = np.array([1.0, 0.0]), math.inf
    for _ in range(steps):
        s_T = features_T2 @ theta
        p_T = 1 / (1 + np.exp(-np.clip(s_T, -60, 60)))
        grad = features_T2.T @ (p_T - t_T)
        hessian = (features_T2 * (p_T * (1 - p_T))[:, None]).T @ features_T2 + 1e-9 * np.eye(2)
        step, size = np.linalg.solve(hessian, grad), 1.0
        loss = _loss(features_T2 @ theta, t_T)
        while _loss(features_T2 @ (theta - size * step), t_T) > loss and size > 1e-6:
            size /= 2
        theta = theta - size * step
        if float(np.abs(size * step).max()) < 1e-10:
            break
    slope, offset = float(theta[0]), float(theta[1])
    return (slope, offset) if slope > 0 else (1.0, 0.0)  # a model worse than chance is not turned round


def _loss(s_T: np.ndarray, t_T: np.ndarray) -> float:
    return float((np.logaddexp(0, s_T) - t_T * s_T).sum())


def _logit(p: float) -> float:
    p = min(max(p, 1e-300), 1 - 1e-16)
    return math.log(p) - math.log1p(-p)


def _logistic(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0
