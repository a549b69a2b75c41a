import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.rows import Rows
from gradproof.data.schema import Metric, Schema
from gradproof.train.predictor import Predictions
from gradproof.train.score import BINS, brier, calibration, log_loss, score


def schema(C, *metrics):
    return Schema("y", tuple(f"class {c}" for c in range(C)), metrics=metrics)


def drawn(T, C, seed=0, sharp=1.0):
    """Probabilities and outcomes that mostly agree."""
    random = np.random.default_rng(seed)
    logit_TC = sharp * random.normal(size=(T, C))
    p_TC = np.exp(logit_TC) / np.exp(logit_TC).sum(1, keepdims=True)
    outcome_T = np.array([random.choice(C, p=p) for p in p_TC])
    return p_TC, outcome_T


def scored(p_TC, outcome_T, found_TM=None, truth_TM=None, metrics=()):
    none_T0 = np.zeros((len(outcome_T), 0))
    found_TM, truth_TM = (none_T0, none_T0) if found_TM is None else (found_TM, truth_TM)
    predictions = Predictions(p_TC.argmax(1), p_TC, found_TM, none_T0, none_T0)
    return score(predictions, Rows(none_T0, none_T0, outcome_T, truth_TM), schema(p_TC.shape[1], *metrics))


@pytest.mark.parametrize(("T", "C", "seed"), [(400, 2, 0), (300, 12, 1), (60, 5, 2), (7, 3, 3)])
def test_agrees_with_sklearn(T, C, seed):
    """Precision for recall, a transposed confusion, a macro mean over absent classes or a mean of bins would differ."""
    metrics = pytest.importorskip("sklearn.metrics")
    p_TC, outcome_T = drawn(T, C, seed, sharp=2.0)
    record, labels = scored(p_TC, outcome_T), list(range(C))
    decision_T = p_TC.argmax(1)
    right = metrics.precision_recall_fscore_support(outcome_T, decision_T, labels=labels, zero_division=np.nan)
    for c, (precision, recall, _, support) in enumerate(zip(*right, strict=True)):
        row = record["classes"][c]
        assert row["name"] == f"class {c}" and row["support"] == support
        assert row["precision"] == (None if np.isnan(precision) else pytest.approx(precision))
        assert row["recall"] == (None if np.isnan(recall) else pytest.approx(recall))
    f1_C = metrics.f1_score(outcome_T, decision_T, labels=labels, average=None, zero_division=0)
    assert [row["f1"] or 0.0 for row in record["classes"]] == pytest.approx(f1_C.tolist())
    present = sorted(set(outcome_T))
    macro = metrics.f1_score(outcome_T, decision_T, labels=present, average="macro", zero_division=0)
    assert record["macro_f1"] == pytest.approx(macro)
    assert record["accuracy"] == pytest.approx(metrics.accuracy_score(outcome_T, decision_T))
    assert record["log_loss"] == pytest.approx(metrics.log_loss(outcome_T, p_TC, labels=labels), rel=1e-12)
    assert record["confusion"] == metrics.confusion_matrix(outcome_T, decision_T, labels=labels).tolist()
    assert record["rows"] == T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that is decided for and has no row
        assert record["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(outcome_T, decision_T))
    # Class by class, which is the same in every version; scikit-learn's own sum over classes is new.
    squares = [metrics.brier_score_loss(outcome_T == c, p_TC[:, c], pos_label=True) for c in labels]
    assert record["brier"] == pytest.approx(sum(squares), rel=1e-12)
    areas = [metrics.roc_auc_score(outcome_T == c, p_TC[:, c]) for c in present]
    assert record["auc"] == pytest.approx(np.mean(areas), rel=1e-12)
    recalls = {row["name"]: row["recall"] for row in record["classes"] if row["support"]}
    assert record["worst_class"]["recall"] == min(recalls.values()) == recalls[record["worst_class"]["name"]]


def test_by_hand():
    """Four rows on paper, without sklearn."""
    p_TC = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1]])
    record = scored(p_TC, np.array([0, 1, 1, 0]))
    assert record["accuracy"] == 0.75 and record["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert record["log_loss"] == pytest.approx(-np.log([0.7, 0.3, 0.8, 0.5]).mean())
    zero, one, two = record["classes"]
    assert (zero["precision"], zero["recall"], zero["f1"]) == pytest.approx((2 / 3, 1.0, 0.8))
    assert (one["precision"], one["recall"], one["f1"]) == pytest.approx((1.0, 0.5, 2 / 3))
    assert (two["precision"], two["recall"], two["f1"], two["support"]) == (None, None, None, 0)
    assert record["macro_f1"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert record["balanced_accuracy"] == 0.75 and record["worst_class"] == one
    # Σ (p − y)² of each row. Of the four pairs of class 0 with the rest one is in the wrong order, and of class 1.
    assert record["brier"] == pytest.approx((0.14 + 0.86 + 0.06 + 0.42) / 4)
    assert record["auc"] == pytest.approx((0.75 + 0.75) / 2)
    # Confidences 0.5, 0.6, 0.7, 0.8, each alone in its bin; right, wrong, right, right.
    assert record["ece"] == pytest.approx((0.5 + 0.6 + 0.3 + 0.2) / 4)


@pytest.mark.parametrize("absent", [0, 3])
def test_a_class_without_a_row(absent):
    """A small test part may lack one; 0/0 must not end a run that took hours."""
    p_TC, outcome_T = drawn(50, 4)
    outcome_T[outcome_T == absent] = 1
    record = scored(p_TC, outcome_T)
    row = record["classes"][absent]
    assert row["support"] == 0 and row["recall"] is None and row["f1"] == 0.0
    assert 0 < record["macro_f1"] < 1 and len(record["confusion"]) == 4


def test_a_class_that_is_never_decided():
    """No precision, but a recall of 0."""
    p_TC, outcome_T = drawn(50, 3)
    p_TC = np.concatenate([p_TC * (1 - 1e-9), np.full((50, 1), 1e-9)], 1)
    outcome_T[:5] = 3
    row = scored(p_TC, outcome_T)["classes"][3]
    assert (row["precision"], row["recall"], row["f1"], row["support"]) == (None, 0.0, 0.0, 5)


@given(
    confidences=st.lists(
        st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 1.0, 1 - 2**-53])),
        min_size=1,
        max_size=60,
    ),
    seed=st.integers(0, 99),
)
def test_calibration_bins_hold_every_row_once(confidences, seed):
    """An open last bin would lose the rows of confidence 1, a closed one would count the edges twice."""
    confidence_T = np.array(confidences)
    right_T = np.random.default_rng(seed).random(len(confidences)) < 0.5
    bins = calibration(confidence_T, right_T)
    assert len(bins) == BINS and sum(b["count"] for b in bins) == len(confidences)
    assert [b["low"] for b in bins] == [i / 10 for i in range(10)] and bins[-1]["high"] == 1.0
    held = [b for b in bins if b["count"]]
    assert all(b["low"] - 1e-12 <= b["confidence"] <= b["high"] + 1e-12 for b in held)
    assert sum(b["count"] * b["accuracy"] for b in held) == pytest.approx(right_T.sum())
    assert sum(b["count"] * b["confidence"] for b in held) == pytest.approx(confidence_T.sum())
    assert all(b["confidence"] is None and b["accuracy"] is None for b in bins if not b["count"])


