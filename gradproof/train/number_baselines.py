"""Baselines for regression: the mean, and scikit-learn's ridge regression and boosted trees if it is installed. D
columns: codes and numbers as they are in the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.train.baselines import MOST_NUMBERS, MOST_ROWS
from gradproof.train.evaluate import spaced
from gradproof.train.number_score import errors, true_values

CATEGORIES = 255  # that scikit-learn's trees take; a column of more names is read as numbers
CHUNK = 1024
MISSING = "needs scikit-learn: pip install 'gradproof[ablate]'"


def mean(value_R: np.ndarray, value_T: np.ndarray) -> dict[str, Any]:
    """Always the mean of the training rows R."""
    return {"name": "mean", **errors(np.full(len(value_T), value_R.mean()), value_T), "note": ""}


def ridge(schema: Schema, rows: Rows, index_R: np.ndarray, truth: Rows) -> dict[str, Any]:
    """Fitted to the model's own inputs of the training rows R."""
    try:
        from sklearn.linear_model import Ridge
    except ImportError:
        return _missing("ridge regression")
    encoder = Encoder(schema)
    some = rows.take(spaced(index_R, min(MOST_ROWS, MOST_NUMBERS // schema.inputs)))
    fitted = Ridge().fit(_inputs(encoder, some), true_values(some, schema))
    means = [fitted.predict(encoder.inputs(truth.slice(i, i + CHUNK)).numpy()) for i in range(0, truth.count, CHUNK)]
    note = f"fitted to {some.count:,} rows"
    return {"name": "ridge regression", **errors(np.concatenate(means), true_values(truth, schema)), "note": note}


def boosted_trees(schema: Schema, rows: Rows, index_R: np.ndarray, truth: Rows) -> dict[str, Any]:
    """HistGradientBoosting with its defaults, fitted to the columns as they are."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        return _missing("boosted trees")
    named = [category.width <= CATEGORIES for category in schema.categories]
    some = rows.take(index_R)
    model = HistGradientBoostingRegressor(
        categorical_features=[*named, *[False] * len(schema.numbers)],  # type: ignore[arg-type]
        random_state=0,
    )
    model.fit(_columns(some), true_values(some, schema))
    figures = errors(model.predict(_columns(truth)), true_values(truth, schema))
    return {"name": "boosted trees", **figures, "note": "scikit-learn's HistGradientBoosting"}


def _inputs(encoder: Encoder, rows: Rows) -> np.ndarray:
    return np.concatenate([encoder.inputs(rows.slice(i, i + CHUNK)).numpy() for i in range(0, rows.count, CHUNK)])


def _columns(rows: Rows) -> np.ndarray:
    """x_RD; a value without a slot is missing."""
    return np.concatenate([np.where(rows.codes_RC < 0, np.nan, rows.codes_RC), rows.numbers_RN], 1)


def _missing(name: str) -> dict[str, Any]:
    return {"name": name, "rmse": None, "mae": None, "r2": None, "note": MISSING}
