import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.train.schedule import Schedule

SHAPES = ("constant", "warmup-cosine", "warmup-stable-decay")


def test_constant():
    """Warmup and decay belong to the other shapes."""
    schedule = Schedule(10, "constant", warmup=0.5, decay=0.5)
    assert [schedule.factor(step) for step in range(12)] == [1.0] * 12


def test_warmup_cosine_by_hand():
    """Warmup from 0 (a lost first step), a cosine over all steps or one that ignores the floor would differ."""
    schedule = Schedule(10, "warmup-cosine", warmup=0.2, floor=0.1)
    right = [0.5, 1.0] + [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * u / 8)) for u in range(8)]
    assert [schedule.factor(step) for step in range(10)] == pytest.approx(right, rel=1e-14)
    assert schedule.factor(2) == 1.0
    assert schedule.factor(10) == schedule.factor(50) == pytest.approx(0.1, rel=1e-14)


def test_warmup_stable_decay_by_hand():
    """Flat at 1 from the end of the warmup to the last fifth, then down a straight line."""
    schedule = Schedule(10, "warmup-stable-decay", warmup=0.2, decay=0.4, floor=0.2)
    right = [0.5, 1, 1, 1, 1, 1, 1, 0.2 + 0.8 * 0.75, 0.2 + 0.8 * 0.5, 0.2 + 0.8 * 0.25]
    assert [schedule.factor(step) for step in range(10)] == pytest.approx(right, rel=1e-14)
    assert schedule.factor(10) == schedule.factor(99) == pytest.approx(0.2)


def test_no_warmup_starts_at_the_peak():
    """A division by zero steps of warmup, or a first step of rate 0."""
    for shape in SHAPES:
        assert Schedule(7, shape, warmup=0.0).factor(0) == 1.0


@given(
    steps=st.integers(1, 300),
    shape=st.sampled_from(SHAPES),
    warmup=st.sampled_from([0.0, 0.05, 0.3, 0.5]),
    decay=st.sampled_from([0.0, 0.2, 0.5]),
    floor=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_rises_once_and_falls_once(steps, shape, warmup, decay, floor):
    """No step of a run has rate 0 or more than the peak, which one step reaches; no jump back up."""
    schedule = Schedule(steps, shape, warmup, decay, floor)
    factors = [schedule.factor(step) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors) and max(factors) == 1.0
    top = factors.index(1.0)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (dict(steps=10, shape="linear"), "schedule = 'linear'.*constant, warmup-cosine and warmup-stable-decay"),
        (dict(steps=0), "steps ≥ 1"),
        (dict(steps=10, warmup=-0.1), "warmup and decay ≥ 0"),
        (dict(steps=10, floor=1.5), "floor between 0 and 1"),
        (dict(steps=10, floor=float("nan")), "floor between 0 and 1"),
        (dict(steps=10, warmup=1.1), "warmup 1.1"),
        (dict(steps=10, shape="warmup-stable-decay", warmup=0.6, decay=0.6), "at most 1 together"),
        (dict(steps=10, warmup=float("nan")), "warmup"),
    ],
)
def test_refuses(given_, message):
    """Found out at the first step, the data would have been read for nothing."""
    with pytest.raises(ValueError, match=message):
        Schedule(**given_)


def test_decay_is_no_matter_to_a_cosine():
    """Its share of the steps is not used there."""
    assert Schedule(10, "warmup-cosine", warmup=0.9, decay=0.5).factor(0) == pytest.approx(1 / 9)
