"""Sums that torch's CPU kernels round term by term: the replicas must reproduce that."""

import copy

import pytest
import torch
from torch import nn

import gradproof
from gradproof.precision.mode import rounding


class Rows(nn.Module):
    def __init__(self, rows=3):
        super().__init__()
        self.table = nn.Parameter(torch.randn(rows, 16))

    def forward(self, index):
        return self.table[index]


def gradients(module, x, cotangent, context=None):
    module = copy.deepcopy(module)
    for p in module.parameters():
        p.data = p.data.bfloat16().to(p.dtype)
    if context is None:
        module(x).backward(cotangent)
    else:
        with context:
            module(x).backward(cotangent)
    return torch.cat([p.grad.double().flatten() for p in module.parameters()])


def errors(module, x, rows):
    """The errors of the real kernel and of three replicas, at the same cotangent."""
    cotangent = torch.randn(rows, 16).bfloat16()
    right = gradients(copy.deepcopy(module).double(), x.double() if x.is_floating_point() else x, cotangent.double())
    narrow = x.bfloat16() if x.is_floating_point() else x
    real = gradients(copy.deepcopy(module).bfloat16(), narrow, cotangent)
    wide = narrow.float() if x.is_floating_point() else x
    replicas = [gradients(module, wide, cotangent.float(), rounding("bf16", "cast", "stochastic", s)) for s in range(3)]
    return float((real - right).norm() / right.norm()), [float((r - right).norm() / right.norm()) for r in replicas]


@pytest.mark.parametrize(
    ("module", "index"),
    [
        (nn.LayerNorm(16), False),
        (nn.Embedding(3, 16), True),
        (nn.Embedding(3, 16, padding_idx=1), True),
        (Rows(), True),
    ],
    ids=["layer_norm", "embedding", "padding", "index"],
)
def test_replicas_round_partial_sums_as_the_cpu_does(module, index):
    torch.manual_seed(0)
    x = torch.randint(0, 3, (400,)) if index else torch.randn(400, 16).bfloat16().float()
    real, replicas = errors(module, x, 400)
    assert real > 4 * 2**-9, "this kernel adds up in bf16"
    assert all(0.5 < replica / real < 3 for replica in replicas)


def test_a_row_that_is_taken_once_is_rounded_once():
    torch.manual_seed(0)
    real, replicas = errors(Rows(50), torch.randperm(50), 50)
    assert real == 0 and replicas == [0, 0, 0]


@pytest.mark.parametrize("module", [nn.LayerNorm(16), nn.Embedding(3, 16), nn.Embedding(3, 16, padding_idx=0), Rows()])
def test_nothing_to_add_up_is_no_error(module):
    x = torch.randn(0, 16) if isinstance(module, nn.LayerNorm) else torch.zeros(0, dtype=torch.int64)
    gradients(module, x, torch.zeros(0, 16), rounding("bf16", "cast", "stochastic", 0))
    if not isinstance(module, nn.LayerNorm):
        x = torch.zeros(4, dtype=torch.int64)
        gradients(module, x, torch.ones(4, 16), rounding("bf16", "cast", "stochastic", 0))


def test_many_rows_before_a_norm_are_no_bug():
    """The gradient of the bias is a sum of 600 terms, which the CPU rounds 600 times."""
    for seed in range(3):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh())
        diagnosis = gradproof.diagnose(module, (torch.randn(600, 12),), precisions=("bf16",), replicas=6)
        assert diagnosis.verdict in ("noise", "clean"), diagnosis.summary
