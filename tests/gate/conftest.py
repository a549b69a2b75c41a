"""A small gate in a store: a model of a few hundred parameters that has learned two kinds of calls."""

import pytest

pytest.importorskip("lmdb", reason="the extra `gate` is not installed")
pytest.importorskip("tokenizers", reason="the extra `gate` is not installed")

import torch
from made_calls import rows

from gradproof.gate.founding import found
from gradproof.gate.network import GateConfig, GateModel
from gradproof.gate.store import Settings, Store
from gradproof.train.adamw import AdamW
from gradproof.train.step import TrainStep

CONFIG = GateConfig(width=16, heads=2, encoder_layers=1, feedforward=32, context=64, buckets=256, features=16)


class Clock:
    """Each look at it is a millisecond later."""

    def __init__(self):
        self.now = 1_700_000_000.0

    def __call__(self):
        self.now += 0.001
        return self.now


@pytest.fixture(scope="session")
def trained():
    """The small model, trained until it separates the two kinds."""
    gate = GateModel.fresh(0, CONFIG)
    step = TrainStep(gate.network, "bce", AdamW(lr=1e-2))
    learned = rows(32)
    x_BX = gate.batch([gate.encode(row.text) for row in learned])
    label_B = torch.tensor([float(row.allow) for row in learned])
    for _ in range(40):
        step(x_BX, (label_B, torch.ones_like(label_B)))
    return gate


@pytest.fixture
def store(tmp_path, trained):
    """A gate that is founded but cold."""
    made = Store.create(tmp_path / "gate", Settings(journal_mebibytes=16, versions_mebibytes=64), Clock())
    found(made, trained.copy(), rows(40), rows(30, 100), people=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory, trained):
    """A service on a store of its own, for all tests of a file."""
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    from service_client import ServiceClient

    made = Store.create(tmp_path_factory.mktemp("service") / "gate", Settings(journal_mebibytes=16), Clock())
    found(made, trained.copy(), rows(40), rows(30, 100), people=False)
    client = ServiceClient(made)
    yield client
    client.close()
    made.close()


@pytest.fixture
def warm(store):
    """A gate whose model is trusted."""
    store.journal.judge_held([(i % 2 == 0, True) for i in range(600)])
    return store
