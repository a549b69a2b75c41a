"""Solves for the weights of n-grams and features from all feedback and replay, near those of the first model.

    min_w  Σ_r m_r·(softplus(z_r) − y_r·z_r) + Σ_i (w_i − w*_i)²/(2·s_i),   z_r = b + e_r + Σ_g a_rg·w[gram_rg] + …

s_i says how freely a weight may move: those of n-grams do, those of features hardly. What a correction says is of calls
that are written like it; what features know of harm comes from thousands of calls, and few corrections only spoil it.
e_r is the encoder's logit, which stays; b is the offset that suits w* on replay: the first weights were solved for with
one of their own, and without it all weights would move to make up for it. w* are the weights that the gate began with,
so that what rounds move does not add up. The problem is convex: a few signals move the decision about what is like them
in one go, where gradient steps small enough for an encoder would take hundreds. n-grams and features that occur in
several of the corrected calls become known, so that there are weights to learn with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.gate.fit import LEAST, ROWS, alike
from gradproof.gate.network import FEATURES, NGRAMS, GateNetwork, Sparse
from gradproof.gate.sparse_shares import SparseShares
from gradproof.ops import bce
from gradproof.ops.embedding import PADDING

FREELY = {NGRAMS: 1e4, FEATURES: 10.0}  # s; chosen on the streams of seeds 100 and 101 (docs/gate-quality.md)
PASSES = 20  # of L-BFGS
LAYERS = (NGRAMS, FEATURES)


class SparseRow(NamedTuple):
    """The numbers of an act's n-grams and of its features, each from 0 on."""

    gram_G: np.ndarray
    feature_H: np.ndarray


def solve(
    network: GateNetwork,
    rows: Sequence[SparseRow],
    encoded_R: Tensor,
    label_R: Tensor,
    mass_R: Tensor,
    anchors: Mapping[str, Tensor],
) -> None:
    """Moves the network's sparse weights; `anchors` are w* by name, labels are in [0, 1], masses above 0; encoded_R is
    b + e."""
    shares = {layer: shares_of(network, rows, layer) for layer in LAYERS}
    start = {layer: anchors[layer.weight][shares[layer].used] for layer in LAYERS}
    anchor_U = torch.cat([start[layer] for layer in LAYERS])
    solved = torch.cat([network.params[layer.weight][shares[layer].used] for layer in LAYERS])
    free_U = torch.cat([torch.full_like(start[layer], FREELY[layer]) for layer in LAYERS])
    ends = [len(start[NGRAMS]), len(anchor_U)]

    def objective() -> Tensor:
        moved_U = solved - anchor_U
        parts = (solved[: ends[0]], solved[ends[0] :])
        z_R = encoded_R + sum(shares[layer].forward(own) for layer, own in zip(LAYERS, parts, strict=True))
        loss, kept = bce.forward(z_R, label_R, mass_R, total=1.0)
        dz_R = bce.backward(torch.ones(()), kept, z_R, label_R)
        solved.grad = moved_U / free_U + torch.cat([shares[layer].backward(dz_R) for layer in LAYERS])
        return loss + (moved_U.square() / free_U).sum() / 2

    optimizer = torch.optim.LBFGS([solved], max_iter=PASSES, history_size=10, line_search_fn="strong_wolfe")
    optimizer.step(objective)  # pyright: ignore[reportArgumentType]
    for layer, own in zip(LAYERS, (solved[: ends[0]], solved[ends[0] :]), strict=True):
        network.params[layer.weight].copy_(anchors[layer.weight])  # what does not occur goes back to where it began
        network.params[layer.weight][shares[layer].used] = own


def offset(z_R: Tensor, label_R: Tensor, mass_R: Tensor, steps: int = 30) -> float:
    """b that minimises Σ m·(softplus(z + b) − y·(z + b)), by Newton's method."""
    b = 0.0
    for _ in range(steps):
        p_R = torch.sigmoid(z_R + b)
        step = float((mass_R * (p_R - label_R)).sum() / (mass_R * p_R * (1 - p_R)).sum().clamp(min=1e-6))
        b -= max(-2.0, min(2.0, step))
        if abs(step) < 1e-6:
            break
    return b


def shares_of(network: GateNetwork, rows: Sequence[SparseRow], layer: Sparse) -> SparseShares:
    """The shares of one layer in these rows."""
    return SparseShares(batches(network, rows, layer), len(rows), network.buffers[layer.scale])


def linear(network: GateNetwork, rows: Sequence[SparseRow]) -> np.ndarray:
    """y_R, what n-grams and features add to the logits."""
    y_R = torch.zeros(len(rows))
    for layer in LAYERS if rows else ():
        shares = shares_of(network, rows, layer)
        y_R += shares.forward(network.params[layer.weight][shares.used])
    return y_R.double().numpy()


def get_to_know(network: GateNetwork, rows: Sequence[SparseRow]) -> None:
    """n-grams and features that occur in several of these acts are known from now on."""
    for layer, column in zip(LAYERS, zip(*rows, strict=True) if rows else ((), ()), strict=True):
        numbers = np.concatenate([np.zeros(0, dtype=np.int64), *column])
        often = torch.from_numpy(np.bincount(numbers, minlength=len(layer.numbers)) >= LEAST)
        network.buffers[layer.known][often] = 1


def batches(network: GateNetwork, rows: Sequence[SparseRow], layer: Sparse) -> list[tuple[list[int], Tensor]]:
    """Rows of like length together: which, and the weight that each of their n-grams, or features, has."""
    own = [row[LAYERS.index(layer)] for row in rows]
    return [
        (chosen, _weights(network, [own[i] for i in chosen], layer))
        for chosen in alike(dict(enumerate(own)), ROWS)  # pyright: ignore[reportArgumentType]
    ]


def _weights(network: GateNetwork, rows: Sequence[np.ndarray], layer: Sparse) -> Tensor:
    number_BG = np.full((len(rows), max(map(len, rows))), PADDING, dtype=np.int64)
    for into_G, row in zip(number_BG, rows, strict=True):
        into_G[: len(row)] = row
    gram_BG = torch.from_numpy(number_BG)
    if layer == FEATURES:
        return network.feature_weight_of(gram_BG)
    return torch.where(gram_BG < 0, PADDING, network.weight_of(gram_BG.clamp(min=0)))
