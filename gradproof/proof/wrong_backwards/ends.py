"""Wrong backwards of the first and last ops of a model: the p-adic encoder and the losses."""

from __future__ import annotations

import math

import torch

from gradproof.proof.mutants import Mutant, but_last, registering

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)


# The p-adic encoder: its forward returns both columns; it has no backward.


ENCODED, TURNED = "gradproof.ops.padic:forward", "gradproof.ops.padic:_turned"


@wrong("padic", "the most significant digit first", target=TURNED)
def _(right, rest, p, K):
    return -torch.fmod(rest, p**K), right(rest, p, K)[1]


@wrong("padic", "the sign is lost", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    columns = right(n, p, dtype)[0]
    return type(columns)(*(column.abs() for column in columns)), None


@wrong("padic", "one digit too few", target=TURNED)
def _(right, rest, p, K):
    turned, rest = right(rest, p, K)
    return turned - torch.fmod(turned, p), rest


@wrong("padic", "the numbers as int32", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    return right(n.to(torch.int32).to(torch.int64), p, dtype)


@wrong("padic", "|−2⁶³| taken in int64", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    columns = right(n.abs(), p, dtype)[0]
    return type(columns)(*(torch.sign(n) * column for column in columns)), None


@wrong("padic", "twice as many digits in the first column", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    columns = right(n, p, torch.float64)[0]
    together = columns.first_T + columns.second_T / p ** int(24 * math.log(2, p))
    return type(columns)(together.to(dtype), columns.second_T.to(dtype)), None


# Losses: return the gradient of the logits or outputs.


@wrong("cross_entropy", "divided by the micro-batch, not by the total")
def _(right, dloss, saved, z, target):
    return right(dloss, saved / saved.sum(), z, target)


@wrong("cross_entropy", "the class weights are ignored")
def _(right, dloss, saved, z, target):
    return right(dloss, saved.mean().expand_as(saved), z, target)


@wrong("cross_entropy", "the probability clamped at 1e-3", subtle=True)
def _(right, dloss, saved, z, target):
    p = torch.softmax(z, -1)
    return right(dloss, saved, z, target) + dloss * saved[:, None] * (p.clamp(min=1e-3) - p)


@wrong("cross_entropy", "the last row's target is not subtracted", subtle=True)
def _(right, dloss, saved, z, target):
    dz = right(dloss, saved, z, target)
    return torch.cat([dz[:-1], (dloss * saved[:, None] * torch.softmax(z, -1))[-1:]])


@wrong("cross_entropy", "padding counts")
def _(right, dloss, saved, z, target):
    return right(dloss, saved.clamp(min=float(saved.max())), z, target)


@wrong("bce", "the weight is ignored")
def _(right, dloss, saved, z, label):
    return right(dloss, saved.mean().expand_as(saved), z, label)


@wrong("bce", "the label is not clamped")
def _(right, dloss, saved, z, label):
    return dloss * saved * (torch.sigmoid(z) - label)


@wrong("bce", "4% too small", subtle=True)
def _(right, dloss, saved, z, label):
    return 0.96 * right(dloss, saved, z, label)


@wrong("mse", "the factor 2 is missing")
def _(right, dloss, saved):
    return right(dloss, saved) / 2


@wrong("mse", "the last row is left out", subtle=True)
def _(right, dloss, saved):
    return right(dloss, but_last(saved))


@wrong("quality", "the metrics' weight is ignored")
def _(right, dloss, saved, y, outcome, weight=1.0):
    return right(dloss, saved, y, outcome, 1.0)


@wrong("quality", "the metrics 1% too heavy", subtle=True)
def _(right, dloss, saved, y, outcome, weight=1.0):
    return right(dloss, saved, y, outcome, 1.01 * weight)


@wrong("vote", "every member has the same share")
def _(right, dy, saved, z, classes):
    dl = dy[:, :classes] / len(z)
    rest = right(dy, saved, z, classes)[..., classes:]
    return torch.cat([dl - saved.exp() * dl.sum(-1, keepdim=True), rest], -1)


@wrong("vote", "without the softmax's own term")
def _(right, dy, saved, z, classes):
    rest = right(dy, saved, z, classes)[..., classes:]
    return torch.cat([torch.softmax(saved, 0) * dy[:, :classes], rest], -1)


@wrong("vote", "the sum of the numbers, not their mean")
def _(right, dy, saved, z, classes):
    dz = right(dy, saved, z, classes)
    return torch.cat([dz[..., :classes], dz[..., classes:] * len(z)], -1)


@wrong("vote", "the last member 2% too small", subtle=True)
def _(right, dy, saved, z, classes):
    dz = right(dy, saved, z, classes).clone()
    dz[-1] *= 0.98
    return dz


@wrong("gaussian", "the mean's gradient is that of the squared error")
def _(right, dloss, saved, y):
    dy = right(dloss, saved, y)
    return torch.stack([dy[:, 0] * (2 * y[:, 1].clamp(-5, 5)).exp(), dy[:, 1]], 1)


@wrong("gaussian", "the spread learns beyond the clamp too")
def _(right, dloss, saved, y):
    dy = right(dloss, saved, y)
    return torch.stack([dy[:, 0], dloss * saved.scale_T * (1 - saved.z_T**2)], 1)


@wrong("gaussian", "the spread does not grow with the error")
def _(right, dloss, saved, y):
    return right(dloss, saved, y) * torch.tensor([1.0, 0.0], dtype=y.dtype, device=y.device)


@wrong("gaussian", "divided by the rows, not by the total")
def _(right, dloss, saved, y):
    return right(dloss, saved._replace(scale_T=torch.full_like(saved.scale_T, 1 / len(y))), y)


@wrong("gaussian", "the mean 2% too heavy", subtle=True)
def _(right, dloss, saved, y):
    return right(dloss, saved, y) * torch.tensor([1.02, 1.0], dtype=y.dtype, device=y.device)


# Ensembles of Gaussians: returns dz_MTO.


@wrong("pool_gaussians", "disagreement is no part of the spread")
def _(right, dy, saved, z):
    return right(dy, saved._replace(off_MT=torch.zeros_like(saved.off_MT)), z)


@wrong("pool_gaussians", "not divided by the members")
def _(right, dy, saved, z):
    return len(z) * right(dy, saved, z)


@wrong("pool_gaussians", "every member has the same share in the spread")
def _(right, dy, saved, z):
    dz = right(dy, saved, z)
    return torch.stack([dz[..., 0], dz[..., 1].mean(0).expand(len(z), -1)], -1)


@wrong("pool_gaussians", "the last member's spread 3% too heavy", subtle=True)
def _(right, dy, saved, z):
    dz = right(dy, saved, z).clone()
    dz[-1, :, 1] *= 1.03
    return dz
