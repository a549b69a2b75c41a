"""AUC against scikit-learn and by hand; ties and absent classes above all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.train.auc import auc, mean_auc


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=40))
def test_counts_pairs(rows):
    """The definition itself; a rank that is off by a half at ties would differ."""
    positive = [score for score, own in rows if own]
    negative = [score for score, own in rows if not own]
    found = auc(np.array([score for score, _ in rows], float), np.array([own for _, own in rows]))
    if not positive or not negative:
        assert found is None
        return
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    assert found == pytest.approx(wins / len(positive) / len(negative))


@pytest.mark.parametrize("digits", [1, 2, 15])
@pytest.mark.parametrize("C", [2, 3, 7])
def test_agrees_with_sklearn(C, digits):
    """Rounded to one digit, most rows tie."""
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(C)
    p_TC = random.dirichlet(np.ones(C), 300).round(digits)
    p_TC /= p_TC.sum(1, keepdims=True)
    outcome_T = np.where(random.random(300) < 0.4, p_TC.argmax(1), random.integers(0, C, 300))
    right = metrics.roc_auc_score(outcome_T, p_TC[:, 1] if C == 2 else p_TC, multi_class="ovr", average="macro")
    assert mean_auc(p_TC, outcome_T) == pytest.approx(right, rel=1e-12)


def test_a_class_without_rows_is_left_out():
    """As 0 or 0.5 it would pull the mean down."""
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    p_TC = random.dirichlet(np.ones(4), 200).round(2)
    outcome_T = random.choice([0, 1, 3], 200)
    right = np.mean([metrics.roc_auc_score(outcome_T == c, p_TC[:, c]) for c in (0, 1, 3)])
    assert mean_auc(p_TC, outcome_T) == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("C", [2, 5])
@pytest.mark.parametrize("only", [0, 1])
def test_undefined_where_all_rows_are_of_one_class(C, only):
    assert mean_auc(np.full((9, C), 1 / C), np.full(9, only)) is None


def test_no_opinion_is_a_half():
    """The majority baseline: every row ties with every other."""
    assert mean_auc(np.broadcast_to([0.2, 0.3, 0.5], (60, 3)), np.arange(60) % 3) == 0.5


def test_a_row_without_probabilities_counts_against_the_model():
    """NaN sorts last: a positive row would pass for the surest of all."""
    p_TC = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    outcome_T = np.array([0, 0, 1, 1])
    assert mean_auc(p_TC, outcome_T) == 1.0
    for row in range(4):
        broken_TC = p_TC.copy()
        broken_TC[row] = np.nan
        assert mean_auc(broken_TC, outcome_T) == 0.5
