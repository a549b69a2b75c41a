"""A small table with every kind of column, and a model for it."""

import pytest
import torch

from gradproof.data.schema import Category, Metric, Number, Schema
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train.explanation import Explainer
from gradproof.train.predictor import Predictor


@pytest.fixture(scope="session")
def schema():
    """10 inputs: red green blue other missing | false true | weight count | weight is missing."""
    return Schema(
        "outcome",
        ("good", "bad", "ugly"),
        (Category("colour", ("red", "green", "blue"), other=True, missing=True), Category("flag", ("false", "true"))),
        (Number("weight", 10.0, 2.0, missing=True), Number("count", 0.0, 5.0)),
        (Metric("cost", 100.0, 300.0), Metric("risk")),
        {"id": "a different value in every row"},
    )


@pytest.fixture(scope="session")
def predictor(schema):
    return Predictor(MoE(MoEConfig(inputs=10, outputs=5, hidden=16, depth=1), seed=3), schema)


@pytest.fixture(scope="session")
def explainer(predictor):
    return Explainer(predictor, torch.full((10,), 0.1))


@pytest.fixture
def record():
    return {"colour": "green", "flag": True, "weight": 11.5, "count": 3}


@pytest.fixture
def overflowing(predictor, monkeypatch):
    """A value of `count` at which the model's first output overflows."""
    apply = predictor.model.apply

    def overflow(params, x_TI, *more):
        output, saved = apply(params, x_TI, *more)
        output.logits_TO[x_TI[:, 8] == 77.0, 0] = torch.inf
        return output, saved

    monkeypatch.setattr(predictor.model, "apply", overflow)
    return 77.0 * 5.0
