"""Baselines to compare with: the majority class, and scikit-learn's logistic regression and boosted trees."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.train.score import FIGURES, figures

MOST_ROWS = 20_000  # logistic regression learns little from more, and the wait grows
MOST_NUMBERS = 50_000_000  # rows times inputs: a wide table is fitted to fewer rows
ROUNDS = 100  # of boosting at most, which is scikit-learn's default
MOST_TREE_ROWS = 50_000
MOST_TREE_WORK = 240_000  # rows times trees a round: a round has a tree for each class, of two classes one
MOST_TREE_COLUMNS = 700  # columns times trees a round; 360, the demo's, take 6 s on one core
CATEGORIES = 255  # of a column at most, for scikit-learn to take them as names

PredictFunction = Callable[[np.ndarray], np.ndarray]  # x_TI to probability_TC


def majority(outcome_R: np.ndarray, outcome_T: np.ndarray, classes: int) -> dict[str, Any]:
    """Always the commonest class of the training rows R, with the shares of the classes as probabilities."""
    share_C = np.bincount(outcome_R, minlength=classes) / len(outcome_R)
    probability_TC = np.broadcast_to(share_C, (len(outcome_T), classes))
    scores = figures(np.full(len(outcome_T), share_C.argmax()), probability_TC, outcome_T)
    return {"name": "majority class", **scores, "seconds": None, "rows": len(outcome_R), "note": ""}


def logistic_regression(
    x_RI: np.ndarray, outcome_R: np.ndarray, chunks: Iterable[np.ndarray], outcome_T: np.ndarray, classes: int
) -> dict[str, Any]:
    """Fitted to the training rows R, scored on T, whose inputs come in `chunks`; a note without scikit-learn."""
    name = "logistic regression"
    if reason := _cannot_fit(outcome_R):
        return _without(name, reason)
    begun = time.perf_counter()
    with _threads():
        predict = fit_logistic(x_RI, outcome_R, classes)
    seconds = time.perf_counter() - begun
    return _scored(name, np.concatenate([predict(x_TI) for x_TI in chunks]), outcome_T, seconds, len(outcome_R))


def boosted_trees(rows: Rows, truth: Rows, schema: Schema) -> dict[str, Any]:
    """scikit-learn's HistGradientBoosting with its defaults, fitted to `rows` and scored on `truth`; a note where that
    would take too long, or without scikit-learn."""
    name, columns, rows = "boosted trees", len(tree_names(schema)), without_lone(rows)
    if reason := _cannot_fit(rows.outcome_R):
        return _without(name, reason)
    if trees_a_round(schema) * columns > MOST_TREE_COLUMNS:
        size = f"{len(schema.classes):,} classes and {columns:,} columns"
        return _without(name, f"not fitted: {size} would take too long; `gradproof ablate` fits them")
    begun = time.perf_counter()
    with _threads():
        fitted = fit_trees(rows, schema)
    seconds = time.perf_counter() - begun
    probability_TC = np.zeros((truth.count, len(schema.classes)))
    probability_TC[:, fitted.classes_] = fitted.predict_proba(tree_inputs(truth))
    return _scored(name, probability_TC, truth.outcome_R, seconds, rows.count)


def trees_a_round(schema: Schema) -> int:
    """How many trees each round of boosting adds."""
    return 1 if len(schema.classes) == 2 else len(schema.classes)


def most_tree_rows(schema: Schema) -> int:
    """How many rows are enough to fit trees to, so that the wait is short."""
    return min(MOST_TREE_ROWS, MOST_TREE_WORK // trees_a_round(schema))


def tree_inputs(rows: Rows) -> np.ndarray:
    """The columns themselves, names as codes; what is missing, or has no code, is NaN."""
    codes_RC = np.where(rows.codes_RC < 0, np.nan, rows.codes_RC.astype(np.float64))
    return np.concatenate([codes_RC, rows.numbers_RN], 1)


def tree_names(schema: Schema) -> list[bool]:
    """Which columns of `tree_inputs` scikit-learn can take as names."""
    return [category.width <= CATEGORIES for category in schema.categories] + [False] * len(schema.numbers)


def fit_trees(rows: Rows, schema: Schema) -> Any:
    """scikit-learn's classifier with its defaults, fitted."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model: Any = HistGradientBoostingClassifier(
        max_iter=ROUNDS,
        categorical_features=tree_names(schema),  # type: ignore[arg-type]
        random_state=0,
    )
    return model.fit(tree_inputs(rows), rows.outcome_R)


def without_lone(rows: Rows) -> Rows:
    """Without the rows that are the only ones of their class. Early stopping, on above 10,000 rows, sets a part of each
    class aside and refuses them; without it they have been seen to spoil the trees of all other classes."""
    return rows.take(np.flatnonzero(np.bincount(rows.outcome_R)[rows.outcome_R] > 1))


def fit_logistic(x_RI: np.ndarray, outcome_R: np.ndarray, classes: int, c: float = 1.0) -> PredictFunction:
    """A function from x_TI to probability_TC; a class without a row has probability 0. `c` is scikit-learn's C."""
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged in 200 iterations: near enough for a comparison
        fitted = LogisticRegression(C=c, max_iter=200).fit(x_RI, outcome_R)

    def predict(x_TI: np.ndarray) -> np.ndarray:
        probability_TC = np.zeros((len(x_TI), classes))
        probability_TC[:, fitted.classes_] = fitted.predict_proba(x_TI)
        return probability_TC

    return predict


def _cannot_fit(outcome_R: np.ndarray) -> str:
    """Why nothing can be fitted to these rows; empty where it can."""
    try:
        import sklearn.ensemble
        import sklearn.linear_model  # noqa: F401
    except ImportError:
        return "needs scikit-learn: pip install 'gradproof[ablate]'"
    return "there is only one class" if len(np.unique(outcome_R)) < 2 else ""


def _without(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, **dict.fromkeys(FIGURES), "seconds": None, "rows": None, "note": reason}


def _scored(name: str, probability_TC: np.ndarray, outcome_T: np.ndarray, seconds: float, rows: int) -> dict[str, Any]:
    scores = figures(probability_TC.argmax(1), probability_TC, outcome_T)
    return {"name": name, **scores, "seconds": seconds, "rows": rows, "note": f"fitted to {rows:,} rows"}


@contextmanager
def _threads() -> Iterator[None]:
    """As many threads as the run trains with, so that its seconds and theirs compare. More would also wait for each
    other at every node of a tree, which takes several times as long where the cores are busy."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    with threadpool_limits(torch.get_num_threads()):
        yield
