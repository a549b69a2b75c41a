"""Wrong backwards of common layers: linear, norms, activations, softmax, feed-forward."""

from __future__ import annotations

import torch

from gradproof.ops import gelu, gelu_erf
from gradproof.proof.mutants import Mutant, but_last, registering

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)


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


# Bias, LayerNorm and GELU: returns dh, db, dgamma, dbeta.


@wrong("norm_gelu", "the bias is not in the recomputed norm")
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    return right(dy, saved, h, torch.zeros_like(b), gamma, beta, activate)


@wrong("norm_gelu", "GELU taken for the identity")
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    return right(dy, saved, h, b, gamma, beta, False)


@wrong("norm_gelu", "db is dbeta")
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    grads = right(dy, saved, h, b, gamma, beta, activate)
    return grads._replace(db_H=grads.dbeta_H)


@wrong("norm_gelu", "the sums miss the last row", subtle=True)
def _(right, dy, saved, h, b, gamma, beta, activate=True):
    return right(but_last(dy), saved, h, b, gamma, beta, activate)._replace(
        dh_TH=right(dy, saved, h, b, gamma, beta, activate).dh_TH
    )


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
