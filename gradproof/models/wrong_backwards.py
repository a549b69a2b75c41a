"""The wrong backwards of models that `gradproof verify --mutants` plants: which gradient goes where.

Each takes the right function first and then its arguments.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gradproof.proof.mutants import Mutant, registering
from gradproof.proof.wrong_backwards import but_last

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)

EXPERTS = "gradproof.ops.experts:backward"


def changed(found, chain, change):
    """The experts' gradients changed in place, expert by expert: `change(views, e)`."""
    dx, dtheta = found
    for e, theta in enumerate(dtheta):
        change(chain.views(theta), e)
    return dx, dtheta


@wrong("moe", "a norm's weight and bias swapped", target=EXPERTS)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    def swap(views, e):
        kept = views["norm.0.weight"].clone()
        views["norm.0.weight"].copy_(views["norm.0.bias"])
        views["norm.0.bias"].copy_(kept)

    return changed(right(dy, saved, x, theta, plan, chain, *rest), chain, swap)


@wrong("moe", "the experts' gradients in reverse order", target=EXPERTS)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    dx, dtheta = right(dy, saved, x, theta, plan, chain, *rest)
    return dx, dtheta.copy_(dtheta.flip(0))


@wrong("moe", "the gate applied twice", target="gradproof.ops.combine:backward")
def _(right, dy, saved, rows, gates, plan):
    _, dgates = right(dy, saved, rows, gates, plan)
    return right(dy, saved, rows, gates.square(), plan)[0], dgates


@wrong("moe", "the router sends no gradient to the input", target="gradproof.ops.linear:input_gradient")
def _(right, dy, w):
    return torch.zeros_like(right(dy, w))


@wrong("moe", "the auxiliary loss has no gradient", target="gradproof.models.moe:MoE.pull_back")
def _(right, self, weights, grad, dy, x, saved, **options):
    return right(self, weights, grad, (dy[0], torch.zeros_like(dy[1])), x, saved, **options)


@wrong("moe", "a part of a batch takes its energy for the whole", target="gradproof.models.moe:MoE._sheaf_backward")
def _(right, self, weights, dz, d_aux, x, saved, want_dx):
    saved = saved._replace(routed=saved.routed._replace(rows=x.shape[0]))
    return right(self, weights, dz, d_aux, x, saved, want_dx)


@wrong("moe", "adds to stale gradients", target="gradproof.models.model:Model.backward")
def _(right, self, d_logits, tape, d_aux=0.0, accumulate=False):
    return right(self, d_logits, tape, d_aux, True)


@wrong("moe", "expert 1's first bias 1% too small", subtle=True, target=EXPERTS)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    def shrink(views, e):
        views["linear.0.bias"].mul_(0.99 if e == 1 else 1.0)

    return changed(right(dy, saved, x, theta, plan, chain, *rest), chain, shrink)


@wrong("moe", "the last routed row of expert 0 is left out", subtle=True, target=EXPERTS)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    end = saved.bounds[1]
    kept = torch.cat([but_last(dy[:end]), dy[end:]]) if end else dy
    return right(kept, saved, x, theta, plan, chain, *rest)


@wrong("dense", "the first layer passes through GELU", target=EXPERTS)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    return right(dy, saved, x, theta, plan, replace(chain, active=(True, *chain.active[1:])), *rest)


@wrong("dense", "the last bias is never added", target=EXPERTS)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    def drop(views, e):
        views[f"linear.{chain.layers}.bias"].zero_()

    return changed(right(dy, saved, x, theta, plan, chain, *rest), chain, drop)


@wrong("dense", "one norm's bias 4% too large", subtle=True, target=EXPERTS)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    def stretch(views, e):
        views["norm.0.bias"].mul_(1.04)

    return changed(right(dy, saved, x, theta, plan, chain, *rest), chain, stretch)
