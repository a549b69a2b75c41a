"""Costs: the decision of the lowest expected cost, by brute force; what is read and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.train.costs import RATIOS, cost_array, decide, read_costs, threshold_table, total_cost
from gradproof.train.predictor import Predictions

CLASSES = ("late", "lost", "on time")


def predicted(p_TC):
    none_T0 = np.zeros((len(p_TC), 0))
    return Predictions(p_TC.argmax(1), p_TC, none_T0, none_T0, none_T0)


@given(st.integers(2, 6), st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=6), st.integers(0, 999))
def test_no_other_decision_is_expected_to_cost_less(C, costs, seed):
    """Σ_c p_c·cost_c·[d ≠ c], for every d; a cost of false alarms instead of misses would choose otherwise."""
    p_TC, cost_C = np.random.default_rng(seed).dirichlet(np.ones(C), 20), np.array(costs[:C])
    expected_TC = np.stack([(p_TC * cost_C * (np.arange(C) != d)).sum(1) for d in range(C)], 1)
    found = decide(predicted(p_TC), cost_C)
    chosen_T = expected_TC[np.arange(20), found.decision_T]
    assert (chosen_T <= expected_TC.min(1) * (1 + 1e-9) + 1e-12).all()
    assert np.array_equal(found.probability_TC, p_TC)


def test_equal_costs_are_the_most_probable_class():
    before = predicted(np.random.default_rng(0).dirichlet(np.ones(4), 200).round(1))
    for cost_C in (None, np.ones(4), np.full(4, 7.0), np.full(4, 1e308), np.full(4, 1e-308)):
        assert np.array_equal(decide(before, cost_C).decision_T, before.decision_T)


def test_what_is_not_decided_stays_so():
    """The largest of NaN is the first class."""
    before = predicted(np.array([[0.5, 0.5], [0.1, 0.9]]))
    before.decision_T[0], before.probability_TC[0] = -1, np.nan
    assert decide(before, np.array([20.0, 1.0])).decision_T.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("text", "costs"),
    [
        ("late=5", [5, 1, 1]),
        ("on time=0.5, late=2e1", [20, 1, 0.5]),
        (" late = 5 ,lost=20", [5, 20, 1]),
    ],
)
def test_costs_as_they_are_written(text, costs):
    assert read_costs(text, CLASSES).tolist() == costs


def test_classes_with_commas_and_numbers_for_names():
    """Each cost ends in =NUMBER, so a comma or an equals sign before that is the name's own; True is true."""
    assert read_costs("a,b=2,a=b=3", ("a,b", "a=b")).tolist() == [2, 3]
    assert read_costs("1.0=4,True=5", ("1", "0", "true")).tolist() == [4, 1, 5]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lat=5", "there is no class 'lat'; the classes are 'late', 'lost', 'on time'"),
        ("late=5,=3", "CLASS=NUMBER"),
        ("late", "--costs is written CLASS=NUMBER,CLASS=NUMBER, not 'late'"),
        ("", "CLASS=NUMBER"),
        ("late=5,5", "not 'late=5,5'"),
        ("late=5,", "not 'late=5,'"),
        *(
            (f"late={cost}", "the cost of class 'late' must be a finite number above 0")
            for cost in ("0", "-1", "x", "")
        ),
        *((f"late={cost}", "must be a finite number above 0") for cost in ("nan", "inf", "1e999")),
        ("late=1,late=2", "class 'late' has two costs"),
    ],
)
def test_costs_that_do_not_fit(text, sentence):
    with pytest.raises(ValueError) as refused:
        read_costs(text, CLASSES)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_long_names_and_many_classes_are_cut():
    with pytest.raises(ValueError) as refused:
        cost_array([("x" * 9999, 1)], [f"class {i}" for i in range(1000)])
    assert len(str(refused.value)) < 300 and "'class 9' and 990 more" in str(refused.value)


@pytest.mark.parametrize("cost", [True, None, "5", [5], 10**400])
def test_costs_of_json_are_numbers(cost):
    with pytest.raises(ValueError, match="must be a finite number above 0"):
        cost_array([("late", cost)], CLASSES)


def test_total_cost_by_hand():
    """Each mistake costs what its true class costs, whatever was decided."""
    assert total_cost(np.array([0, 1, 2, 0]), np.array([0, 0, 1, 2]), np.array([5.0, 20.0, 1.0])) == 26.0


def test_thresholds_by_hand():
    """Ten rows on paper; the second class is rarer."""
    p_T = np.array([0.95, 0.6, 0.4, 0.3, 0.12, 0.45, 0.2, 0.1, 0.05, 0.01])  # of the second class
    outcome_T = np.array([1, 1, 1, 0, 1, 0, 0, 0, 0, 0])
    table = threshold_table(predicted(np.stack([1 - p_T, p_T], 1)), outcome_T, ("stays", "leaves"))
    assert table["class"] == "leaves" and [row["ratio"] for row in table["rows"]] == list(RATIOS) == [1, 2, 5, 10]
    assert [row["threshold"] for row in table["rows"]] == pytest.approx([1 / 2, 1 / 3, 1 / 6, 1 / 11])
    assert [row["decided"] for row in table["rows"]] == [2, 4, 6, 8]
    assert [row["recall"] for row in table["rows"]] == [0.5, 0.75, 0.75, 1.0]
    assert [row["precision"] for row in table["rows"]] == [1.0, 0.75, 0.5, 0.5]
    mirrored = threshold_table(predicted(np.stack([p_T, 1 - p_T], 1)), 1 - outcome_T, ("leaves", "stays"))
    assert mirrored == table


def test_thresholds_where_they_are_undefined():
    """None for several classes; null, not 0/0, without a row or without a decision."""
    assert threshold_table(predicted(np.ones((2, 3)) / 3), np.array([0, 1]), CLASSES) is None
    first = threshold_table(predicted(np.array([[0.99, 0.01]])), np.array([0]), ("a", "b"))["rows"][0]
    assert first["recall"] is None and first["precision"] is None and first["decided"] == 0
