"""What a user would compare with: the majority class, and scikit-learn's logistic regression where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradproof.train.score import balanced_accuracy, log_loss, recalls

MOST_ROWS = 20_000  # logistic regression learns little from more, and the wait grows
MOST_NUMBERS = 50_000_000  # rows times inputs: a wide table is fitted to fewer rows

PredictFunction = Callable[[np.ndarray], np.ndarray]  # x_TI to probability_TC


def majority(outcome_R: np.ndarray, outcome_T: np.ndarray, classes: int) -> dict[str, Any]:
    """Always the commonest class of the training rows R, with the shares of the classes as probabilities."""
    share_C = np.bincount(outcome_R, minlength=classes) / len(outcome_R)
    accuracy = float((outcome_T == share_C.argmax()).mean())
    loss = log_loss(np.broadcast_to(share_C, (len(outcome_T), classes)), outcome_T)
    balanced = balanced_accuracy(recalls(np.full(len(outcome_T), share_C.argmax()), outcome_T, classes))
    scores = {"accuracy": accuracy, "balanced_accuracy": balanced, "log_loss": loss}
    return {"name": "majority class", **scores, "note": ""}


def logistic_regression(
    x_RI: np.ndarray, outcome_R: np.ndarray, chunks: Iterable[np.ndarray], outcome_T: np.ndarray, classes: int
) -> dict[str, Any]:
    """Fitted to the training rows R, scored on T, whose inputs come in `chunks`; a note without scikit-learn."""
    unknown = dict.fromkeys(("accuracy", "balanced_accuracy", "log_loss"))
    row: dict[str, Any] = {"name": "logistic regression", **unknown, "note": ""}
    try:
        import sklearn.linear_model  # noqa: F401
    except ImportError:
        return {**row, "note": "needs scikit-learn: pip install 'gradproof[ablate]'"}
    if len(np.unique(outcome_R)) < 2:
        return {**row, "note": "one class alone cannot be fitted"}
    predict = fit_logistic(x_RI, outcome_R, classes)
    probability_TC = np.concatenate([predict(x_TI) for x_TI in chunks])
    decision_T = probability_TC.argmax(1)
    return {
        **row,
        "accuracy": float((decision_T == outcome_T).mean()),
        "balanced_accuracy": balanced_accuracy(recalls(decision_T, outcome_T, classes)),
        "log_loss": log_loss(probability_TC, outcome_T),
        "note": f"fitted to {len(outcome_R):,} rows",
    }


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
