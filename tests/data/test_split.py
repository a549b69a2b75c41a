import hashlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradproof.data.split import TEST, TRAIN, VALIDATION, split

# The parts of every run that was ever split from seed 0.
GOLDEN = "0eec6862cbb95095"


def outcomes(*counts):
    """counts[c] rows of class c, in an order that is not theirs."""
    outcome_R = np.repeat(np.arange(len(counts)), counts)
    return outcome_R[np.argsort(np.arange(len(outcome_R)) * 7 % 11, kind="stable")]


def parts(outcome_R, part_R, outcome):
    return np.bincount(part_R[outcome_R == outcome], minlength=3).tolist()


def test_stratified():
    """Each class gives its own share; a split of all rows together would leave a rare class to chance."""
    outcome_R = outcomes(1000, 100, 20, 10)
    part_R = split(outcome_R, 0, 0.1, 0.2)
    assert [parts(outcome_R, part_R, c) for c in range(4)] == [[700, 100, 200], [70, 10, 20], [14, 2, 4], [7, 1, 2]]


def test_deterministic():
    """A resumed run must find its own test rows again, on any machine; another seed is another split."""
    outcome_R = outcomes(40, 30, 7)
    part_R = split(outcome_R, 0, 0.2, 0.2)
    np.testing.assert_array_equal(part_R, split(outcome_R.copy(), 0, 0.2, 0.2))
    assert (part_R != split(outcome_R, 1, 0.2, 0.2)).any()
    assert hashlib.sha256(part_R.tobytes()).hexdigest()[:16] == GOLDEN


def test_classes_do_not_share_their_draw():
    """One stream for all classes would hold out the same places of each."""
    part_R = split(np.repeat([0, 1], 50), 0, 0.2, 0.2)
    assert (part_R[:50] != part_R[50:]).any()


def test_a_class_of_one_row_trains():
    """A class that is only tested could never be right."""
    part_R = split(np.array([0] * 10 + [1]), 0, 0.45, 0.45)
    assert part_R[-1] == TRAIN and (part_R[:-1] == TRAIN).sum() == 1


def test_without_held_out_rows():
    """Shares of zero divide by zero if one is not careful."""
    assert (split(outcomes(10, 5), 0, 0.0, 0.0) == TRAIN).all()
    assert set(split(outcomes(10, 10), 0, 0.3, 0.0)) == {TRAIN, VALIDATION}
    assert set(split(outcomes(10, 10), 0, 0.0, 0.3)) == {TRAIN, TEST}


@example([0, 0, 1, 1, 1], 0, 0.3125, 0.3125)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=200),
    st.integers(0, 9),
    st.floats(0, 0.45),
    st.floats(0, 0.45),
)
def test_shares(outcome, seed, validation, test):
    """For any classes: everyone trains, and each part of each class is as near to its share as two roundings leave it,
    of the rows held out so far and of those among them that are tested: a half each, and again for the class before."""
    outcome_R = np.array(outcome)
    part_R = split(outcome_R, seed, validation, test)
    share = test / (validation + test) if validation + test else 0.0
    for c in set(outcome):
        counts, rows = parts(outcome_R, part_R, c), outcome.count(c)
        assert sum(counts) == rows and counts[TRAIN] >= 1
        assert counts[VALIDATION] == pytest.approx(validation * rows, abs=2.01 - share)
        assert counts[TEST] == pytest.approx(test * rows, abs=1.01 + share)
