import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate import roc
from gradproof.gate.roc import Scored


@given(st.integers(0, 9999), st.integers(2, 40))
def test_agrees_with_scikit_learn(seed, rows):
    """Ties included."""
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(seed)
    score_R, block_R = generator.integers(0, 6, rows) / 5, generator.random(rows) < 0.4
    block_R[:2] = True, False
    assert roc.auc(score_R, block_R) == pytest.approx(metrics.roc_auc_score(block_R, score_R), abs=1e-12)


@given(st.integers(0, 9999), st.sampled_from([0.001, 0.01, 0.1, 0.5]))
def test_no_more_are_blocked_falsely_than_said(seed, share):
    """The threshold is the lowest that keeps the promise: the next lower score would break it."""
    generator = np.random.default_rng(seed)
    allowed_R = np.round(generator.normal(size=300), 1)
    at = roc.threshold(allowed_R, share)
    assert (allowed_R > at).mean() <= share
    lower = allowed_R[allowed_R < at]
    assert len(lower) == 0 or (allowed_R > lower.max()).mean() > share


def test_without_both_classes_there_is_no_figure():
    score_R, all_block = np.arange(4.0), np.ones(4, dtype=bool)
    assert roc.auc(score_R, all_block) is None and roc.recall_at(score_R, ~all_block, 0.01) is None
    assert roc.figures([Scored(score_R, all_block)])["auc"] is None


def test_the_curve_rises_from_nothing_to_everything():
    generator = np.random.default_rng(1)
    block_R = generator.random(500) < 0.2
    points = roc.curve(np.round(generator.normal(size=500) + block_R, 1), block_R)
    xs, ys = zip(*points, strict=True)
    assert points[0] == (0.0, 0.0) and points[-1] == (1.0, 1.0)
    assert list(xs) == sorted(xs) and list(ys) == sorted(ys)


def test_the_bootstrap_tells_better_from_equal():
    """A clear advantage has an interval above zero; a score against itself has a difference of exactly zero."""
    generator = np.random.default_rng(2)
    block_R = generator.random(600) < 0.2
    noise_R = generator.normal(size=600)
    good, poor = Scored(noise_R + 3 * block_R, block_R), Scored(noise_R + 0.5 * block_R, block_R)
    advantage = roc.paired_bootstrap([good], [poor], draws=60)["auc"]
    assert 0 < advantage["low"] <= advantage["difference"] <= advantage["high"]
    same = roc.paired_bootstrap([good], [good], draws=20)["recall_at_1pct"]
    assert same == {"difference": 0.0, "low": 0.0, "high": 0.0}
