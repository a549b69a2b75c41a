"""A synthetic data set with a known best possible score.

A row belongs to a hidden regime, chosen by a hidden linear router; each regime has its own rule from inputs to the 12
outcomes: scores linear in the inputs and in products of pairs of numbers. The label is drawn from

    P(outcome | row) = (1 − ε)·softmax(scores/τ) + ε/12

so no model can expect to be right more often than mean(max P), which is known row by row. Deterministic in
(rows, seed, regimes).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Metric, Number, Schema
from gradproof.streams import philox

BLOCKS = (9, 11, 14, 7, 5, 16, 8, 4)
NUMBERS, OUTCOMES, METRICS = 22, 12, 8
MILLI = 1000  # numbers are integers in thousandths
NOISE = 0.02  # ε
TEMPERATURE = 0.1  # τ, in standard deviations of the scores
READ = 2  # numbers that a rule reads
ROUTER_WEIGHT, BLOCK_WEIGHT, CURVED = 3.0, 2.0, 3.0  # of the parts of router and rule, beside numbers at 1


class Synthetic(NamedTuple):
    """The rows, and for each of them its regime and the chance of the best decision."""

    schema: Schema
    rows: Rows
    regime_R: np.ndarray
    best_R: np.ndarray


def synthetic(rows: int = 200_000, seed: int = 0, regimes: int = 4) -> Synthetic:
    """The set; mean(best_R) is the Bayes-optimal accuracy."""
    if rows < 1 or regimes < 1:
        raise ValueError(f"rows = {rows}, regimes = {regimes}: the synthetic set needs at least one of each")
    draw = _Draws(seed)
    codes_RC = np.stack([draw.below(f"codes.{i}", rows, n) for i, n in enumerate(BLOCKS)], 1)
    integers_RN = np.rint(MILLI * draw.normal("numbers", (rows, NUMBERS))).astype(np.int64)
    z_RN = integers_RN / MILLI
    hot_RH = np.concatenate([np.eye(n)[codes_RC[:, i]] - 1 / n for i, n in enumerate(BLOCKS)], 1)
    x_RI = np.concatenate([hot_RH, z_RN], 1)
    regime_R = _regime(draw, hot_RH, z_RN, regimes)
    score_RC, metrics_RM = np.zeros((rows, OUTCOMES)), np.zeros((rows, METRICS))
    for g in range(regimes):
        (mine,) = np.nonzero(regime_R == g)
        score_RC[mine] = _scores(draw, g, hot_RH[mine], z_RN[mine])
        metrics_RM[mine] = 1 / (1 + np.exp(-x_RI[mine] @ draw.normal(f"metrics.{g}", (x_RI.shape[1], METRICS)) / 3))
    p_RC = np.exp((score_RC - score_RC.max(1, keepdims=True)) / TEMPERATURE)
    p_RC = (1 - NOISE) * p_RC / p_RC.sum(1, keepdims=True) + NOISE / OUTCOMES
    drawn_R1 = draw.uniform("label", (rows, 1))
    outcome_R = np.minimum((p_RC.cumsum(1) < drawn_R1).sum(1), OUTCOMES - 1)
    metrics_RM = np.clip(metrics_RM + 0.02 * draw.normal("metrics.noise", (rows, METRICS)), 0, 1)
    made = Rows(codes_RC.astype(np.int32), integers_RN.astype(np.float64), outcome_R, metrics_RM.astype(np.float32))
    return Synthetic(schema(), made, regime_R, p_RC.max(1))


def schema() -> Schema:
    """The quality schema: 74 + 22 inputs, 12 outcomes, 8 metrics. The numbers' scale is known, not estimated."""
    return Schema(
        "outcome",
        tuple(f"outcome {i:02d}" for i in range(OUTCOMES)),
        tuple(Category(f"block {i}", tuple(f"{i}.{v:02d}" for v in range(n))) for i, n in enumerate(BLOCKS)),
        tuple(Number(f"number {i:02d}", 0.0, float(MILLI)) for i in range(NUMBERS)),
        tuple(Metric(f"metric {i}") for i in range(METRICS)),
    )


def _regime(draw: _Draws, hot_RH: np.ndarray, z_RN: np.ndarray, regimes: int) -> np.ndarray:
    """regime_R: the largest of the hidden router's scores, which read the first block and one number."""
    seen_RS = np.concatenate([ROUTER_WEIGHT * hot_RH[:, : BLOCKS[0]], z_RN[:, :1]], 1)
    return (seen_RS @ draw.normal("router", (seen_RS.shape[1], regimes))).argmax(1)


def _scores(draw: _Draws, g: int, hot_RH: np.ndarray, z_RN: np.ndarray) -> np.ndarray:
    """score_RC of regime g's rule, of mean 0 and variance 1. Each regime reads numbers and a block of its own."""
    numbers = draw.uniform(f"numbers.{g}", (NUMBERS,)).argsort()[:READ]
    block = 1 + int(draw.below(f"block.{g}", 1, len(BLOCKS) - 1)[0])
    start = sum(BLOCKS[:block])
    z_RS, hot_RB = z_RN[:, numbers], hot_RH[:, start : start + BLOCKS[block]]
    linear_SC = draw.normal(f"linear.{g}", (READ, OUTCOMES))
    names_BC = BLOCK_WEIGHT * draw.normal(f"names.{g}", (BLOCKS[block], OUTCOMES))
    products_SC = CURVED * draw.normal(f"products.{g}", (READ // 2, OUTCOMES))
    score_RC = z_RS @ linear_SC + hot_RB @ names_BC + (z_RS[:, ::2] * z_RS[:, 1::2]) @ products_SC
    return score_RC / np.sqrt((linear_SC**2).sum(0) + names_BC.var(0) + (products_SC**2).sum(0))


class _Draws:
    """Named streams of one seed, from raw bits, so that they are the same everywhere."""

    def __init__(self, seed: int):
        self.seed = seed

    def uniform(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        raw = philox(self.seed, "synthetic", name).random_raw(int(np.prod(shape))) >> np.uint64(11)
        return (raw.astype(np.float64) + 0.5).reshape(shape) * 2.0**-53

    def normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Nearly N(0, 1): the sum of four uniforms, scaled; bounded by ±3.5."""
        return (self.uniform(name, (*shape, 4)).sum(-1) - 2) * np.sqrt(3)

    def below(self, name: str, rows: int, n: int) -> np.ndarray:
        return (self.uniform(name, (rows,)) * n).astype(np.int64)
