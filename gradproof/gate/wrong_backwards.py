"""The wrong backwards of the gate's network that `gradproof verify --model gate --mutants` plants.

Each takes the right function first and then its arguments.
"""

from __future__ import annotations

import torch

from gradproof.gate.network import FEATURE_WEIGHT, WEIGHT
from gradproof.proof.mutants import Mutant, registering

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)

NETWORK = "gradproof.gate.network:GateNetwork."
NGRAMS = "gradproof.ops.hashed_ngrams:backward"


@wrong("gate", "the n-grams have no gradient", target=NGRAMS)
def _(right, dy, saved, gram, w):
    return torch.zeros_like(w)


@wrong("gate", "each n-gram counts as one", target=NGRAMS)
def _(right, dy, saved, gram, w):
    return right(dy, (gram >= 0).to(saved.dtype), gram, w)


@wrong("gate", "the place of a missing n-gram counts", target=NGRAMS)
def _(right, dy, saved, gram, w):
    return right(dy, saved + (gram < 0), gram, w)


@wrong("gate", "a row's n-grams take the next row's cotangent", target=NGRAMS)
def _(right, dy, saved, gram, w):
    return right(dy.roll(1), saved, gram, w)


@wrong("gate", "padding counts in the pool", target="gradproof.ops.pool:backward")
def _(right, dy, saved, mask):
    return right(dy, saved, torch.ones_like(mask))


@wrong("gate", "the n-grams alone are trained", target="gradproof.models.transformer:Transformer.pull_back")
def _(right, self, weights, grad, dy, x, saved, **options):
    return right(self, weights, grad, (torch.zeros_like(dy[0]), dy[1]), x, saved, **options)


@wrong("gate", "the strange n-grams' weights 1% too small", subtle=True, target=NETWORK + "pull_back")
def _(right, self, weights, grad, dy, x, saved, **options):
    right(self, weights, grad, dy, x, saved, **options)
    self.params.views_of(grad)[WEIGHT][self.config.buckets :].mul_(0.99)


@wrong("gate", "the features have no gradient", target=NETWORK + "pull_back")
def _(right, self, weights, grad, dy, x, saved, **options):
    right(self, weights, grad, dy, x, saved, **options)
    self.params.views_of(grad)[FEATURE_WEIGHT].zero_()


@wrong("gate", "one feature's weight 1% too small", subtle=True, target=NETWORK + "pull_back")
def _(right, self, weights, grad, dy, x, saved, **options):
    right(self, weights, grad, dy, x, saved, **options)
    self.params.views_of(grad)[FEATURE_WEIGHT][:1].mul_(0.99)
