import shutil

import numpy as np
import pytest
import torch

from gradproof.data.synthetic import schema
from gradproof.train import checkpoint, loop
from gradproof.train.config import resolve
from gradproof.train.load import BALANCE, build_model, load_model, restore


@pytest.fixture
def run(tmp_path, tiny, open_run, monkeypatch):
    """A finished run whose best checkpoint is its first; its trainer."""
    scores = iter([(1.0, 0.9), (2.0, 0.5), (3.0, 0.1)])
    monkeypatch.setattr(loop, "evaluate", lambda *args: (*next(scores), np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", tiny)
    trainer.train()
    return trainer


def same(model, saved):
    tensors = saved.tensors(checkpoint.MODEL)
    values = {**model.params, **model.buffers}
    assert set(values) == set(tensors)
    return all(torch.equal(value, tensors[name]) for name, value in values.items())


def test_the_best_checkpoint_decides(run):
    """Not the last one; parameters and the router's correction, bit by bit."""
    said = []
    loaded = load_model(run.run.path, say=said.append)
    assert loaded.step == 4 and loaded.schema == run.source.schema and said == []
    assert same(loaded.model, checkpoint.load(run.run.checkpoints / "step-4"))
    assert loaded.model.buffers["router.correction"].any()


def test_a_damaged_best_is_said(run):
    """The newest is whole: it decides in its place, and somebody is told."""
    said = []
    (run.run.checkpoints / "step-4" / checkpoint.MODEL).write_bytes(b"")
    loaded = load_model(run.run.path, say=said.append)
    assert loaded.step == 12 and len(said) == 1 and "step-4" in said[0]
    assert same(loaded.model, checkpoint.load(run.run.checkpoints / "step-12"))


def test_no_checkpoint_is_one_sentence(run):
    """It names the command that makes one."""
    shutil.rmtree(run.run.checkpoints)
    with pytest.raises(ValueError, match=r"has no complete checkpoint yet; gradproof train --resume --out"):
        load_model(run.run.path)


def test_a_folder_without_a_run(tmp_path):
    """A sentence in place of FileNotFoundError."""
    with pytest.raises(ValueError, match="is not a run"):
        load_model(tmp_path)


def test_restore_is_exact(run):
    """A parameter or a buffer that is left out keeps its initial value."""
    model = build_model(run.config, run.source.schema, "cpu")
    saved = checkpoint.load(run.run.checkpoints / "step-12")
    assert not same(model, saved)
    restore(model, saved)
    assert same(model, saved)


def test_a_little_balance_unless_the_config_says_otherwise():
    """Without it a router may starve its experts; a config that says 0 means 0."""
    assert build_model(resolve(), schema(), "cpu").config.balance == BALANCE
    assert build_model(resolve({"model_options": {"balance": 0}}), schema(), "cpu").config.balance == 0
    assert build_model(resolve({"model": "dense"}), schema(), "cpu").config.inputs == 96
