import sys

import numpy as np
import pytest

from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Number, Schema
from gradproof.train import baselines
from gradproof.train.baselines import boosted_trees, logistic_regression, majority, most_tree_rows
from gradproof.train.score import FIGURES


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
    assert row["auc"] == 0.5 and row["rows"] == 10 and row["seconds"] is None


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
    metrics = pytest.importorskip("sklearn.metrics")
    assert row["auc"] == pytest.approx(metrics.roc_auc_score(outcome_T, right, multi_class="ovr"))
    assert row["note"] == "fitted to 600 rows" and row["rows"] == 600 and row["seconds"] > 0


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
    for module in ("sklearn.linear_model", "sklearn.ensemble"):
        monkeypatch.setitem(sys.modules, module, None)
    x_RI, outcome_R = table(30)
    row = logistic_regression(x_RI, outcome_R, [x_RI], outcome_R, 3)
    assert row["accuracy"] is None and row["log_loss"] is None and "scikit-learn" in row["note"]
    trees = boosted_trees(*mixed(30), SCHEMA)
    assert trees["note"] == row["note"] and trees.keys() == row.keys() and trees["name"] == "boosted trees"


SCHEMA = Schema(
    "y", ("no", "yes"), (Category("shop", tuple("abcdefgh"), missing=True),), (Number("x", 0.0, 1.0, missing=True),)
)


def mixed(T=600, seed=0):
    """(rows, rows): yes in every other shop, and where x is missing. As an order of codes, shops need many splits."""
    random = np.random.default_rng(seed)
    code_T, x_T = random.integers(-1, 8, 2 * T), random.normal(size=2 * T)
    x_T[random.random(2 * T) < 0.3] = np.nan
    outcome_T = ((code_T % 2 == 1) ^ np.isnan(x_T)).astype(np.int64)
    rows = Rows(code_T[:, None].astype(np.int32), x_T[:, None], outcome_T, np.empty((2 * T, 0), np.float32))
    return rows.slice(0, T), rows.slice(T, 2 * T)


def test_trees_take_names_and_missing_values_as_such():
    """The rule is in what is missing and in the names: a missing number that became 0 could not tell."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    rows, truth = mixed()
    row = boosted_trees(rows, truth, SCHEMA)
    assert row["accuracy"] > 0.97 and row["auc"] > 0.97
    x_RI, x_TI = (np.concatenate([part.codes_RC.astype(float), part.numbers_RN], 1) for part in (rows, truth))
    x_RI[:, 0][x_RI[:, 0] < 0], x_TI[:, 0][x_TI[:, 0] < 0] = np.nan, np.nan
    model = ensemble.HistGradientBoostingClassifier(categorical_features=[0], random_state=0).fit(x_RI, rows.outcome_R)
    right_T = model.predict_proba(x_TI)[np.arange(truth.count), truth.outcome_R]
    assert row["log_loss"] == pytest.approx(-np.log(right_T).mean(), rel=1e-6)
    assert row["note"] == "fitted to 600 rows" and row["rows"] == 600 and row["seconds"] > 0


def test_trees_twice_are_the_same_trees():
    """Above 10,000 rows some are set aside at random for early stopping."""
    pytest.importorskip("sklearn")
    rows, truth = mixed(10_500)
    first, again = (boosted_trees(rows, truth, SCHEMA) for _ in range(2))
    assert [first[figure] for figure in FIGURES] == [again[figure] for figure in FIGURES]


def test_trees_of_a_class_with_one_row():
    """Early stopping would split each class in two, and end the report of a run that took hours."""
    pytest.importorskip("sklearn")
    rows, truth = mixed(10_500)
    rows.outcome_R[7] = 3
    schema = Schema("y", ("no", "yes", "never", "once"), SCHEMA.categories, SCHEMA.numbers)
    row = boosted_trees(rows, truth, schema)
    assert row["accuracy"] > 0.97 and row["rows"] == 10_499


def test_trees_that_would_take_long_are_not_fitted():
    rows, truth = mixed(40)
    schema = Schema("y", tuple(map(str, range(1000))), SCHEMA.categories, SCHEMA.numbers)
    pytest.importorskip("sklearn")
    row = boosted_trees(rows, truth, schema)
    assert row["accuracy"] is None and row["note"].startswith(
        "not fitted: 1,000 classes and 2 columns would take too long"
    )
    assert boosted_trees(rows.slice(0, 0), truth, SCHEMA)["note"] == "there is only one class"


@pytest.mark.parametrize(("classes", "most"), [(2, 50_000), (3, 50_000), (12, 20_000), (100, 2_400)])
def test_many_classes_are_fitted_to_fewer_rows(classes, most):
    """A round of boosting fits a tree for each class, of two classes one."""
    assert most_tree_rows(Schema("y", tuple(map(str, range(classes))))) == most


def test_as_many_threads_as_the_run(monkeypatch):
    """Seconds of all cores beside those of one would compare nothing."""
    pytest.importorskip("sklearn")
    openmp = pytest.importorskip("sklearn.utils._openmp_helpers")
    used = []
    fit = baselines.fit_trees
    monkeypatch.setattr(baselines.torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(
        baselines, "fit_trees", lambda *args: used.append(openmp._openmp_effective_n_threads()) or fit(*args)
    )
    boosted_trees(*mixed(60), SCHEMA)
    assert used == [3]
