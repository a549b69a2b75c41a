"""Drift is found where it is, and not where it is not."""

import numpy as np

from gradproof.gate.drift import BINS, deciles, errors, histogram, shifted, stability


def test_a_rising_error_rate_is_found_soon():
    draws = np.random.default_rng(0)
    steady = (draws.random(2000) < 0.03).astype(float).tolist()
    assert not errors(steady).drift
    state, worse = errors(steady), (draws.random(300) < 0.25).astype(float)
    for after, error in enumerate(worse):  # noqa: B007
        state = state.after(float(error))
        if state.drift:
            break
    assert state.drift and after < 100


def test_false_alarms_are_rare():
    """Steady rates of 1 to 10%, 2000 judgements each, 40 streams."""
    draws = np.random.default_rng(1)
    alarms = [errors((draws.random(2000) < rate).astype(float)).drift for rate in np.linspace(0.01, 0.1, 40)]
    assert sum(alarms) <= 4


def test_a_falling_rate_is_no_drift():
    assert not errors([1.0] * 50 + [0.0] * 500).drift


def test_shifted_scores_are_found():
    draws = np.random.default_rng(2)
    edges = deciles(draws.beta(8, 2, 2000).tolist())
    assert len(edges) == BINS - 1
    same, other = (histogram(draws.beta(a, 2, 1000), edges) for a in (8, 4))
    even = [100] * BINS
    assert stability(even, same) < 0.05 and not shifted(even, same)
    assert stability(even, other) > 0.25 and shifted(even, other)


def test_few_or_equal_values():
    """Nothing is said of a handful of decisions; a constant score has one edge."""
    assert not shifted([3, 0], [0, 3])
    assert histogram([], []) == [0] and deciles([]) == []
    assert deciles([0.5] * 10) == [0.5] and histogram([0.4, 0.5, 0.6], [0.5]) == [1, 2]
    assert stability([10, 0], [0, 10]) > 1 and stability([5, 5], [50, 50]) < 0.01
