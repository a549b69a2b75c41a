import random

import numpy as np
import pytest
import torch
from modules import RIGHT, WRONG
from torch import nn

import gradproof


def snapshot(module):
    """Everything a user could find changed: objects, values, dtypes, gradients, flags, attributes."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        "objects": {name: id(tensor) for name, tensor in tensors.items()},
        "memory": {name: tensor.data_ptr() for name, tensor in tensors.items()},
        "values": {name: (tensor.dtype, tensor.detach().clone()) for name, tensor in tensors.items()},
        "grads": {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()},
        "flags": [(m.training, [p.requires_grad for p in m.parameters()]) for m in module.modules()],
        "attributes": [sorted(vars(m)) for m in module.modules()],
        "calls": getattr(module, "calls", None),
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


CASES = [
    "batch norm in training",
    "dropout in training",
    "in place",
    "own generator",
    "shared storage",
    "tied weights",
    "float32 casts",
    "float32 only",
    "spectral norm",
]


@pytest.mark.parametrize("name", CASES)
def test_module_is_left_as_it_was_found(name):
    """A user's module after verify: the same objects over the same memory, values, gradients, flags, generators."""
    torch.manual_seed(0)
    module, inputs = RIGHT[name]()
    for p in module.parameters():
        p.grad = torch.randn_like(p)
    before, given = snapshot(module), [x.clone() for x in inputs]
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    own = module.generator.get_state() if hasattr(module, "generator") else None
    gradproof.verify(module, inputs, quick=True)
    assert same(snapshot(module), before)
    assert all(torch.equal(x, y) for x, y in zip(inputs, given, strict=True))
    assert torch.equal(torch.get_rng_state(), streams[0]) and random.getstate() == streams[1]
    assert (np.random.get_state()[1] == streams[2]).all()
    assert own is None or torch.equal(module.generator.get_state(), own)
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()


def test_state_comes_back_when_a_displaced_forward_raises():
    """The third forward fails: nothing can be said, and values, dtype and generators come back all the same."""

    calls = []

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            calls.append(x)
            if len(calls) >= 5:
                raise RuntimeError("fifth time")
            return self.linear(x)

    module = Fails()
    inputs = (torch.randn(4, 6),)
    before, stream = snapshot(module), torch.get_rng_state()
    report = gradproof.verify(module, inputs)
    assert report.status == "inconclusive" and any("fifth time" in note for note in report.subjects[0].notes)
    assert same({**snapshot(module), "calls": 0}, {**before, "calls": 0}) and torch.equal(torch.get_rng_state(), stream)


def test_containers_are_rewound():
    """A cache filled in float64 would stay behind and make the user's next forward float64."""

    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.history, self.cache = nn.Linear(6, 3), [], {}
            self.rng = np.random.default_rng(3)

        def forward(self, x):
            self.history.append(x.shape)
            if "scale" not in self.cache:
                self.cache["scale"] = torch.arange(1, 4, dtype=x.dtype)
            self.register_forward_hook(lambda *_: None)
            return self.linear(x) * self.cache["scale"] * float(self.rng.random())

    module = Remembers()
    drawn = np.random.default_rng(3).random()
    assert gradproof.verify(module, (torch.randn(4, 6),)), "state that the forward changes must not spoil the verdict"
    assert module.history == [] and module.cache == {} and not module._forward_hooks
    assert module.rng.random() == drawn


def test_caller_may_be_in_no_grad():
    """verify needs gradients whatever mode it is called in, and leaves that mode as it was."""
    case, culprits = WRONG["1% too large"]
    with torch.no_grad():
        report = gradproof.verify(*case(), quick=True)
        assert not torch.is_grad_enabled()
    assert {j.name for j in report.subjects[0].parameters if j.status == "refuted"} == culprits
