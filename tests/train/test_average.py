"""The running average of the weights."""

import pytest
import torch

from gradproof.models.dense import Dense, DenseConfig
from gradproof.train.average import EARLY, MOVING, WeightAverage
from gradproof.train.config import resolve


def test_by_hand():
    """mean + w·(p − mean), w = 9/(s + 9) at first and 1 − decay in the end."""
    params = Dense(DenseConfig(3, 2, 4, 5, 1), seed=0).params
    average, mean_P = WeightAverage(params, 0.9), params.flat_P.double()
    for s in (1, 2, 200, 201):
        params.flat_P.add_(s)
        average.add(s)
        mean_P += max(0.1, EARLY / (s + EARLY)) * (params.flat_P.double() - mean_P)
    assert torch.allclose(average.mean_P.double(), mean_P, rtol=1e-6)


def test_shown_and_back():
    """The model has the average for weights, and what moves comes back even when a validation raises."""
    model = Dense(DenseConfig(3, 2, 4, 5, 1), seed=0)
    average, first_P = WeightAverage(model.params, 0.9), model.params.flat_P.clone()
    model.params.flat_P.add_(1)
    moved_P = model.params.flat_P.clone()
    with pytest.raises(RuntimeError), average.shown():
        assert torch.equal(model.params.flat_P, first_P) and torch.equal(average.state()[MOVING], moved_P)
        raise RuntimeError
    assert torch.equal(model.params.flat_P, moved_P) and torch.equal(average.mean_P, first_P)


def test_a_checkpoint_has_both():
    model = Dense(DenseConfig(3, 2, 4, 5, 1), seed=0)
    average = WeightAverage(model.params, 0.9)
    model.params.flat_P.add_(1)
    with average.shown():
        saved, state = model.params.flat_P.clone(), {name: value.clone() for name, value in average.state().items()}
    restored = Dense(DenseConfig(3, 2, 4, 5, 1), seed=1)
    restored.params.flat_P.copy_(saved)
    again = WeightAverage(restored.params, 0.9)
    again.load_state(state)
    assert torch.equal(again.mean_P, average.mean_P) and torch.equal(restored.params.flat_P, model.params.flat_P)


@pytest.mark.parametrize(("given", "sentence"), [({"average": 1.0}, "average = 1.0"), ({"average": -0.1}, "average")])
def test_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        resolve(given)
