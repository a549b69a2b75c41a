"""Attribution: what the columns get adds up to the difference of logits, jumps of the router included."""

from dataclasses import replace

import pytest
import torch

from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.ensemble import Ensemble, EnsembleConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train import attribution
from gradproof.train.attribution import attribute

INPUTS, COLUMNS = 12, 5
MOE = MoEConfig(inputs=INPUTS, outputs=3, experts=4, hidden=8, depth=1)
FLOAT64 = dict(seed=1, dtype=torch.float64)


def made(name):
    """A random model; its router's weights are ten times as large as usual, so that paths cross many choices."""
    model = {
        "moe": lambda: MoE(MOE, **FLOAT64),
        "one expert a row": lambda: MoE(replace(MOE, k=1), **FLOAT64),
        "sigmoid": lambda: MoE(replace(MOE, scores="sigmoid", renormalise=True), **FLOAT64),
        "correction": lambda: MoE(replace(MOE, correction=0.1), **FLOAT64),
        "sheaf": lambda: MoE(replace(MOE, router="sheaf", patches=(5, 4, 3)), **FLOAT64),
        "dense": lambda: Dense(DenseConfig(INPUTS, 3, hidden=8, feedforward=16, blocks=1), **FLOAT64),
        "ensemble": lambda: Ensemble(EnsembleConfig(MOE, members=3, classes=3), **FLOAT64),
    }[name]()
    for entry, view in model.params.items():
        if "router." in entry and entry.endswith("weight"):
            view.mul_(10)
    for buffer in model.buffers.values():
        buffer.copy_(torch.tensor([0.2, -0.1, 0.05, 0.0]))
    return model


def asked(model, rows=24, seed=0):
    """Rows, their largest logit's class, a baseline, and the columns of the inputs."""
    generator = torch.Generator().manual_seed(seed)
    x_TI, baseline_I = (torch.randn(n, INPUTS, generator=generator, dtype=torch.float64) for n in (rows, 1))
    class_T = model.forward(x_TI)[0].logits_TO.argmax(1)
    return x_TI, class_T, 0.3 * baseline_I[0], torch.arange(INPUTS) % COLUMNS


@pytest.mark.parametrize("name", ["moe", "one expert a row", "sigmoid", "correction", "sheaf", "dense", "ensemble"])
def test_it_adds_up(name):
    """On every row; and the integrals themselves miss less than a percent, before that is shared out. Without the
    jumps, mixtures would be far off."""
    model = made(name)
    x_TI, class_T, baseline_I, column_I = asked(model)
    found = attribute(model, x_TI, class_T, baseline_I, column_I, COLUMNS)
    logits_TO, start_TO = (model.forward(x)[0].logits_TO for x in (x_TI, baseline_I.expand_as(x_TI).contiguous()))
    difference_T = (logits_TO - start_TO).gather(1, class_T[:, None])[:, 0]
    assert (found.column_TC.sum(1) - difference_T).abs().max() < 1e-8
    assert (found.missed_T <= 0.01 * difference_T.abs()).all()
    jump_T = found.jumps_TC.sum(1).abs()
    assert (jump_T == 0).all() if name == "dense" else (jump_T > 0.05 * difference_T.abs()).sum() > len(x_TI) / 2


def test_it_is_the_integral_of_the_gradient():
    """Of a smooth model, by two thousand steps and torch's own autograd."""
    model = made("dense")
    x_TI, class_T, baseline_I, column_I = asked(model, rows=3)
    found = attribute(model, x_TI, class_T, baseline_I, column_I, COLUMNS)
    slow_TI = torch.zeros_like(x_TI)
    for t in (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000:
        leaf_TI = (baseline_I + t * (x_TI - baseline_I)).requires_grad_()
        logits_TO = model.apply(model.params, leaf_TI)[0].logits_TO
        slow_TI += torch.autograd.grad(logits_TO.gather(1, class_T[:, None]).sum(), leaf_TI)[0] / 2000
    slow_TC = torch.zeros(3, COLUMNS, dtype=torch.float64).index_add(1, column_I, slow_TI * (x_TI - baseline_I))
    assert torch.allclose(found.column_TC, slow_TC, rtol=1e-2, atol=1e-3 * float(slow_TC.abs().max()))


def test_a_jump_goes_to_the_columns_that_the_router_reads():
    """Experts that say constants: all of the difference is the router's, and only column 2 moves it."""
    model = MoE(replace(MOE, k=1, renormalise=False, scores="sigmoid"), **FLOAT64)
    weight_EI = model.params["router.weight"]
    weight_EI.zero_()
    column_I = torch.arange(INPUTS) % COLUMNS
    weight_EI[0, column_I == 2], weight_EI[1, column_I == 2] = 3.0, -3.0
    for e in range(4):
        model.params[f"experts.{e}.linear.2.weight"].zero_()
        model.params[f"experts.{e}.linear.2.bias"].fill_(float(e))
    x_TI, class_T, baseline_I, _ = asked(model)
    found = attribute(model, x_TI, class_T, baseline_I, column_I, COLUMNS)
    others = [c for c in range(COLUMNS) if c != 2]
    assert found.column_TC[:, others].abs().max() < 1e-9 and (found.jumps_TC[:, 2].abs() > 0.1).any()


def test_a_column_that_pulls_back_gets_nothing_of_a_jump():
    """Column 0 pushes the router over the edge, column 1 pulls the other way: the jump is column 0's."""
    model = MoE(replace(MOE, inputs=2, experts=2, k=1, renormalise=False), **FLOAT64)
    model.params["router.weight"].copy_(torch.tensor([[0.0, 0.0], [2.0, -1.0]]))
    model.params["router.bias"].copy_(torch.tensor([0.5, 0.0]))
    x_TI, baseline_I = torch.ones(1, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    found = attribute(model, x_TI, torch.zeros(1, dtype=torch.int64), baseline_I, torch.arange(2), 2)
    assert found.jumps_TC[0, 0] != 0 and found.jumps_TC[0, 1] == 0


def test_the_baseline_matters():
    """From the row itself nothing moves; from elsewhere something does."""
    model = made("moe")
    x_TI, class_T, baseline_I, column_I = asked(model, rows=1)
    assert attribute(model, x_TI, class_T, x_TI[0], column_I, COLUMNS).column_TC.abs().max() == 0
    here, there = (attribute(model, x_TI, class_T, b, column_I, COLUMNS) for b in (baseline_I, baseline_I + 0.5))
    assert not torch.allclose(here.column_TC, there.column_TC) and here.baseline_T != there.baseline_T


def test_chunks_change_nothing(monkeypatch):
    """Rows are independent of each other."""
    model = made("ensemble")
    given = asked(model, rows=7)
    whole = attribute(model, *given, COLUMNS)
    monkeypatch.setattr(attribution, "NUMBERS", INPUTS * 3)
    assert torch.allclose(attribute(model, *given, COLUMNS).column_TC, whole.column_TC, atol=1e-9)
