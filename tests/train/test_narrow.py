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
    """A narrow router would flip decisions, narrow norms would round their gradient's scale."""
    for model in models():
        weights = NarrowWeights(model, dtype)
        assert list(weights) == list(model.params) and len(weights) == len(model.params)
        for name, _, kind in model.params.spec:
            wide = kind in ("gamma", "beta") or name.startswith("router.")
            assert weights[name].dtype == (torch.float32 if wide else dtype), name
            assert weights[name].shape == model.params[name].shape
            if wide:
                assert weights[name].data_ptr() == model.params[name].data_ptr()
            else:
                assert torch.equal(weights[name], model.params[name].to(dtype))


@DTYPES
def test_refresh_follows_the_masters(dtype):
    """A copy made once would train on the first weights for ever."""
    for model in models():
        weights = NarrowWeights(model, dtype)
        views = {name: weights[name] for name in weights}
        model.params.flat_P.mul_(1.25).add_(0.03125)
        stale = [name for name in weights if not torch.equal(weights[name].float(), model.params[name])]
        assert stale  # narrow ones do not follow by themselves
        weights.refresh()
        for name, view in views.items():
            assert weights[name] is view and torch.equal(view, model.params[name].to(view.dtype)), name


def test_masters_are_left_alone():
    """Rounding them in place would cost every digit that the next updates need."""
    for model in models():
        before = model.params.flat_P.clone()
        NarrowWeights(model, torch.bfloat16).refresh()
        assert torch.equal(model.params.flat_P, before) and model.params.flat_P.dtype == torch.float32


def test_rounds_to_nearest():
    """Truncation would shrink every weight by half a unit on average."""
    for model in models():
        wanted = 1 + 2.0**-8 + 2.0**-12  # just above the middle between two bf16 numbers
        model.params.flat_P.fill_(wanted)
        weights = NarrowWeights(model, torch.bfloat16)
        assert float(weights.flat_P.float()[0]) == 1 + 2.0**-7
