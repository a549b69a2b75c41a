"""Thresholds keep their budgets on the calls they were chosen on; calibration is maximum likelihood."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.policy import ASK, Policy, calibrate, choose


@given(
    st.lists(st.tuples(st.floats(0.001, 0.999), st.booleans()), min_size=1, max_size=60),
    st.floats(0.01, 0.4),
    st.floats(0.01, 0.4),
)
def test_budgets_are_kept(rows, false_allow, false_block):
    """Any scores, ties included: neither share of wrong decisions is above its budget."""
    p_T, allow_T = np.array([p for p, _ in rows]), np.array([allow for _, allow in rows])
    policy = choose(p_T, allow_T, false_allow, false_block)
    decided = np.array([policy.decide(p) for p in p_T])
    if (~allow_T).any():
        assert (decided[~allow_T] == "allow").mean() <= false_allow
    if allow_T.any():
        assert (decided[allow_T] == "block").mean() <= false_block
    assert policy.block_below <= policy.allow_at


def test_two_classes_that_separate_are_never_asked_about():
    policy = choose(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]), 0.01, 0.01)
    assert 0.2 < policy.allow_at == policy.block_below <= 0.8
    assert policy.decide(0.8) == "allow" and policy.decide(0.2) == "block"


def test_without_both_classes_everything_is_asked():
    assert choose(np.array([0.5, 0.9]), np.array([True, True]), 0.01, 0.01) == ASK
    assert {ASK.decide(p) for p in (0.0, 0.5, 1.0)} == {"ask"}


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_lean_agrees_with_what_is_decided(p, a, b):
    """Where the gate asks, it leans to what is more likely."""
    policy = Policy(max(a, b), min(a, b))
    decided = policy.decide(p)
    assert policy.leans(p) == (p >= 0.5 if decided == "ask" else decided == "allow")


def test_a_correction_decides():
    policy = Policy(0.97, 0.2)
    for p in (0.0, 0.1, 0.5, 0.99):
        assert policy.decide(policy.corrected(p, True)) == "allow"
        assert policy.decide(policy.corrected(p, False)) == "block"


def test_calibration_finds_slope_and_offset():
    """Labels drawn from σ(0.5·z − 1) are calibrated back to that, and the gradient there is zero."""
    draws = np.random.default_rng(0)
    z_T = draws.normal(0, 4, 40_000)
    allow_T = draws.random(len(z_T)) < 1 / (1 + np.exp(1 - 0.5 * z_T))
    slope, offset = calibrate(z_T, allow_T)
    assert slope == pytest.approx(0.5, abs=0.02) and offset == pytest.approx(-1, abs=0.05)
    p_T = 1 / (1 + np.exp(-(slope * z_T + offset)))
    assert abs(float((p_T - allow_T).sum())) < 2


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_calibration_of_separated_or_single_classes_is_finite(scale):
    z_T = np.array([-2.0, -1.0, 1.0, 2.0]) * scale
    slope, offset = calibrate(z_T, z_T > 0)
    assert np.isfinite([slope, offset]).all() and slope > 0
    assert calibrate(z_T, z_T < 0) == (1.0, 0.0)  # worse than chance
    assert calibrate(z_T, np.ones(4, dtype=bool)) == (1.0, 0.0)
