"""The measured peak of a training step against what `gradproof sizes` predicts."""

import pytest
import torch

from gradproof.models import sizes
from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.train.peak import peak_bytes, step_bytes


def test_peak_counts_what_is_held_at_once():
    """A sum of all allocations, or what is left at the end, would differ."""

    def work():
        kept = torch.zeros(1000)
        for _ in range(3):
            aside = torch.zeros(5000)
            del aside
        return kept

    assert peak_bytes(work, "cpu") == 4 * 6000


@pytest.mark.parametrize("size", ["nano", "transformer-nano"])
@pytest.mark.parametrize("rows", [16, 512])
def test_a_step_of_a_small_size_takes_what_is_predicted(size, rows):
    assert_as_predicted(*sizes.named()[size], rows)


@pytest.mark.parametrize("rows", [16, 512])
def test_a_step_of_a_small_dense_takes_what_is_predicted(rows):
    assert_as_predicted(Dense, DenseConfig.sized("nano"), rows)


@pytest.mark.parametrize("mode", ["seq2seq", "classify"])
def test_a_step_of_an_encoder_takes_what_is_predicted(mode):
    """Cross-attention keeps its own queries, keys and values; a classifier has no logits of its tokens."""
    assert_as_predicted(Transformer, TransformerConfig(width=64, encoder_layers=2, decoder_layers=2, mode=mode), 512)


@pytest.mark.slow
def test_a_step_of_tiny_takes_what_is_predicted():
    assert_as_predicted(*sizes.named()["tiny"], 64)


def assert_as_predicted(kind, config, rows):
    """A buffer that is forgotten in the prediction, or a tape that outlives its backward, is off by more than 15%."""
    predicted = sizes.cost("", config, rows).total
    assert step_bytes(kind, config, rows, "cpu") == pytest.approx(predicted, rel=0.15)
