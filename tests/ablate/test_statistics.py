"""The corrected resampled t-test, its intervals and Holm's correction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ablate.statistics import Comparison, Estimate, compare, estimate, holm, p_value

stats = pytest.importorskip("scipy.stats")

scores = st.lists(st.floats(0.1, 0.9), min_size=2, max_size=12).filter(lambda s: np.std(s) > 1e-6)


@given(scores, st.integers(0, 999))
def test_without_shared_rows_it_is_the_paired_t_test(a, seed):
    """A wrong number of degrees of freedom, or n in place of n − 1, would differ from scipy."""
    b = [x + d for x, d in zip(a, np.random.default_rng(seed).normal(0.01, 0.02, len(a)), strict=True)]
    comparison = compare("a", "b", a, b, 0.0)
    right = stats.ttest_rel(a, b)
    assert comparison.p == pytest.approx(right.pvalue, rel=1e-9)
    low, high = right.confidence_interval(0.95)
    assert (comparison.difference.low, comparison.difference.high) == pytest.approx((low, high), rel=1e-9, abs=1e-12)


def test_the_correction_by_hand():
    """Nadeau and Bengio's factor 1/S + n_test/n_train in place of 1/S, in p-value and interval alike."""
    a, b = [0.83, 0.81, 0.84, 0.82, 0.85], [0.80, 0.81, 0.82, 0.80, 0.81]
    # Differences 3, 0, 2, 2, 4 hundredths: mean 2.2, variance (0.64 + 4.84 + 0.04 + 0.04 + 3.24)/4 = 2.2
    error = math.sqrt((1 / 5 + 0.2 / 0.7) * 2.2) / 100
    comparison = compare("a", "b", a, b, 0.2 / 0.7)
    assert comparison.p == pytest.approx(2 * stats.t.sf(0.022 / error, 4), rel=1e-9)
    assert comparison.difference.low == pytest.approx(0.022 - 2.7764451 * error, rel=1e-6)
    assert comparison.effect == pytest.approx(2.2 / math.sqrt(2.2), rel=1e-9)
    assert comparison.fewer_errors == pytest.approx(0.022 / (1 - 0.808), rel=1e-9)
    assert comparison.p > 2 * compare("a", "b", a, b, 0.0).p


@given(scores, st.floats(0, 2))
def test_the_interval_and_the_test_agree(a, share):
    """p below 5% exactly where the interval leaves zero out."""
    interval, p = estimate([x - 0.5 for x in a], share), p_value([x - 0.5 for x in a], share)
    assert (p < 0.05) == (not interval.low <= 0 <= interval.high) or abs(p - 0.05) < 1e-9


def test_holm_by_hand():
    """0.01·4, 0.015·3, 0.03·2, and 0.04 kept from falling below the one before."""
    made = [Comparison(str(p), "", Estimate(0.0, 0, 0, 0), None, None, p) for p in (0.04, 0.01, 0.03, 0.015)]
    assert [c.p_holm for c in holm(made)] == pytest.approx([0.06, 0.04, 0.06, 0.045])
    assert [c.significant for c in holm(made)] == [False, True, False, True]
    assert [c.first for c in holm(made)] == [c.first for c in made]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_rejects_as_holm_does(p):
    """Rejects the smallest while each is below 5%/(m − i + 1), and none after the first that is not."""
    made = [Comparison("a", "b", Estimate(0.0, 0, 0, 0), None, None, p_i) for p_i in p]
    rejected, m = set(), len(p)
    for rank, i in enumerate(sorted(range(m), key=lambda i: p[i])):
        if p[i] * (m - rank) >= 0.05:
            break
        rejected.add(i)
    assert {i for i, c in enumerate(holm(made)) if c.significant} == rejected


def test_one_seed_has_no_interval():
    """A standard deviation of one number is no number."""
    assert estimate([0.8], 0.3) == Estimate(0.8, None, None, None)
    comparison = compare("a", "b", [0.8], [0.7], 0.3)
    assert comparison.p is None and comparison.effect is None and not holm([comparison])[0].significant


def test_seeds_that_agree():
    """A difference of exactly nothing is no finding; the same difference at every seed is."""
    same = compare("a", "b", [0.8, 0.7], [0.8, 0.7], 0.3)
    assert same.p == 1.0 and same.effect is None
    assert p_value([0.25, 0.25, 0.25], 0.3) == 0.0


def test_two_seeds_that_agree_prove_nothing():
    """Accuracies are multiples of 1/rows, so two splits often differ alike by chance: no p-value, and no interval."""
    comparison = compare("a", "b", [0.926, 0.925], [0.921, 0.92], 0.3)
    assert comparison.difference.mean == pytest.approx(0.005) and comparison.difference.low is None
    assert comparison.p is None and not holm([comparison])[0].significant


def test_a_missing_score_is_refused():
    with pytest.raises(ValueError, match="a paired test needs the same seeds"):
        compare("a", "b", [0.8, 0.7], [0.8], 0.3)


def false_positives(test_share, tables=400, rows=300, seeds=10):
    """How often two equally good rules differ 'significantly' when a table is split anew at each seed.

    The rules are nearest class means by one column each; the columns are equally good, so any difference is chance."""
    train, rejected = int(rows / (1 + 0.2 / 0.7)), 0
    for table in range(tables):
        random = np.random.default_rng(table)
        y_R = random.integers(0, 2, rows)
        x_RN = random.normal(size=(rows, 2)) + 0.7 * y_R[:, None]
        d_S = []
        for _ in range(seeds):
            order = random.permutation(rows)
            r, t = order[:train], order[train:]
            cut_N = (x_RN[r][y_R[r] == 0].mean(0) + x_RN[r][y_R[r] == 1].mean(0)) / 2
            right_N = ((x_RN[t] > cut_N) == y_R[t][:, None]).mean(0)
            d_S.append(right_N[0] - right_N[1])
        rejected += p_value(d_S, test_share) < 0.05
    return rejected / tables


def test_the_rate_of_false_positives():
    """With the correction about one in twenty; without it, splits that share rows pass for new evidence."""
    share = 0.2 / 0.7
    assert false_positives(share) < 0.09
    assert false_positives(0.0) > 0.2