def test_a_calibrated_model_has_a_small_ece():
    """Labels drawn from the probabilities themselves; overconfidence by a factor of two in the logits shows."""
    p_TC, outcome_T = drawn(4000, 4, seed=5, sharp=1.5)
    sure_TC = p_TC**2 / (p_TC**2).sum(1, keepdims=True)
    assert scored(p_TC, outcome_T)["ece"] < 0.03 < 0.1 < scored(sure_TC, outcome_T)["ece"]


def test_log_loss_of_the_impossible():
    """A probability of 0 for what happened costs much, but not infinity, which is no JSON."""
    assert 700 < log_loss(np.array([[1.0, 0.0]]), np.array([1])) < 710
    assert log_loss(np.array([[1.0, 0.0]]), np.array([0])) == 0.0


def test_brier_of_two_classes_is_twice_the_square():
    """The convention that the docstring names; a model that is always surely wrong has 2."""
    assert brier(np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([0, 0])) == pytest.approx(2 * (0.3**2 + 0.8**2) / 2)
    assert brier(np.array([[1.0, 0.0]]), np.array([1])) == 2.0 == brier(np.array([[np.nan, np.nan]]), np.array([1]))


def test_one_class_alone_has_no_auc():
    p_TC, outcome_T = drawn(20, 2)
    record = scored(p_TC, np.zeros_like(outcome_T))
    assert record["auc"] is None and record["brier"] > 0


def test_metrics_by_hand():
    """In their own units: learned on [0, 1], predicted on [low, high]; r² of a constant truth is undefined."""
    found_TM = np.array([[150.0, 0.2], [170.0, 0.2]])
    truth_TM = np.array([[0.4, 0.3], [0.9, 0.3]], np.float32)  # 140 and 190
    p_TC, metrics = np.array([[0.6, 0.4], [0.4, 0.6]]), (Metric("cost", 100.0, 200.0), Metric("risk"))
    first, second = scored(p_TC, np.array([0, 1]), found_TM, truth_TM, metrics)["metrics"]
    assert (first["name"], second["name"]) == ("cost", "risk")
    assert first["mae"] == pytest.approx(15, rel=1e-6) and second["mae"] == pytest.approx(0.1, rel=1e-6)
    assert first["rmse"] == pytest.approx(np.sqrt((100 + 400) / 2), rel=1e-6)
    assert first["r2"] == pytest.approx(1 - 500 / 1250, rel=1e-6) and second["r2"] is None


def test_the_record_is_plain_data():
    """numpy's numbers are no JSON."""
    p_TC, outcome_T = drawn(30, 3)
    truth_TM = np.random.default_rng(0).random((30, 2)).astype(np.float32)
    record = scored(p_TC, outcome_T, truth_TM + 0.1, truth_TM, (Metric("a"), Metric("b")))
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_a_row_without_a_decision():
    """Outputs that are not finite: wrong, but no decision for the last class, and no NaN in report.json."""
    p_TC, outcome_T = drawn(30, 3)
    decision_T, none_T0 = p_TC.argmax(1), np.zeros((30, 0))
    outcome_T[0], decision_T[0], p_TC[0] = 2, -1, np.nan
    predictions = Predictions(decision_T, p_TC, none_T0, none_T0, none_T0)
    record = score(predictions, Rows(none_T0, none_T0, outcome_T, none_T0), schema(3))
    json.dumps(record, allow_nan=False)
    assert record["accuracy"] == (decision_T == outcome_T).mean()
    assert record["confusion"][2][2] == ((outcome_T[1:] == 2) & (decision_T[1:] == 2)).sum()
