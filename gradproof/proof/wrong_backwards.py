"""The wrong backwards of ops that `gradproof verify --mutants` plants.

The `subtle` ones change a gradient by under 5%, or only on some rows; a test holds them to it. Many are published bugs:
gate weight applied twice, masked softmax Jacobian, softmax over the chosen instead of over all, detached balance loss,
mean of means, uninitialised rows, erf against tanh GELU, LayerNorm's eps.

Each takes the right function first and then its arguments.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from gradproof.ops import gelu, gelu_erf
from gradproof.proof.mutants import Mutant, registering

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)


def but_last(x_T: Tensor) -> Tensor:
    """`x_T` with its last row set to zero."""
    return torch.cat([x_T[:-1], torch.zeros_like(x_T[-1:])])


# Linear: returns dx, dw, db.


@wrong("linear", "dx with the wrong sign")
def _(right, dy, saved, x, w):
    dx, dw, db = right(dy, saved, x, w)
    return -dx, dw, db


@wrong("linear", "db is the last row, not the sum")
def _(right, dy, saved, x, w):
    dx, dw, _ = right(dy, saved, x, w)
    return dx, dw, dy[-1]


@wrong("linear", "dw in reversed order of outputs")
def _(right, dy, saved, x, w):
    dx, dw, db = right(dy, saved, x, w)
    return dx, dw.flip(0), db


@wrong("linear", "dw 2% too large", subtle=True)
def _(right, dy, saved, x, w):
    dx, dw, db = right(dy, saved, x, w)
    return dx, 1.02 * dw, db


@wrong("linear", "dw misses the last row", subtle=True)
def _(right, dy, saved, x, w):
    dx, _, db = right(dy, saved, x, w)
    return dx, but_last(dy).T @ x, db


@wrong("linear", "db one part in a million too large", subtle=True)
def _(right, dy, saved, x, w):
    dx, dw, db = right(dy, saved, x, w)
    return dx, dw, db * (1 + 1e-6)


@wrong("linear", "dx of the last row is never written", subtle=True)
def _(right, dy, saved, x, w):
    dx, dw, db = right(dy, saved, x, w)
    return torch.cat([dx[:-1], torch.empty_like(dx[-1:])]), dw, db


# LayerNorm: returns dx, dgamma, dbeta.


@wrong("layernorm", "the mean term is missing")
def _(right, dy, saved, x, gamma):
    dx, dgamma, dbeta = right(dy, saved, x, gamma)
    return dx + (dy * gamma).mean(-1, keepdim=True) * saved.rstd_T1, dgamma, dbeta


def variance_term(dy, saved, x, gamma):
    xhat = (x - saved.mean_T1) * saved.rstd_T1
    return xhat * (dy * gamma * xhat).mean(-1, keepdim=True) * saved.rstd_T1


@wrong("layernorm", "the variance term is missing")
def _(right, dy, saved, x, gamma):
    dx, dgamma, dbeta = right(dy, saved, x, gamma)
    return dx + variance_term(dy, saved, x, gamma), dgamma, dbeta


@wrong("layernorm", "the variance term divided by D − 1")
def _(right, dy, saved, x, gamma):
    dx, dgamma, dbeta = right(dy, saved, x, gamma)
    return dx - variance_term(dy, saved, x, gamma) / (x.shape[-1] - 1), dgamma, dbeta


@wrong("layernorm", "dx without gamma")
def _(right, dy, saved, x, gamma):
    _, dgamma, dbeta = right(dy, saved, x, gamma)
    return right(dy, saved, x, torch.ones_like(gamma))[0], dgamma, dbeta


@wrong("layernorm", "dgamma of x, not of x̂")
def _(right, dy, saved, x, gamma):
    dx, _, dbeta = right(dy, saved, x, gamma)
    return dx, (dy * x * saved.rstd_T1).sum(0), dbeta


@wrong("layernorm", "dgamma and dbeta swapped")
def _(right, dy, saved, x, gamma):
    dx, dgamma, dbeta = right(dy, saved, x, gamma)
    return dx, dbeta, dgamma


@wrong("layernorm", "eps 1.05e-5 in the backward", subtle=True)
def _(right, dy, saved, x, gamma):
    variance = (x - saved.mean_T1).square().mean(-1, keepdim=True)
    return right(dy, saved._replace(rstd_T1=(variance + 1.05e-5).rsqrt()), x, gamma)


@wrong("layernorm", "dgamma 3% too small", subtle=True)
def _(right, dy, saved, x, gamma):
    dx, dgamma, dbeta = right(dy, saved, x, gamma)
    return dx, 0.97 * dgamma, dbeta


@wrong("layernorm", "dbeta misses the last row", subtle=True)
def _(right, dy, saved, x, gamma):
    dx, dgamma, _ = right(dy, saved, x, gamma)
    return dx, dgamma, but_last(dy).sum(0)


@wrong("layernorm", "the last row's dx is not normalised", subtle=True)
def _(right, dy, saved, x, gamma):
    dx, dgamma, dbeta = right(dy, saved, x, gamma)
    return torch.cat([dx[:-1], dy[-1:] * gamma]), dgamma, dbeta


# GELU: returns dx.


def tanh_derivative(x, cubic=gelu.CUBIC, scale=gelu.SCALE, cubic_in_dv=gelu.CUBIC):
    tanh = torch.tanh(scale * (x + cubic * x**3))
    return 0.5 * ((1 + tanh) + x * (1 - tanh**2) * scale * (1 + 3 * cubic_in_dv * x**2))


@wrong("gelu", "the cubic term of dv is missing")
def _(right, dy, saved, x):
    return dy * tanh_derivative(x, cubic_in_dv=0.0)


@wrong("gelu", "the derivative of the erf form", subtle=True)
def _(right, dy, saved, x):
    return gelu_erf.backward(dy, None, x)


@wrong("gelu", "0.0447 for 0.044715", subtle=True)
def _(right, dy, saved, x):
    return dy * tanh_derivative(x, cubic=0.0447, cubic_in_dv=0.0447)


@wrong("gelu", "0.8 for √(2/π)", subtle=True)
def _(right, dy, saved, x):
    return dy * tanh_derivative(x, scale=0.8)


@wrong("gelu", "zero in the last row", subtle=True)
def _(right, dy, saved, x):
    return but_last(right(dy, saved, x))


@wrong("gelu_erf", "the density term is missing")
def _(right, dy, saved, x):
    return dy * 0.5 * (1 + torch.erf(x / 2**0.5))


@wrong("gelu_erf", "the derivative of the tanh form", subtle=True)
def _(right, dy, saved, x):
    return dy * tanh_derivative(x)


# Softmax and top-k: return dz, dx.


@wrong("softmax", "the inner product is missing")
def _(right, dp, p):
    return p * dp


@wrong("softmax", "only the diagonal of the Jacobian")
def _(right, dp, p):
    return p * (1 - p) * dp


@wrong("softmax", "4% too large", subtle=True)
def _(right, dp, p):
    return 1.04 * right(dp, p)


@wrong("softmax", "the last row's inner product is missing", subtle=True)
def _(right, dp, p):
    return torch.cat([right(dp, p)[:-1], (p * dp)[-1:]])


@wrong("topk", "the choices in reverse")
def _(right, dy, saved):
    return right(dy, saved._replace(index_TK=saved.index_TK.flip(1))) * (1 + 1e-3)


@wrong("topk", "a thousandth leaks to the neighbour", subtle=True)
def _(right, dy, saved):
    dx = right(dy, saved)
    return dx + 1e-3 * dx.roll(1, -1)


@wrong("topk", "the last row is dropped", subtle=True)
def _(right, dy, saved):
    return right(but_last(dy), saved)


# The router: returns dz.


def plain_softmax(routing):
    return routing.scores == "softmax" and not routing.renormalise


@wrong("route", "masked softmax Jacobian: nothing off S")
def _(right, dy, saved, routing):
    return right(dy, saved._replace(q_TE=saved.gates_TE) if plain_softmax(routing) else saved, routing)


@wrong("route", "softmax over the chosen instead of over all")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, renormalise=True) if routing.k > 1 else routing)


@wrong("route", "renormalised gates treated as plain")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, renormalise=False))


@wrong("route", "σ' taken for σ")
def _(right, dy, saved, routing):
    dz = right(dy, saved, routing)
    return dz / torch.sigmoid(-saved.z_TE) if routing.scores == "sigmoid" else dz


@wrong("route", "the balance loss is detached")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, balance=0.0))


@wrong("route", "the z-loss is detached")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, z_loss=0.0))


@wrong("route", "the balance loss 1% too light", subtle=True)
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, balance=0.99 * routing.balance))


@wrong("route", "a part of a batch takes itself for the whole")
def _(right, dy, saved, routing):
    return right(dy, saved._replace(rows=saved.z_TE.shape[0]), routing)


@wrong("route", "expert 0's dz 1% too small", subtle=True)
def _(right, dy, saved, routing):
    dz = right(dy, saved, routing)
    return torch.cat([0.99 * dz[:, :1], dz[:, 1:]], 1)


@wrong("route", "nothing off S in the last row", subtle=True)
def _(right, dy, saved, routing):
    dz = right(dy, saved, routing)
    return torch.cat([dz[:-1], dz[-1:] * (saved.gates_TE[-1:] != 0)])


@wrong("route", "the last row's gate cotangent is dropped", subtle=True)
def _(right, dy, saved, routing):
    return right(dy._replace(gates_TE=but_last(dy.gates_TE)), saved, routing)


# The sheaf router: returns dx, dtheta; its parts are planted too.


def of_sheaf(name):
    return f"gradproof.ops.sheaf:{name}"


@wrong("sheaf", "the maps have no gradient", target=of_sheaf("_cayley_backward"))
def _(right, dr, q):
    return torch.zeros_like(dr)


@wrong("sheaf", "the Cayley transform as if the maps were near I", target=of_sheaf("_cayley_backward"))
def _(right, dr, q):
    return -2 * dr


@wrong("sheaf", "Q not transposed", target=of_sheaf("_cayley_backward"))
def _(right, dr, q):
    return right(dr, q.mT)


@wrong("sheaf", "the transpose in the gradient of δᵀδ is dropped", target=of_sheaf("_square_backward"))
def _(right, dl, delta):
    return 2 * delta @ dl


@wrong("sheaf", "one of three steps of diffusion has no gradient", target=of_sheaf("_cube_backward"))
def _(right, dc, d):
    return right(dc, d) - d @ dc @ d


@wrong("sheaf", "the energy taken after diffusion")
def _(right, dy, saved, x, theta, cover, want_dx=True):
    if saved is not None:
        found = saved.late_TX @ saved.delta_YX.T
        saved = saved._replace(found_TME=found.view_as(saved.found_TME))
    return right(dy, saved, x, theta, cover, want_dx)


@wrong("sheaf", "softmax of +e/τ", target=of_sheaf("_attention_backward"))
def _(right, dz, saved, temperature):
    de, dtemperature = right(dz, saved, temperature)
    return -de, -dtemperature


@wrong("sheaf", "the gradient of τ, not of its logarithm", target=of_sheaf("_attention_backward"))
def _(right, dz, saved, temperature):
    de, dtemperature = right(dz, saved, temperature)
    return de, dtemperature * torch.exp(-temperature)


@wrong("sheaf", "the patches' weights are taken for constants", target=of_sheaf("_attention_backward"))
def _(right, dz, saved, temperature):
    de, dtemperature = right(dz, saved, temperature)
    return torch.zeros_like(de), dtemperature


@wrong("sheaf", "only the first patch of an edge is pulled", target=of_sheaf("_energy_backward"))
def _(right, de, saved, fixed):
    E = saved.q_NEE.shape[1]
    first_YX = fixed.side_MUS[:, :, 0].repeat_interleave(E, 0).repeat_interleave(E, 1)
    return right(de, saved._replace(delta_YX=saved.delta_YX * first_YX), fixed)


@wrong("sheaf", "the energy is a sum over edges, not their mean", target=of_sheaf("_energy_backward"))
def _(right, de, saved, fixed):
    return right(de, saved, fixed._replace(share_MU=(fixed.share_MU != 0).to(de.dtype)))


@wrong("sheaf", "the energy of a row has no gradient")
def _(right, dy, saved, x, theta, cover, want_dx=True):
    return right(dy._replace(energy_T=torch.zeros_like(dy.energy_T)), saved, x, theta, cover, want_dx)


@wrong("sheaf", "the last patch does not reach the inputs")
def _(right, dy, saved, x, theta, cover, want_dx=True):
    _, dtheta = right(dy, saved, x, theta, cover, want_dx)
    blind = theta.clone()
    cover.views(blind)[f"patches.{len(cover.patches) - 1}.weight"].zero_()
    return right(dy, saved, x, blind, cover, want_dx)[0], dtheta


@wrong("sheaf", "the rate of diffusion 1% too small", subtle=True, target=of_sheaf("_diffusion_backward"))
def _(right, ds, saved, cover):
    ds, ddelta = right(ds, saved, cover)
    return ds, 0.99 * ddelta


@wrong("sheaf", "the last row's energy is dropped", subtle=True)
def _(right, dy, saved, x, theta, cover, want_dx=True):
    return right(dy._replace(energy_T=but_last(dy.energy_T)), saved, x, theta, cover, want_dx)


@wrong("sheaf", "one patch's matrix 2% too large", subtle=True)
def _(right, dy, saved, x, theta, cover, want_dx=True):
    dx, dtheta = right(dy, saved, x, theta, cover, want_dx)
    cover.views(dtheta)["patches.0.weight"].mul_(1.02)
    return dx, dtheta


# The p-adic encoder: its forward returns both columns; it has no backward.


ENCODED, TURNED = "gradproof.data.padic:forward", "gradproof.data.padic:_turned"


@wrong("padic", "the most significant digit first", target=TURNED)
def _(right, rest, p, K):
    return -torch.fmod(rest, p**K), right(rest, p, K)[1]


@wrong("padic", "the sign is lost", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    found = right(n, p, dtype)[0]
    return type(found)(*(column.abs() for column in found)), None


@wrong("padic", "one digit too few", target=TURNED)
def _(right, rest, p, K):
    turned, rest = right(rest, p, K)
    return turned - torch.fmod(turned, p), rest


@wrong("padic", "the numbers as int32", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    return right(n.to(torch.int32).to(torch.int64), p, dtype)


@wrong("padic", "|−2⁶³| taken in int64", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    found = right(n.abs(), p, dtype)[0]
    return type(found)(*(torch.sign(n) * column for column in found)), None


@wrong("padic", "twice as many digits in the first column", target=ENCODED)
def _(right, n, p=2, dtype=torch.float32):
    found = right(n, p, torch.float64)[0]
    together = found.first_T + found.second_T / p ** int(24 * math.log(2, p))
    return type(found)(together.to(dtype), found.second_T.to(dtype)), None


# Dispatch: returns dx. Combine: returns drows, dgates.


@wrong("dispatch", "the mean over the choices, not their sum")
def _(right, drows, saved, plan):
    return right(drows, saved, plan) / plan.row_TK.shape[1]


@wrong("dispatch", "only the first choice comes back")
def _(right, drows, saved, plan):
    return drows[plan.row_TK[:, 0]]


@wrong("dispatch", "the last token's row is never written", subtle=True)
def _(right, drows, saved, plan):
    dx = right(drows, saved, plan)
    return torch.cat([dx[:-1], torch.empty_like(dx[-1:])])


@wrong("dispatch", "the last routed row is left out", subtle=True)
def _(right, drows, saved, plan):
    return right(but_last(drows), saved, plan)


@wrong("combine", "the gate applied twice")
def _(right, dy, saved, rows, gates, plan):
    _, dgates = right(dy, saved, rows, gates, plan)
    return right(dy, saved, rows, gates.square(), plan)[0], dgates


@wrong("combine", "the gate not applied")
def _(right, dy, saved, rows, gates, plan):
    _, dgates = right(dy, saved, rows, gates, plan)
    return right(dy, saved, rows, torch.ones_like(gates), plan)[0], dgates


@wrong("combine", "rows in token order, not in expert order")
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows[plan.row_TK.flatten()], dgates


@wrong("combine", "the gate's gradient times the gate")
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows, dgates * gates


@wrong("combine", "the last token's gate gradient is zero", subtle=True)
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows, but_last(dgates)


@wrong("combine", "the gates' gradient 2% too small", subtle=True)
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows, 0.98 * dgates


# Mixture: dy is (y, gates, aux); returns dx, dtheta.


@wrong("mixture", "the gates' own cotangent is left out")
def _(right, dy, saved, x, theta, mixture, *rest):
    return right(dy._replace(gates_TE=None), saved, x, theta, mixture, *rest)


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


# Bias, LayerNorm and GELU: returns dh, db, dgamma, dbeta.


@wrong("norm_gelu", "the bias is not in the recomputed norm")
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    return right(dy, saved, h, torch.zeros_like(b), gamma, beta, activate)


@wrong("norm_gelu", "GELU taken for the identity")
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    return right(dy, saved, h, b, gamma, beta, False)


@wrong("norm_gelu", "db is dbeta")
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    found = right(dy, saved, h, b, gamma, beta, activate)
    return found._replace(db_H=found.dbeta_H)


@wrong("norm_gelu", "the sums miss the last row", subtle=True)
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    return right(but_last(dy), saved, h, b, gamma, beta, activate)._replace(
        dh_TH=right(dy, saved, h, b, gamma, beta, activate).dh_TH
    )


# Experts: returns dx, dtheta.


@wrong("experts", "each expert takes its neighbour's rows")
def _(right, dy, saved, x, theta, plan, chain, *rest):
    return right(dy.roll(1, 0), saved, x, theta, plan, chain, *rest)


@wrong("experts", "the input of a layer is its h, not its activation")
def _(right, dy, saved, x, theta, plan, chain, *rest):
    dx, dtheta = right(dy, saved, x, theta, plan, chain, *rest)
    for e, h in enumerate(saved.h):
        if h:
            start, end = saved.bounds[e], saved.bounds[e + 1]
            chain.views(dtheta[e])[f"linear.{chain.layers}.weight"].copy_(dy[start:end].T @ h[-1])
    return dx, dtheta


@wrong("experts", "one matrix of expert 0 2% too large", subtle=True)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    dx, dtheta = right(dy, saved, x, theta, plan, chain, *rest)
    chain.views(dtheta[0])["linear.0.weight"].mul_(1.02)
    return dx, dtheta


# Attention: returns dq, dk, dv; its parts are functions of their own.

SCORE_GRADIENT = "gradproof.ops.attention:score_gradient"


@wrong("attention", "ds without the row sum", target=SCORE_GRADIENT)
def _(right, dp, p, scale):
    return p * dp * scale


@wrong("attention", "the scale is forgotten", target=SCORE_GRADIENT)
def _(right, dp, p, scale):
    return right(dp, p, 1.0)


@wrong("attention", "scaled by √D, not by the width of a head")
def _(right, dy, saved, q, k, v, heads=1):
    dq, dk, dv = right(dy, saved, q, k, v, heads)
    return dq / heads**0.5, dk / heads**0.5, dv


@wrong("attention", "dk = ds q, not transposed")
def _(right, dy, saved, q, k, v, heads=1):
    dq, _, dv = right(dy, saved, q, k, v, heads)
    return dq, right(dy, saved.transpose(2, 3), q, k, v, heads)[1] if q.shape == k.shape else dv, dv


@wrong("attention", "dv = p dy, not transposed")
def _(right, dy, saved, q, k, v, heads=1):
    dq, dk, dv = right(dy, saved, q, k, v, heads)
    return dq, dk, right(dy, saved.transpose(2, 3), q, k, v, heads)[2] if q.shape == k.shape else dv


@wrong("attention", "the mask is ignored in the backward")
def _(right, dy, saved, q, k, v, heads=1):
    return right(dy, saved + (saved == 0) / saved.shape[3], q, k, v, heads)


@wrong("attention", "a query that sees nothing has NaN")
def _(right, dy, saved, q, k, v, heads=1):
    dq, dk, dv = right(dy, saved, q, k, v, heads)
    blind = (saved.sum((1, 3)) == 0)[..., None]
    return dq.masked_fill(blind, float("nan")), dk, dv


@wrong("attention", "the heads in reverse order")
def _(right, dy, saved, q, k, v, heads=1):
    return right(dy, saved.flip(1), q, k, v, heads)


@wrong("attention", "dk misses the last sequence", subtle=True)
def _(right, dy, saved, q, k, v, heads=1):
    dq, _, dv = right(dy, saved, q, k, v, heads)
    return dq, right(but_last(dy), saved, q, k, v, heads)[1], dv


@wrong("attention", "dv 2% too large", subtle=True)
def _(right, dy, saved, q, k, v, heads=1):
    dq, dk, dv = right(dy, saved, q, k, v, heads)
    return dq, dk, 1.02 * dv


# Embedding: returns dw. Positions: returns dx, dp. Pooling: returns dx.


@wrong("embedding", "of a token's places only the last counts")
def _(right, dy, saved, token, w):
    kept = torch.zeros_like(w)
    kept[token[token >= 0]] = dy[token >= 0]
    return kept


@wrong("embedding", "padding counts as token 0")
def _(right, dy, saved, token, w):
    return right(dy, saved, token.clamp(min=0), w)


@wrong("embedding", "the mean of a token's places, not their sum")
def _(right, dy, saved, token, w):
    counts = torch.bincount(token[token >= 0], minlength=w.shape[0]).clamp(min=1)
    return right(dy, saved, token, w) / counts[:, None]


@wrong("embedding", "the last sequence is left out", subtle=True)
def _(right, dy, saved, token, w):
    return right(but_last(dy), saved, token, w)


@wrong("hashed_ngrams", "the scale of an n-gram is forgotten")
def _(right, dy, saved, gram, w):
    return right(dy, (gram >= 0).to(saved.dtype), gram, w)


@wrong("hashed_ngrams", "of the rows with an n-gram only the last counts")
def _(right, dy, saved, gram, w):
    kept = torch.zeros_like(w)
    kept[gram[gram >= 0]] = (saved * dy[:, None])[gram >= 0]
    return kept


@wrong("hashed_ngrams", "the last row is left out", subtle=True)
def _(right, dy, saved, gram, w):
    return right(but_last(dy), saved, gram, w)


@wrong("positional", "the mean over the batch, not the sum")
def _(right, dy, saved, p):
    dx, dp = right(dy, saved, p)
    return dx, dp / dy.shape[0]


@wrong("positional", "places off by one")
def _(right, dy, saved, p):
    dx, dp = right(dy, saved, p)
    return dx, dp.roll(1, 0)


@wrong("positional", "the last sequence is left out", subtle=True)
def _(right, dy, saved, p):
    return dy, right(but_last(dy), saved, p)[1]


@wrong("pool", "divided by S, padding included")
def _(right, dy, saved, mask):
    return right(dy, saved, torch.ones_like(mask))


@wrong("pool", "the sum, not the mean")
def _(right, dy, saved, mask):
    return right(dy, saved, mask) * mask.sum(1)[:, None, None]


@wrong("pool", "3% too small", subtle=True)
def _(right, dy, saved, mask):
    return 0.97 * right(dy, saved, mask)


# Feed-forward: returns dx, dw1, db1, dw2, db2.


@wrong("ffn", "GELU taken for the identity")
def _(right, dy, saved, x, w1, w2, out=None, accumulate=False):
    dh = dy @ w2
    return right(dy, saved, x, w1, w2)._replace(dx_TD=dh @ w1, dw1_FD=dh.T @ x, db1_F=dh.sum(0))


@wrong("ffn", "dw2 of h, not of its activation")
def _(right, dy, saved, x, w1, w2, out=None, accumulate=False):
    return right(dy, saved, x, w1, w2)._replace(dw2_DF=dy.T @ saved)


@wrong("ffn", "db1 is of the activation, not of h")
def _(right, dy, saved, x, w1, w2, out=None, accumulate=False):
    return right(dy, saved, x, w1, w2)._replace(db1_F=(dy @ w2).sum(0))


@wrong("ffn", "dw1 misses the last row", subtle=True)
def _(right, dy, saved, x, w1, w2, out=None, accumulate=False):
    return right(dy, saved, x, w1, w2)._replace(dw1_FD=right(dy, saved, but_last(x), w1, w2).dw1_FD)
