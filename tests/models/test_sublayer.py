"""Which sublayer is running: the innermost one, put back whatever happens, and seen by `diagnose` on our models."""

import threading

import pytest
import torch

from gradproof.models.sublayer import running, sublayer
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.precision.watching import Watching
from gradproof.train.loss import Loss
from gradproof.train.model_specimen import ModelSpecimen


@sublayer
def inner(x, prefix, fails=False):
    if fails:
        raise ValueError(running())
    return x, running()


@sublayer
def outer(prefix, fails=False):
    return running(), inner(1, prefix=f"{prefix}inner.", fails=fails), running()


def test_the_innermost_one():
    assert running() == ""
    assert outer("a.") == ("a.", (1, "a.inner."), "a.")
    assert running() == ""


def test_an_error_leaves_nothing_behind():
    with pytest.raises(ValueError, match=r"a\.inner\."):
        outer("a.", fails=True)
    assert running() == ""


def test_threads_see_their_own():
    seen = []

    @sublayer
    def meanwhile(prefix):
        thread = threading.Thread(target=lambda: seen.append(running()))
        thread.start()
        thread.join()

    meanwhile("a.")
    assert seen == [""]


def test_every_op_of_a_transformer_is_placed():
    """Forward and backward: attention and feed-forward under the prefix of their parameters, the rest by their op."""
    config = TransformerConfig(7, 8, 2, 1, 1, 9, 6, mode="seq2seq")
    model = Transformer(config, seed=0)
    token_BS = torch.randint(7, (2, 2, 5), generator=torch.Generator().manual_seed(0))
    specimen = ModelSpecimen(model, Loss("cross_entropy", ignore=-1), token_BS, token_BS[:, 1], name="t")
    prepared = specimen.reference()
    with Watching(places=specimen.places, trace=True) as watch:
        prepared.run(prepared.values, specimen.cotangents)
    placed = {(place.path, place.phase) for place in watch.samples}
    for sublayer_prefix in ("encoder.0.self.", "decoder.0.self.", "decoder.0.cross."):
        assert {(f"{sublayer_prefix}attention", phase) for phase in ("forward", "backward")} <= placed, placed
    for op in ("linear", "gelu", "layernorm"):
        assert {(f"encoder.0.ffn.{op}", phase) for phase in ("forward", "backward")} <= placed, placed
    assert {("cross_entropy", "forward"), ("cross_entropy", "backward")} <= placed
