"""Elastic weight consolidation against autograd: the Fisher information, the penalty's gradient, and the step."""

import torch

from gradproof.gate.consolidation import ConsolidatedStep, Consolidation, decayed, fisher
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.train.adamw import AdamW
from gradproof.train.parts import Parts
from gradproof.train.step import TrainStep

CONFIG = TransformerConfig(7, 8, 2, 1, 0, 9, 6, "classify")


def model():
    return Transformer(CONFIG, seed=3, dtype=torch.float64)


def rows(count=5):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(7, (1, 1 + i % 6), generator=generator) for i in range(count)]


def test_fisher_is_that_of_autograd(agree):
    """E over the label, drawn from the model itself, of the squared gradient of its log-likelihood."""
    own = model()
    found_P = fisher(own, rows())
    leaves = {name: value.clone().requires_grad_() for name, value in own.params.items()}
    want = {name: torch.zeros_like(value) for name, value in leaves.items()}
    for x_1S in rows():
        output, _ = own.apply(own.params.pack(leaves), x_1S)
        z = output.logits_TO.squeeze()
        for label in (0.0, 1.0):
            likelihood = torch.nn.functional.logsigmoid(z if label else -z)
            grads = torch.autograd.grad(likelihood, list(leaves.values()), retain_graph=True, allow_unused=True)
            for name, grad in zip(leaves, grads, strict=True):
                if grad is not None:
                    want[name] += likelihood.exp().detach() * grad.square() / len(rows())
    for name, ours in own.params.views(found_P).items():
        agree(ours, want[name], 1e-10)


def test_the_gradient_is_that_of_the_penalty(agree, normal):
    flat_P, anchor_P, grad_P, noise_P = normal(0, (40,), (40,), (40,), (40,))
    held = Consolidation(anchor_P, noise_P.square(), strength=0.3)
    leaf_P = flat_P.clone().requires_grad_()
    (held.rate * (held.fisher_P * (leaf_P - anchor_P).square()).sum()).backward()
    assert leaf_P.grad is not None
    found_P = grad_P.clone()
    held.add_gradient(found_P, flat_P, 2.0)
    agree(found_P - grad_P, 2 * leaf_P.grad, 1e-12, grad_P)


def test_a_step_takes_the_penalty_along(agree):
    """The same step by hand: gradients of the loss, plus those of the penalty, then AdamW."""
    x_BS, label_B, weight_B = torch.cat([rows(6)[5]] * 2), torch.tensor([0.0, 1.0]).double(), torch.ones(2).double()
    first, second = model(), model()
    for own in (first, second):
        own.params.flat_P += 0.01
    held = Consolidation(model().params.flat_P, torch.rand_like(first.params.flat_P), strength=5.0)
    step = ConsolidatedStep(first, "bce", AdamW(lr=1e-2), "fp64")
    step.consolidation = held
    step(x_BS, (label_B, weight_B))

    by_hand, params = TrainStep(second, "bce", AdamW(lr=1e-2), "fp64"), second.params
    parts = Parts(by_hand.training, by_hand.choose(len(x_BS)))
    backed = parts.gradients([(x_BS, (label_B, weight_B))])
    params.grad_P.add_(2 * held.rate * held.fisher_P * (params.flat_P - held.anchor_P))
    by_hand.training.end(backed.loss, backed.load, parts.kernels)
    agree(first.params.flat_P, second.params.flat_P, 1e-12)
    plain = model()
    plain.params.flat_P += 0.01
    TrainStep(plain, "bce", AdamW(lr=1e-2), "fp64")(x_BS, (label_B, weight_B))
    assert not torch.equal(plain.params.flat_P, first.params.flat_P)


def test_the_estimate_decays(normal):
    (new_P,) = normal(1, (5,))
    assert torch.equal(decayed(None, new_P), new_P)
    assert torch.allclose(decayed(torch.ones_like(new_P), new_P), 0.9 + 0.1 * new_P)


def test_nothing_known_holds_nothing():
    held = Consolidation(torch.zeros(3), torch.zeros(3))
    grad_P = torch.ones(3)
    held.add_gradient(grad_P, torch.ones(3))
    assert torch.equal(grad_P, torch.ones(3)) and held.rate == 0.0
