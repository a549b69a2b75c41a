"""The measured peak of a training step against what `gradproof sizes` predicts."""

import pytest
import torch

from gradproof.models import sizes
from gradproof.models.subject import family
from gradproof.train.memory import peak_bytes, step_bytes


def test_peak_counts_what_is_held_at_once():
    """A sum of all allocations, or what is left at the end, would differ."""

    def work():
        kept = torch.zeros(1000)
        for _ in range(3):
            aside = torch.zeros(5000)
            del aside
        return kept

    assert peak_bytes(work, "cpu") == 4 * 6000


@pytest.mark.parametrize("model", ["moe", "dense"])
@pytest.mark.parametrize("rows", [16, 512])
def test_a_step_of_nano_takes_what_is_predicted(model, rows):
    """A buffer that is forgotten in the prediction, or a tape that outlives its backward, is off by more than 15%."""
    predicted = sizes.cost("nano", family(model).Config.sized("nano"), rows).total
    measured = step_bytes(model, "nano", rows, "cpu")
    assert measured == pytest.approx(predicted, rel=0.15)


@pytest.mark.slow
def test_a_step_of_tiny_takes_what_is_predicted():
    predicted = sizes.cost("tiny", family("moe").Config.sized("tiny"), 64).total
    assert step_bytes("moe", "tiny", 64, "cpu") == pytest.approx(predicted, rel=0.15)
