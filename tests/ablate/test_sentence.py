"""The answer in words."""

import pytest

from gradproof.ablate.sentence import answer, summary
from gradproof.ablate.statistics import Comparison, Estimate

LABELS = {"moe": "MoE", "dense": "Dense", "hgb": "HistGradientBoosting", "mlp": "PyTorch MLP"}


def compared(mean, low, high, p, second="dense"):
    return Comparison("moe", second, Estimate(mean, low, high, 0.01), 1.0, 0.1, p, p)


@pytest.mark.parametrize(
    ("comparison", "right"),
    [
        (
            compared(0.002, -0.005, 0.009, 0.4),
            "No evidence that MoE helps on this table: +0.2 points against Dense, 95% interval −0.5 to +0.9 "
            "(p = 0.4 after Holm's correction)",
        ),
        (
            compared(0.0131, 0.008, 0.0182, 0.00012),
            "MoE helps on this table: +1.3 points against Dense, 95% interval +0.8 to +1.8 "
            "(p < 0.001 after Holm's correction)",
        ),
        (
            compared(-0.02, -0.03, -0.01, 0.011),
            "No evidence that MoE helps on this table: it hurts, −2.0 points against Dense, 95% interval −3.0 to −1.0 "
            "(p = 0.011 after Holm's correction)",
        ),
    ],
)
def test_the_three_answers(comparison, right):
    """A gain that may be chance is no evidence, and neither is a loss."""
    assert answer(comparison, LABELS) == right


def test_an_interval_beside_zero_is_not_enough():
    """Where Holm's correction takes the finding back, the sentence does too."""
    comparison = compared(0.01, 0.001, 0.019, 0.03)._replace(p_holm=0.09)
    assert answer(comparison, LABELS).startswith("No evidence that MoE helps")


def test_nothing_is_no_gain():
    assert "0.0 points against Dense" in answer(compared(-0.0001, -0.01, 0.01, 0.9), LABELS)


def test_who_else_is_ahead():
    """All that are ahead, the furthest first; where chance may have done it, that is said."""
    beside = [compared(-0.004, -0.01, 0.002, 0.5, "mlp"), compared(-0.013, -0.02, -0.006, 0.01, "hgb")]
    assert summary(compared(0.002, -0.005, 0.009, 0.4), beside, LABELS).endswith(
        "; HistGradientBoosting is 1.3 points ahead; PyTorch MLP is 0.4 points (within chance) ahead."
    )
    beside = [compared(0.02, 0.01, 0.03, 0.01, "mlp"), compared(0.005, 0.001, 0.009, 0.01, "hgb")]
    assert summary(compared(0.1, 0.09, 0.11, 0.01), beside, LABELS).endswith(
        "; HistGradientBoosting is 0.5 points behind."
    )


def test_one_seed():
    """No interval, no claim."""
    alone = Comparison("moe", "dense", Estimate(0.01, None, None, None), None, 0.1, None, None)
    assert (
        answer(alone, LABELS)
        == "MoE on this table: +1.0 points against Dense; more seeds would show whether this is chance"
    )
