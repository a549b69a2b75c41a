"""Computed bounds of what plain references run, forward and backward: never below the error, never vacuous."""

import math

import pytest
import torch
import torch.nn.functional as F

from gradproof.proof.bounds import NoRule
from gradproof.proof.fused_bounds import OPERANDS, UNITS, FusedBounds


def _attention(q, k, v):
    s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -math.inf)
    return torch.softmax(s, -1) @ v


def _softmax_by_hand(x):
    grown = (x - x.amax(-1, keepdim=True)).exp()
    return grown / grown.sum(-1, keepdim=True)


CLASSES = torch.arange(7) % 5
FUNCTIONS = {
    "softmax": (lambda x: torch.softmax(x, -1), (7, 5)),
    "softmax by hand": (_softmax_by_hand, (7, 5)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), (7, 5)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (7, 5)),
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES), (7, 5)),
    "gather": (lambda x: x.log_softmax(-1).gather(1, CLASSES[:, None])[:, 0], (7, 5)),
    "layer_norm": (lambda x, g, b: F.layer_norm(x, (5,), g, b), (7, 5), (5,), (5,)),
    "rms_norm": (lambda x, g: F.rms_norm(x, (5,), g, 1e-6), (7, 5), (5,)),
    "gelu": (lambda x, w: F.gelu(x @ w), (7, 5), (5, 3)),
    "tanh gelu": (lambda x, w: F.gelu(x @ w, approximate="tanh"), (7, 5), (5, 3)),
    "silu": (lambda x, w: F.silu(x @ w), (7, 5), (5, 3)),
    "relu": (lambda x, w: F.relu(x @ w), (7, 5), (5, 3)),
    "linear": (F.linear, (7, 5), (3, 5), (3,)),
    "attention": (_attention, (2, 7, 4), (2, 7, 4), (2, 7, 4)),
    "variance": (lambda x: x.var(-1, unbiased=False).add(1e-5).rsqrt(), (7, 5)),
    "standard deviation": (lambda x: x.std(-1), (7, 5)),
    "mean and pow": (lambda x: x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt() * x, (7, 5)),
    "where": (lambda x, y: torch.where(x > 0, x * y, x - y), (7, 5), (7, 5)),
    "maximum": (lambda x, y: torch.maximum(x * 2.1, y * 1.9), (7, 5), (7, 5)),
    "cumsum": (lambda x: torch.cumsum(x, -1), (7, 5)),
    "logarithms": (lambda x: torch.log(1 + x.abs()) + torch.log1p(x.square()), (7, 5)),
    "indexing": (lambda x: (x * 1.1)[CLASSES, :3] + x[:, 1:4].exp(), (7, 5)),
    "stack, cat, chunk": (lambda x: torch.cat([*torch.stack([x * 1.1, x.exp()]).chunk(2)], -1), (7, 5)),
    "in place": (lambda x: (x * 1.3).mul_(0.7).add_(x).exp_(), (7, 5)),
}


def _run(function, given, cotangent, bounds=None):
    leaves = [value.requires_grad_() for value in given]
    y = function(*leaves)
    grads = torch.autograd.grad(y, leaves, cotangent.to(y.dtype))
    if bounds is None:
        return [y.detach(), *grads]
    return [bounds.of(tensor) for tensor in (y, *grads)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_float32_result_is_within_its_bound(name):
    """Of forward and every gradient: off by less than 8 σ, and 8 σ is no more than 1e-4 of the tensor."""
    function, *shapes = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    y = function(*given)
    cotangent = torch.randn(y.shape, generator=generator)
    exact = _run(function, [value.double() for value in given], cotangent)
    own = _run(function, [value.clone() for value in given], cotangent)
    with FusedBounds() as bounds:
        sigma = _run(function, [value.clone() for value in given], cotangent, bounds)
    for right, inexact, allowed in zip(exact, own, sigma, strict=True):
        error = (inexact.double() - right).abs()
        assert bool((error <= UNITS * allowed + 1e-12).all()), f"{float((error / allowed).max()):.1f} σ"
        assert float(UNITS * allowed.square().mean().sqrt()) <= 1e-4 * float(right.square().mean().sqrt())


def test_the_sources_of_a_bound_add_up():
    """σ² is the sum of the squares of what each source alone would give."""
    q, k, v, dy = (torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(i)) for i in range(4))

    def sigma(only=None):
        with FusedBounds(torch.bfloat16, only) as bounds:
            parts = _run(_attention, [q.clone(), k.clone(), v.clone()], dy, bounds)
        return parts, bounds.sources

    whole, sources = sigma()
    assert OPERANDS in sources and sources["bmm"] == 7
    squares = [sum(part.square() for part in parts) for parts in zip(*(sigma(s)[0] for s in sources), strict=True)]
    for own, square in zip(whole, squares, strict=True):
        torch.testing.assert_close(own, square.sqrt(), rtol=1e-3, atol=1e-12)


def test_what_the_format_holds_is_not_rounded():
    """Operands that come in bf16 are exact; only what is computed on the way is rounded again."""
    a, b = (torch.randn(6, 6).bfloat16().float() for _ in range(2))
    with FusedBounds(torch.bfloat16) as bounds:
        given, made = a @ b, (a * 1.1) @ b
        assert float(bounds.of(given).max()) < 1e-5 < 1e-3 < float(bounds.of(made).max())


def test_an_operation_without_a_rule_is_named():
    x, w = torch.randn(1, 2, 9), torch.randn(3, 2, 3)
    with FusedBounds(), pytest.raises(NoRule, match="convolution"):
        F.conv1d(x, w)
