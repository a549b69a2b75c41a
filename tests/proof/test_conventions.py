"""Gradients by convention, inputs that are held fixed, and what is flat within a piece."""

import pytest
import torch
from modules import Parametrised, function
from torch import nn

import gradproof


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def verified(function, *inputs, quick=False):
    report = gradproof.verify(Applied(function), inputs, quick=quick)
    (subject,) = report.subjects
    return report, subject, {j.name: j for j in subject.inputs}


def spd(n=5):
    a = torch.randn(n, n)
    return a @ a.T + n * torch.eye(n)


def hermitian(n=4):
    a = torch.randn(n, n, dtype=torch.cfloat)
    return a @ a.mH + n * torch.eye(n)


LOGITS = dict(targets=torch.tensor([[1, 2, 3], [2, 2, 4]]), input_lengths=(8, 8), target_lengths=(3, 3))


def ctc(log_probs):
    return nn.functional.ctc_loss(log_probs, **LOGITS)


def log_probs():
    return torch.randn(8, 2, 5).log_softmax(-1)


ALONG = {
    "cholesky": (torch.linalg.cholesky, spd, "symmetric"),
    "batched": (torch.linalg.cholesky, lambda: torch.stack([spd(3), spd(3)]), "symmetric"),
    "complex": (lambda a: torch.linalg.cholesky(a).abs(), hermitian, "symmetric"),
    "eigh of a lower triangle": (torch.linalg.eigvalsh, lambda: torch.randn(5, 5), "symmetric"),
    "eigh of an upper triangle": (lambda a: torch.linalg.eigvalsh(a, UPLO="U"), lambda: torch.randn(5, 5), "symmetric"),
    "cholesky_inverse": (torch.cholesky_inverse, lambda: torch.linalg.cholesky(spd()), "triangular"),
    "cholesky_solve": (
        lambda factor: torch.cholesky_solve(torch.ones(5, 1, dtype=factor.dtype), factor),
        lambda: torch.linalg.cholesky(spd()),
        "triangular",
    ),
    "ctc_loss": (ctc, log_probs, "normalised log-probabilities"),
}


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", ALONG)
def test_convention_is_proven_along_its_set_and_named(name, quick):
    torch.manual_seed(0)
    op, draw, directions = ALONG[name]
    report, subject, _ = verified(op, draw(), quick=quick)
    assert report, report.summary
    assert any(directions in note and "judged along" in note for note in subject.notes)


@pytest.mark.parametrize("name", ALONG)
def test_wrong_gradient_is_no_convention(name):
    """1% too large along the set."""
    torch.manual_seed(0)
    op, draw, _ = ALONG[name]
    spoilt = function(lambda x: x.clone(), lambda g, x, y: 1.01 * g)
    report, _, _ = verified(lambda x: op(spoilt(x)), draw())
    assert report.status == "refuted"


def test_argument_outside_the_set_stays_refuted():
    """Log-probabilities that are not normalised: torch's gradient is nobody's derivative there."""
    torch.manual_seed(0)
    assert verified(ctc, torch.randn(8, 2, 5))[0].status == "refuted"


def test_symmetric_input_of_other_ops_is_judged_in_all_directions():
    """An error across the symmetric matrices only, without an op that reads one triangle."""
    torch.manual_seed(0)
    skew = torch.ones(5, 5).triu(1) - torch.ones(5, 5).tril(-1)
    lopsided = function(torch.sin, lambda g, x, y: g * x.cos() + 0.1 * skew.to(g))
    assert verified(lopsided, spd())[0].status == "refuted"


class Unpool(nn.Module):
    def forward(self, x):
        return nn.functional.max_unpool2d(x, torch.tensor([[[[0, 3], [3, 9]]]]), 2)


