"""The wrong backwards of models that `gradproof verify --mutants` plants: gradients that reach the wrong place.

Each takes the right function first and then its arguments.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gradproof.models import block
from gradproof.proof.mutants import Mutant, but_last, registering

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)

EXPERTS = "gradproof.ops.experts:backward"


def changed(grads, chain, change):
    """The experts' gradients changed in place, expert by expert: `change(views, e)`."""
    dx, dtheta = grads
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


@wrong("moe", "the auxiliary loss has no gradient", target="gradproof.models.moe:MoE.pull_back", option="balance")
def _(right, self, weights, grad, dy, x, saved, **options):
    return right(self, weights, grad, (dy[0], torch.zeros_like(dy[1])), x, saved, **options)


@wrong(
    "moe",
    "a part of a batch takes its energy for the whole",
    target="gradproof.models.moe:MoE._denergy",
    option="sheaf, part of a batch",
)
def _(right, self, d_aux, energy, rows):
    return right(self, d_aux, energy, energy.shape[0])


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


# The transformer: where published code goes wrong, and which gradient goes where.

BLOCK = "gradproof.models.block:"
MODEL = "gradproof.models.transformer:Transformer."
ATTENTION = "gradproof.ops.attention:backward"


@wrong("transformer", "the norm's backward before the sublayer's", target=BLOCK + "feed_forward_backward")
def _(right, read, write, prefix, dy, saved):
    through = block.norm_backward(read, write, f"{prefix}norm", dy, saved.normed)
    return dy + right(read, write, prefix, through, saved) - through


@wrong("transformer", "the residual's gradient goes through the norm", target=BLOCK + "self_attention_backward")
def _(right, read, write, prefix, dy, saved, layout):
    dn = right(read, write, prefix, dy, saved, layout) - dy
    return dn + block.norm_backward(read, write, f"{prefix}norm", dy, saved.normed)


@wrong("transformer", "the residual is not added", target=BLOCK + "self_attention_backward")
def _(right, read, write, prefix, dy, saved, layout):
    return right(read, write, prefix, dy, saved, layout) - dy


@wrong("transformer", "the final norm's backward takes its output", target=BLOCK + "norm_backward")
def _(right, read, write, name, dn, normed):
    final = name in ("encoder.norm", "decoder.norm")
    return right(read, write, name, dn, normed._replace(x_TD=normed.n_TD) if final else normed)


@wrong("transformer", "W_o's gradient takes the sublayer's input", target=BLOCK + "self_attention_backward")
def _(right, read, write, prefix, dy, saved, layout):
    return right(read, write, prefix, dy, saved._replace(heads_TD=saved.normed.n_TD), layout)


@wrong("transformer", "W_o's gradient takes the heads interleaved", target=BLOCK + "cross_attention_backward")
def _(right, read, write, prefix, dy, saved, *memory):
    heads = saved.heads_TD.unflatten(1, (read.heads, -1)).transpose(1, 2).flatten(1)
    return right(read, write, prefix, dy, saved._replace(heads_TD=heads), *memory)


@wrong("transformer", "Q, K and V pass no gradient on", target=BLOCK + "project_backward")
def _(right, read, write, name, dy, x):
    dx = right(read, write, name, dy, x)
    return torch.zeros_like(dx) if name.endswith(".qkv") else dx


@wrong("transformer", "only Q passes gradient on", target=BLOCK + "project_backward")
def _(right, read, write, name, dy, x):
    if name.endswith(".qkv"):
        dy = torch.cat([dy[:, : x.shape[1]], torch.zeros_like(dy[:, x.shape[1] :])], 1)
    return right(read, write, name, dy, x)


@wrong("transformer", "K and V pass no gradient on to the memory", target=BLOCK + "cross_attention_backward")
def _(right, read, write, prefix, dy, saved, *memory):
    dx, dmemory = right(read, write, prefix, dy, saved, *memory)
    return dx, torch.zeros_like(dmemory)


@wrong("transformer", "only the first layer's gradient reaches the memory", target=BLOCK + "cross_attention_backward")
def _(right, read, write, prefix, dy, saved, *memory):
    dx, dmemory = right(read, write, prefix, dy, saved, *memory)
    return dx, dmemory * (".0." in prefix)


@wrong("transformer", "padded keys have a gradient", target=ATTENTION)
def _(right, dy, saved, q, k, v, heads=1):
    return right(dy, saved + (saved == 0) / saved.shape[3], q, k, v, heads)


@wrong("transformer", "a row that sees nothing is NaN", target=ATTENTION)
def _(right, dy, saved, q, k, v, heads=1):
    return right(dy, saved / saved.sum(-1, keepdim=True), q, k, v, heads)


@wrong("transformer", "padding counts in the mean", target="gradproof.ops.pool:backward")
def _(right, dy, saved, mask):
    return right(dy, saved, torch.ones_like(mask))


@wrong("transformer", "the source's embedding overwrites the target's", target=MODEL + "_embed_backward")
def _(right, self, read, write, dx, saved):
    return right(self, read, replace(write, accumulate=False), dx, saved)


@wrong("transformer", "K's gradient under V's name", target=ATTENTION)
def _(right, dy, saved, q, k, v, heads=1):
    dq, dk, dv = right(dy, saved, q, k, v, heads)
    return dq, dv, dk


@wrong("transformer", "mode causal trains the encoder's norm", subtle=True, target=MODEL + "pull_back")
def _(right, self, weights, grad, dy, x, saved, **options):
    right(self, weights, grad, dy, x, saved, **options)
    if "encoder.norm.bias" in self.config.unused:
        self.params.views_of(grad)["encoder.norm.bias"].add_(1e-9)


@wrong(
    "transformer", "the last sequence's places are not counted", subtle=True, target="gradproof.ops.positional:backward"
)
def _(right, dy, saved, p):
    return dy, right(but_last(dy), saved, p)[1]


@wrong("transformer", "one norm's weight 1% too small", subtle=True, target=BLOCK + "norm_backward")
def _(right, read, write, name, dn, normed):
    dx = right(read, write, name, dn, normed)
    if name.endswith("ffn.norm"):
        write.grads[f"{name}.weight"].mul_(0.99)
    return dx


ENSEMBLE = "gradproof.models.ensemble:Ensemble.pull_back"


@wrong("ensemble", "the members' gradients in reverse order", target=ENSEMBLE)
def _(right, self, weights, grad, dy, x, saved, **options):
    dx = right(self, weights, grad, dy, x, saved, **options)
    parts = grad.view(len(self.members), -1)
    parts.copy_(parts.flip(0))
    return dx


@wrong("ensemble", "only the first member sends a gradient to the input", target=ENSEMBLE)
def _(right, self, weights, grad, dy, x, saved, **options):
    dx = right(self, weights, grad, dy, x, saved, **options)
    return dx / len(self.members)


@wrong("ensemble", "the auxiliary loss counts once for every member", target=ENSEMBLE, option="balance")
def _(right, self, weights, grad, dy, x, saved, **options):
    return right(self, weights, grad, (dy[0], dy[1] * len(self.members)), x, saved, **options)


@wrong("ensemble", "the last member's router bias 1% too small", subtle=True, target=ENSEMBLE)
def _(right, self, weights, grad, dy, x, saved, **options):
    dx = right(self, weights, grad, dy, x, saved, **options)
    name = f"members.{len(self.members) - 1}.router.bias"
    if name in self.params.shapes:
        self.params.views_of(grad)[name].mul_(0.99)
    return dx
