"""Wrong backwards of attention, embeddings, positions and pooling."""

from __future__ import annotations

import torch

from gradproof.proof.mutants import Mutant, but_last, registering

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)


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
