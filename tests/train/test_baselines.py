import sys

import numpy as np
import pytest

from gradproof.train.baselines import logistic_regression, majority


def table(T=300, C=3, seed=0):
    """Rows whose class is the largest of C noisy inputs."""
    random = np.random.default_rng(seed)
    x_TI = random.normal(size=(T, C + 2)).astype(np.float32)
    return x_TI, (x_TI[:, :C] + 0.3 * random.normal(size=(T, C))).argmax(1)


def test_majority_by_hand():
    """The commonest class of the training rows, not of those it is scored on."""
    row = majority(np.array([0, 1, 1, 1, 2, 2, 1, 0, 0, 1]), np.array([0, 0, 0, 1]), 4)
    assert row["name"] == "majority class" and row["accuracy"] == 0.25
    assert row["log_loss"] == pytest.approx(-np.log([0.3, 0.3, 0.3, 0.5]).mean())


def test_majority_of_a_class_that_training_lacked():
    """Its share is 0, which must not be infinitely wrong."""
    row = majority(np.array([0, 0, 1]), np.array([2, 0]), 3)
    assert row["accuracy"] == 0.5 and np.isfinite(row["log_loss"])


def test_logistic_regression_learns():
    """A linear rule is what it can find: far above the majority, and its probabilities are its own."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    (x_RI, outcome_R), (x_TI, outcome_T) = table(600), table(300, seed=1)
    row = logistic_regression(x_RI, outcome_R, [x_TI[:7], x_TI[7:]], outcome_T, 3)
    assert row["accuracy"] > 0.8 > 2 * majority(outcome_R, outcome_T, 3)["accuracy"] - 0.1
    right = linear_model.LogisticRegression(max_iter=200).fit(x_RI, outcome_R).predict_proba(x_TI)
    assert row["log_loss"] == pytest.approx(-np.log(right[np.arange(300), outcome_T]).mean())
    assert row["note"] == "fitted to 600 rows"


def test_a_class_that_training_lacked():
    """sklearn's columns are those of the classes it saw; taken by position, the later classes would be shifted."""
    pytest.importorskip("sklearn")
    (x_RI, outcome_R), (x_TI, outcome_T) = table(600), table(300, seed=1)
    shifted_R, shifted_T = np.where(outcome_R > 0, outcome_R + 1, 0), np.where(outcome_T > 0, outcome_T + 1, 0)
    row = logistic_regression(x_RI, shifted_R, [x_TI], shifted_T, 4)
    assert row["accuracy"] == logistic_regression(x_RI, outcome_R, [x_TI[:7], x_TI[7:]], outcome_T, 3)["accuracy"]


def test_one_class_among_the_rows_fitted():
    """Of a large table with a rare class the sample may hold one class alone; that must not cost the report."""
    pytest.importorskip("sklearn")
    x_RI, _ = table(50)
    row = logistic_regression(x_RI, np.zeros(50, np.int64), [x_RI], np.arange(50) % 2, 2)
    assert row["name"] == "logistic regression" and row["accuracy"] in (0.5, None)


def test_without_sklearn(monkeypatch):
    """A row that says what is missing, not an error at the end of a run."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    x_RI, outcome_R = table(30)
    row = logistic_regression(x_RI, outcome_R, [x_RI], outcome_R, 3)
    assert row["accuracy"] is None and row["log_loss"] is None and "scikit-learn" in row["note"]
