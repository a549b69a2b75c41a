"""Evaluates a model on held-out rows: predictions, loss and accuracy."""

from __future__ import annotations

import math

import numpy as np

from gradproof.data.rows import Rows
from gradproof.ranks.mesh import Mesh
from gradproof.train.number_score import errors, negative_log_likelihood, true_values
from gradproof.train.predictor import CHUNK, Predictions, Predictor
from gradproof.train.score import log_loss, recalls


def predictions(predictor: Predictor, rows: Rows, index_T: np.ndarray) -> Predictions:
    """Of the rows at `index_T`, of which only some thousand are in memory at a time. The ranks of a mesh share the
    rows, and all of them return everything."""
    if predictor.mesh is not None and len(index_T):
        return _shared(predictor, predictor.mesh, rows, index_T)
    return _own(predictor, rows, index_T)


def _shared(predictor: Predictor, mesh: Mesh, rows: Rows, index_T: np.ndarray) -> Predictions:
    """Every rank takes as many rows, the first one again where there are too few: experts on other ranks then meet as
    many batches as these."""
    each = -(-len(index_T) // mesh.size)
    filled = np.concatenate([index_T, np.repeat(index_T[:1], each * mesh.size - len(index_T))])
    own = _own(predictor, rows, filled[mesh.rank * each : (mesh.rank + 1) * each])
    return Predictions(*(mesh.arrays(array)[: len(index_T)] if len(array) else array for array in own))


def _own(predictor: Predictor, rows: Rows, index_T: np.ndarray) -> Predictions:
    parts = [predictor(rows.take(index_T[start : start + CHUNK])) for start in range(0, len(index_T), CHUNK)]
    return Predictions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def evaluate(predictor: Predictor, rows: Rows, index_T: np.ndarray) -> tuple[float, float, np.ndarray]:
    """(log loss, accuracy, recall_C) of the outcomes; the loss is infinite where any output is not a number."""
    predicted, outcome_T = predictions(predictor, rows, index_T), rows.outcome_R[index_T]
    loss = log_loss(predicted.probability_TC, outcome_T) if (predicted.decision_T >= 0).all() else float("inf")
    recall_C = recalls(predicted.decision_T, outcome_T, predicted.probability_TC.shape[1])
    return loss, float((predicted.decision_T == outcome_T).mean()), recall_C


def evaluate_number(predictor: Predictor, rows: Rows, index_T: np.ndarray) -> tuple[float, float]:
    """(negative log likelihood of the standardised target, RMSE in its own units)."""
    quantity = predictor.schema.quantity
    assert quantity is not None
    predicted, value_T = predictions(predictor, rows, index_T), true_values(rows.take(index_T), predictor.schema)
    loss = negative_log_likelihood(predicted.number_TV, value_T) - math.log(quantity.std)
    return loss, errors(predicted.number_TV[:, 0], value_T)["rmse"]


def spaced(index_R: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the rows, evenly spaced."""
    return index_R[:: max(1, -(-len(index_R) // max(1, most)))]
