"""The wrong backwards of models that `gradproof verify --mutants` plants: which gradient goes where.

Each takes the right function first and then its arguments.
"""

from __future__ import annotations

import torch

from gradproof.proof.mutants import Mutant, registering
from gradproof.proof.wrong_backwards import but_last

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)

CHAIN = "gradproof.models.chain:backward"


def redirected(grads, rename):
    """The same gradients under other names."""
    return {name: grads[rename(name)] for name in grads}


@wrong("moe", "a norm's weight and bias swapped", target=CHAIN)
def _(right, params, grads, prefix, dy, saved, active):
    swap = {f"{prefix}norm.0.weight": f"{prefix}norm.0.bias", f"{prefix}norm.0.bias": f"{prefix}norm.0.weight"}
    return right(params, redirected(grads, lambda name: swap.get(name, name)), prefix, dy, saved, active)


@wrong("moe", "the experts' gradients in reverse order", target=CHAIN)
def _(right, params, grads, prefix, dy, saved, active):
    experts = 1 + max(int(name.split(".")[1]) for name in grads if name.startswith("experts."))
    mirror = f"experts.{experts - 1 - int(prefix.split('.')[1])}."
    return right(params, redirected(grads, lambda n: n.replace(prefix, mirror)), prefix, dy, saved, active)


@wrong("moe", "the gate applied twice", target="gradproof.ops.combine:backward")
def _(right, dy, saved, rows, gates, plan):
    _, dgates = right(dy, saved, rows, gates, plan)
    return right(dy, saved, rows, gates.square(), plan)[0], dgates


@wrong("moe", "the router sends no gradient to the input", target="gradproof.models.chain:linear_backward")
def _(right, params, grads, name, dy, x):
    dx = right(params, grads, name, dy, x)
    return torch.zeros_like(dx) if name == "router" else dx


@wrong("moe", "the auxiliary loss has no gradient", target="gradproof.models.moe:MoE.pull_back")
def _(right, self, params, grads, dy, x, saved):
    return right(self, params, grads, (dy[0], torch.zeros_like(dy[1])), x, saved)


@wrong("moe", "adds to stale gradients", target="gradproof.models.model:Model.backward")
def _(right, self, d_logits, tape, d_aux=0.0, accumulate=False):
    return right(self, d_logits, tape, d_aux, True)


@wrong("moe", "expert 1's first bias 1% too small", subtle=True, target=CHAIN)
def _(right, params, grads, prefix, dy, saved, active):
    dx = right(params, grads, prefix, dy, saved, active)
    if prefix == "experts.1.":
        grads["experts.1.linear.0.bias"].mul_(0.99)
    return dx


@wrong("moe", "the last routed row of expert 0 is left out", subtle=True, target=CHAIN)
def _(right, params, grads, prefix, dy, saved, active):
    return right(params, grads, prefix, but_last(dy) if prefix == "experts.0." and len(dy) else dy, saved, active)


@wrong("dense", "the first layer passes through GELU", target=CHAIN)
def _(right, params, grads, prefix, dy, saved, active):
    return right(params, grads, prefix, dy, saved, [True, *active[1:]])


@wrong("dense", "the last bias is never added", target=CHAIN)
def _(right, params, grads, prefix, dy, saved, active):
    last = f"linear.{len(active)}.bias"
    return right(params, {**grads, last: torch.zeros_like(grads[last])}, prefix, dy, saved, active)


@wrong("dense", "one norm's bias 4% too large", subtle=True, target=CHAIN)
def _(right, params, grads, prefix, dy, saved, active):
    dx = right(params, grads, prefix, dy, saved, active)
    grads["norm.0.bias"].mul_(1.04)
    return dx
