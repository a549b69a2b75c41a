import pytest
import torch

from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train.narrow import NarrowWeights

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def models():
    yield MoE(MoEConfig(inputs=5, outputs=3, hidden=6, depth=1), seed=1)
    yield Dense(DenseConfig(5, 3, hidden=6, feedforward=9, blocks=1), seed=1)


@DTYPES
def test_what_is_narrow_and_what_is_not(dtype):
    """A narrow router would flip decisions, narrow norms and biases would round their gradient's scale."""
    for model in models():
        weights, (prefix, copies) = NarrowWeights(model.params, dtype), shape(model)
        assert all(weights[name].data_ptr() == model.params[name].data_ptr() for name in model.params)
        theta_EP, narrow_EP = weights.shards(prefix, copies)
        assert torch.equal(theta_EP, model.params.shards(prefix, copies)[0])
        assert narrow_EP.dtype == dtype and torch.equal(narrow_EP, theta_EP.to(dtype))


def shape(model):
    return ("experts.", model.config.experts) if isinstance(model, MoE) else ("", 1)


@DTYPES
def test_refresh_follows_the_masters(dtype):
    """A copy made once would train on the first weights for ever."""
    for model in models():
        weights = NarrowWeights(model.params, dtype)
        theta_EP, narrow_EP = weights.shards(*shape(model))
        model.params.flat_P.mul_(1.25).add_(0.03125)
        assert not torch.equal(narrow_EP, theta_EP.to(dtype))  # the copy does not follow by itself
        weights.refresh()
        assert torch.equal(narrow_EP, theta_EP.to(dtype))


def test_masters_are_left_alone():
    """Rounding them in place would cost every digit that the next updates need."""
    for model in models():
        before = model.params.flat_P.clone()
        NarrowWeights(model.params, torch.bfloat16).refresh()
        assert torch.equal(model.params.flat_P, before) and model.params.flat_P.dtype == torch.float32


def test_rounds_to_nearest():
    """Truncation would shrink every weight by half a unit on average."""
    for model in models():
        wanted = 1 + 2.0**-8 + 2.0**-12  # just above the middle between two bf16 numbers
        model.params.flat_P.fill_(wanted)
        weights = NarrowWeights(model.params, torch.bfloat16)
        assert float(weights.flat_P.float()[0]) == 1 + 2.0**-7
