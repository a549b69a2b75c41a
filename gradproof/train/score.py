"""Scores of decisions on held-out rows: accuracy, AUC, log loss, Brier score, calibration, and figures per class."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.train.auc import mean_auc
from gradproof.train.costs import threshold_table
from gradproof.train.predictor import Predictions

BINS = 10
FIGURES = ("accuracy", "balanced_accuracy", "auc", "log_loss", "brier")  # what models are compared by


def score(predicted: Predictions, truth: Rows, schema: Schema) -> dict[str, Any]:
    """The record of a report's held-out part; metrics are in their own units."""
    probability_TC, decision_T, outcome_T = predicted.probability_TC, predicted.decision_T, truth.outcome_R
    T, C = probability_TC.shape
    confusion_CC = np.zeros((C, C), np.int64)
    decided_T = decision_T >= 0
    np.add.at(confusion_CC, (outcome_T[decided_T], decision_T[decided_T]), 1)
    classes = [_class(confusion_CC, c, name) for c, name in enumerate(schema.classes)]
    bins = calibration(probability_TC[decided_T].max(1), (decision_T == outcome_T)[decided_T])
    recall_C = recalls(decision_T, outcome_T, C)
    present = [figures["f1"] or 0.0 for figures in classes if figures["support"]]
    return {
        "rows": T,
        **figures(decision_T, probability_TC, outcome_T),
        "ece": sum(b["count"] / T * abs(b["accuracy"] - b["confidence"]) for b in bins if b["count"]),
        "macro_f1": sum(present) / len(present),
        "worst_class": classes[worst(recall_C)],
        "classes": classes,
        "confusion": confusion_CC.tolist(),
        "calibration": bins,
        "costs": threshold_table(predicted, outcome_T, schema.classes),
        "metrics": [
            _metric(
                metric.name,
                predicted.metrics_TM[:, m],
                metric.low + truth.metrics_RM[:, m] * (metric.high - metric.low),
            )
            for m, metric in enumerate(schema.metrics)
        ],
    }


def figures(decision_T: np.ndarray, probability_TC: np.ndarray, outcome_T: np.ndarray) -> dict[str, float | None]:
    """The FIGURES of these decisions and probabilities."""
    recall_C = recalls(decision_T, outcome_T, probability_TC.shape[1])
    return {
        "accuracy": float((decision_T == outcome_T).mean()),
        "balanced_accuracy": balanced_accuracy(recall_C),
        "auc": mean_auc(probability_TC, outcome_T),
        "log_loss": log_loss(probability_TC, outcome_T),
        "brier": brier(probability_TC, outcome_T),
    }


def brier(probability_TC: np.ndarray, outcome_T: np.ndarray) -> float:
    """Brier score: the mean over the rows of Σ_c (p_c − y_c)², y one-hot, from 0 to 2.

    This is Brier's own definition, the same for any number of classes. For two classes it is twice the mean of
    (p_1 − y_1)², which scikit-learn's `brier_score_loss` returns. A row without probabilities (NaN) counts 2."""
    # Σ_c (p_c − y_c)² = Σ_c p_c² − 2·p_y + 1: no one-hot copy of the outcomes is needed.
    p_T = probability_TC[np.arange(len(outcome_T)), outcome_T]
    squared_T = (probability_TC**2).sum(1) - 2 * p_T + 1
    return float(np.where(np.isnan(squared_T), 2.0, squared_T).mean())


def log_loss(probability_TC: np.ndarray, outcome_T: np.ndarray) -> float:
    """Mean −log p of what happened, p no smaller than float64 can say; no number is as good as none."""
    p_T = np.nan_to_num(probability_TC[np.arange(len(outcome_T)), outcome_T])
    return float(-np.log(np.maximum(p_T, np.finfo(np.float64).tiny)).mean())


def recalls(decision_T: np.ndarray, outcome_T: np.ndarray, classes: int) -> np.ndarray:
    """recall_C: the share of each class's rows that is decided rightly, NaN for a class without a row."""
    support_C = np.bincount(outcome_T, minlength=classes)
    hit_C = np.bincount(outcome_T[decision_T == outcome_T], minlength=classes)
    return np.where(support_C > 0, hit_C / np.maximum(support_C, 1), np.nan)


def balanced_accuracy(recall_C: np.ndarray) -> float:
    """The mean recall of the classes that have rows: a large class counts no more than a small one."""
    return float(np.nanmean(recall_C))


def worst(recall_C: np.ndarray) -> int:
    """The class with the lowest recall."""
    return int(np.nanargmin(recall_C))


def calibration(confidence_T: np.ndarray, right_T: np.ndarray) -> list[dict[str, Any]]:
    """Ten bins of confidence, each with how often it was right."""
    bin_T = np.minimum((confidence_T * BINS).astype(np.int64), BINS - 1)
    bins = []
    for b in range(BINS):
        inside = bin_T == b
        count = int(inside.sum())
        bins.append(
            {
                "low": b / BINS,
                "high": (b + 1) / BINS,
                "confidence": float(confidence_T[inside].mean()) if count else None,
                "accuracy": float(right_T[inside].mean()) if count else None,
                "count": count,
            }
        )
    return bins


def _class(confusion_CC: np.ndarray, c: int, name: str) -> dict[str, Any]:
    hit, support, named = (int(n) for n in (confusion_CC[c, c], confusion_CC[c].sum(), confusion_CC[:, c].sum()))
    return {
        "name": name,
        "precision": hit / named if named else None,
        "recall": hit / support if support else None,
        "f1": 2 * hit / (support + named) if support + named else None,
        "support": support,
    }


def _metric(name: str, found_T: np.ndarray, truth_T: np.ndarray) -> dict[str, Any]:
    error_T = found_T.astype(np.float64) - truth_T
    spread = float(((truth_T - truth_T.mean()) ** 2).sum())
    return {
        "name": name,
        "mae": float(np.abs(error_T).mean()),
        "rmse": float(np.sqrt((error_T**2).mean())),
        "r2": 1 - float((error_T**2).sum()) / spread if spread else None,
    }
