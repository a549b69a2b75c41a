"""A record of gradients: what an upgrade has moved is named, and rounding is not."""

import json

import pytest
import torch
from torch import nn

from gradproof.proof.module import Options
from gradproof.proof.record import compare_with, load_record, record
from gradproof.proof.runner import CannotRun


def case(factor=1.0, order=False):
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 3)), torch.randn(16, 64)
    if factor != 1.0:
        module[0].weight.register_hook(lambda g: factor * g)
    if order:  # the same sums in another order
        first = module[0]
        first.forward = lambda x: (x[:, :40] @ first.weight[:, :40].T + x[:, 40:] @ first.weight[:, 40:].T) + first.bias
    return module, (x,)


def kept(**how):
    return json.loads(json.dumps(record(*case(**how), Options(), "case")))


def test_the_same_code_gives_the_same_bits():
    comparison = compare_with(kept(), kept())
    assert {t.status for t in comparison.tensors} == {"same"} and not comparison.moved and not comparison.changed
    assert len(comparison.tensors) == 5


def test_another_order_of_sums_is_noise():
    comparison = compare_with(kept(), kept(order=True))
    assert not comparison.moved and "noise" in {t.status for t in comparison.tensors}, comparison.summary


@pytest.mark.parametrize("factor", [1.001, 0.5])
def test_what_has_moved_is_named(factor):
    comparison = compare_with(kept(), kept(factor=factor))
    (moved,) = comparison.moved
    assert moved.name == "0.weight" and moved.change == pytest.approx(abs(factor - 1), rel=0.8)
    assert "0.weight" in comparison.summary


def test_what_came_and_went():
    before, now = kept(), kept()
    now["gradients"]["new"] = now["gradients"].pop("2.bias")
    now["environment"]["torch"] = "9.9"
    comparison = compare_with(before, now)
    assert {t.name: t.status for t in comparison.moved} == {"2.bias": "gone", "new": "new"}
    assert "torch" in comparison.changed and "9.9" in comparison.summary


def test_another_point_cannot_be_compared():
    other = record(case()[0], (torch.randn(16, 64),), Options(), "case")
    with pytest.raises(CannotRun, match="not those of the record"):
        compare_with(kept(), other)


def test_the_module_is_left_as_it_was():
    module, inputs = case()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    record(module, inputs, Options(), "case")
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in module.named_parameters())


def test_anything_else_is_no_record(tmp_path):
    for text in ("", "{}", '{"version": 99, "gradients": {}}'):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(CannotRun, match="was not written by this version of"):
            load_record(tmp_path / "r.json")