@pytest.mark.parametrize(
    ("module", "inputs", "words"),
    [
        (Applied(lambda m, s: torch.normal(m, s.exp())), (torch.randn(6), torch.randn(6)), "torch.normal"),
        (Applied(lambda a: torch.distributions.Gamma(a.exp(), 1.0).rsample()), (torch.randn(6),), "gamma"),
        (nn.Embedding(7, 3, max_norm=0.5), (torch.tensor([1, 2, 5]),), "max_norm"),
        (Unpool(), (torch.rand(1, 1, 2, 2),), "same index"),
    ],
    ids=["normal", "gamma", "max_norm", "unpool"],
)
def test_refuted_by_convention_says_which(module, inputs, words):
    torch.manual_seed(0)
    report = gradproof.verify(module, inputs)
    assert report.status == "refuted"
    assert "convention" in report.summary and words in report.summary


def test_float32_in_the_backward_is_said():
    torch.manual_seed(0)
    report, _, _ = verified(function(torch.tanh, lambda g, x, y: (g * (1 - y * y)).float().double()), torch.randn(40))
    assert report.status == "refuted" and "float32" in report.summary


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.functional.soft_margin_loss, torch.randn(4, 3).sign()),
        (lambda x, y: nn.functional.binary_cross_entropy(x.sigmoid(), y), torch.rand(4, 3).round()),
    ],
    ids=["torch has no gradient for it", "the forward raises where it moves"],
)
def test_target_that_cannot_be_judged_is_held_fixed_and_said(loss, target):
    torch.manual_seed(0)
    module = Parametrised(lambda self, x, target: loss(x @ self.w, target), w=torch.randn(5, 3))
    report = gradproof.verify(module, (torch.randn(4, 5), target))
    (subject,) = report.subjects
    assert report, report.summary
    assert [j.name for j in subject.inputs] == ["0"]
    assert any("held fixed: 1 " in note for note in subject.notes)


def test_held_target_is_held_in_diagnose_too():
    torch.manual_seed(0)
    module = Parametrised(lambda self, x, y: nn.functional.soft_margin_loss(x @ self.w, y), w=torch.randn(5, 3))
    diagnosed = gradproof.diagnose(module, (torch.randn(4, 5), torch.randn(4, 3).sign()), precisions=("bf16",))
    assert diagnosed.verdict in ("clean", "noise")


def test_target_whose_gradient_was_asked_for_is_not_held():
    torch.manual_seed(0)
    target = torch.rand(4, 3).round().requires_grad_()
    report, _, judged = verified(
        lambda x, y: nn.functional.binary_cross_entropy(x.sigmoid(), y), torch.randn(4, 3), target
    )
    assert report.status == "inconclusive" and judged["1"].status == "inconclusive"


@pytest.mark.parametrize("op", [torch.fft.ifft, torch.fft.ihfft, lambda x: torch.fft.fft(x).conj()])
def test_conjugate_views_are_judged(op):
    torch.manual_seed(0)
    assert verified(op, torch.randn(3, 6))[0]
    assert verified(lambda x: op(x.real), torch.randn(3, 6, dtype=torch.cfloat).conj())[0]


FLAT = {
    "dead relu": (torch.relu, torch.tensor([-0.2, -0.7, -0.1, -1.1])),
    "rounded": (torch.round, torch.tensor([0.12, 3.33, 2.71, -5.2])),
    "rounded to a decimal": (lambda x: x.round(decimals=1), torch.tensor([0.12, 0.33, 2.71])),
    "beaten": (lambda x: torch.maximum(x, torch.ones_like(x)), torch.tensor([0.9, 0.8, 0.5, -0.3])),
    "sign": (torch.sign, torch.tensor([0.9, -0.8, 0.5, -0.3])),
}


@pytest.mark.parametrize("name", FLAT)
def test_zero_gradient_within_a_piece_is_proven(name):
    torch.manual_seed(0)
    op, x = FLAT[name]
    report, _, judged = verified(op, x)
    assert report, report.summary
    assert next(iter(judged.values())).note.startswith("the loss does not move")


def test_gradient_that_is_claimed_within_a_flat_piece_is_refuted():
    torch.manual_seed(0)
    assert verified(function(torch.round, lambda g, x, y: g), 9 * torch.rand(40))[0].status == "refuted"


def test_sparse_output_is_judged():
    torch.manual_seed(0)
    assert verified(lambda x: (x @ x.T).to_sparse(), torch.randn(3, 4))[0]
