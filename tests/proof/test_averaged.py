"""A factor estimated over many runs: a wrong one is seen through noise, and a right one is not accused."""

import pytest
import torch

from gradproof.proof.as_trained import SCALES, BandOf
from gradproof.proof.averaged import ERRORS, HOPELESS, WEAK, FactorEstimate, hidden

UNIT = 2.0**-8  # of bf16


def estimate(factor, noise, *, runs=16, sizes=None, shared=0.0, jitter=2.0, seed=0):
    """Gradients of 16 entries of size 1, off by `noise` in each entry, by `shared` of themselves in every run, and by
    `jitter` times the noise where units are added."""
    draw = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(16, generator=draw, dtype=torch.float64)

    estimated = FactorEstimate()
    for size in sizes or [1.0] * runs:
        right = size * normal()
        grad = factor * (1 + shared) * right + noise * normal()
        estimated.add(right, grad, grad + jitter * noise * normal())
    return estimated


@pytest.mark.parametrize("factor, words", [(1.05, "times too large"), (0.95, "times too small")])
def test_a_factor_is_seen_through_noise(factor, words):
    """Of 2% in one run, of which 5 σ would hide it."""
    deviation = estimate(factor, 0.08 / 4).deviation(UNIT)
    assert deviation is not None and words in deviation.words
    assert deviation.error == pytest.approx(abs(factor - 1), abs=0.01) and deviation.bound < 0.05


@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0])
def test_noise_is_not_accused(noise):
    assert not any(estimate(1.0, noise, seed=seed).deviation(UNIT) for seed in range(200))


def test_what_all_runs_share_is_not_accused_below_what_rounding_does_in_one():
    """A table of constants is rounded alike in every run, so that no standard error tells of it."""
    assert not any(estimate(1.0, 0.02, shared=0.03, jitter=8.0, seed=seed).deviation(UNIT) for seed in range(200))


def test_one_run_that_outweighs_the_others_says_nothing():
    assert estimate(1.5, 0.01, sizes=[100.0, *[1.0] * 15]).deviation(UNIT) is None


def test_runs_without_a_finite_gradient_are_left_out():
    estimated = estimate(1.05, 0.001)
    before = len(estimated.sizes)
    right = torch.ones(16, dtype=torch.float64)
    for grad in (None, right / 0):
        estimated.add(right, grad, right)
    assert len(estimated.sizes) == before and estimated.deviation(UNIT) is not None
    assert FactorEstimate().deviation(UNIT) is None


def test_what_is_averaged():
    """Neither what one run shows, nor what is rounding alone."""
    assert not hidden(BandOf(1.0, WEAK / SCALES / 2)) and not hidden(BandOf(1.0, 2 * HOPELESS))
    assert hidden(BandOf(1.0, 0.03)) and ERRORS > SCALES
