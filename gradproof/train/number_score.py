"""Scores of regression on held-out rows: errors, likelihood, and coverage of the intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.ops.gaussian import HALF_LOG_2PI
from gradproof.train.interval import COVERED
from gradproof.train.predictor import Predictions

DRAWN = 1000  # points of the plot of predicted against true values


def true_values(rows: Rows, schema: Schema) -> np.ndarray:
    """value_T in the target's own units."""
    assert schema.quantity is not None
    return schema.quantity.mean + schema.quantity.std * rows.metrics_RM[:, 0].astype(np.float64)


def number_score(predicted: Predictions, value_T: np.ndarray) -> dict[str, Any]:
    """The record of a report's held-out part."""
    mean_T, _, low_T, high_T = predicted.number_TV.T
    inside_T = (low_T <= value_T) & (value_T <= high_T)
    shown_S = np.linspace(0, len(value_T) - 1, min(DRAWN, len(value_T))).astype(np.int64)
    return {
        "rows": len(value_T),
        **errors(mean_T, value_T),
        "log_likelihood": -negative_log_likelihood(predicted.number_TV, value_T),
        "covered": COVERED,
        "coverage": float(inside_T.mean()),
        "width": float((high_T - low_T).mean()),
        "points": [[float(value_T[i]), *predicted.number_TV[i, [0, 2, 3]].tolist()] for i in shown_S],
    }


def errors(mean_T: np.ndarray, value_T: np.ndarray) -> dict[str, Any]:
    """RMSE, MAE and R², the share of the variance that is explained."""
    error_T = mean_T - value_T
    variance = float(value_T.var())
    return {
        "rmse": float(np.sqrt((error_T**2).mean())),
        "mae": float(np.abs(error_T).mean()),
        "r2": 1 - float((error_T**2).mean()) / variance if variance else None,
    }


def negative_log_likelihood(number_TV: np.ndarray, value_T: np.ndarray) -> float:
    """The mean, in nats, by the model's own spreads; infinite where any output is not a number."""
    z_T = (value_T - number_TV[:, 0]) / number_TV[:, 1]
    loss = float((np.log(number_TV[:, 1]) + z_T * z_T / 2 + HALF_LOG_2PI).mean())
    return loss if np.isfinite(loss) else float("inf")
