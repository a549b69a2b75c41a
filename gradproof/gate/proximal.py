"""The n-grams' weights, solved anew from all that people said and from replay, near those of the first model.

    min_w  Σ_r m_r·(softplus(z_r) − y_r·z_r) + ‖w − w*‖²/(2·STRENGTH),   z_r = e_r + Σ_g a_rg·w[gram_rg]

e_r is the encoder's logit, which stays; w* are the weights that the gate began with, so that what rounds move does not
add up. The problem is convex: a few signals move the decision about what is like them in one go, where gradient steps
small enough for the encoder would take hundreds. n-grams that occur in several of the corrected calls become known, so
that there are weights to learn with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradproof.gate.fit import LEAST, ROWS, alike
from gradproof.gate.network import KNOWN, SCALE, WEIGHT, GateNetwork
from gradproof.gate.ngrams import NUMBERS
from gradproof.ops import bce, hashed_ngrams
from gradproof.ops.embedding import PADDING

STRENGTH = 100.0  # how freely the weights may move
PASSES = 20  # of L-BFGS


def solve(
    network: GateNetwork,
    grams: Sequence[np.ndarray],
    encoded_R: Tensor,
    label_R: Tensor,
    mass_R: Tensor,
    anchor_N: Tensor,
) -> None:
    """Moves the network's n-gram weights; `anchor_N` is w*, labels are in [0, 1], masses above 0."""
    solved = network.params[WEIGHT].clone()
    parts = batches(network, grams)

    def objective() -> Tensor:
        moved_N = solved - anchor_N
        value = moved_N.square().sum() / (2 * STRENGTH)
        solved.grad = moved_N / STRENGTH
        for chosen, gram_BG in parts:
            y_B, share_BG = hashed_ngrams.forward(gram_BG, network.buffers[SCALE], solved)
            z_B, label_B = encoded_R[chosen] + y_B, label_R[chosen]
            loss, kept = bce.forward(z_B, label_B, mass_R[chosen], total=1.0)
            dz_B = bce.backward(torch.ones(()), kept, z_B, label_B)
            solved.grad += hashed_ngrams.backward(dz_B, share_BG, gram_BG, solved)
            value = value + loss
        return value

    optimizer = torch.optim.LBFGS([solved], max_iter=PASSES, history_size=10, line_search_fn="strong_wolfe")
    optimizer.step(objective)  # pyright: ignore[reportArgumentType]
    network.params[WEIGHT].copy_(solved)


def linear(network: GateNetwork, grams: Sequence[np.ndarray]) -> np.ndarray:
    """y_R, the n-grams' part of the logits."""
    y_R = np.zeros(len(grams))
    for chosen, gram_BG in batches(network, grams):
        y_B, _ = hashed_ngrams.forward(gram_BG, network.buffers[SCALE], network.params[WEIGHT])
        y_R[chosen] = y_B.double().numpy()
    return y_R


def get_to_know(network: GateNetwork, grams: Sequence[np.ndarray]) -> None:
    """n-grams that occur in several of these calls are known from now on."""
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *grams])
    network.buffers[KNOWN][torch.from_numpy(np.bincount(numbers, minlength=NUMBERS) >= LEAST)] = 1


def batches(network: GateNetwork, grams: Sequence[np.ndarray]) -> list[tuple[list[int], Tensor]]:
    """Rows of like length together: which, and gram_BG, the weight that each of their n-grams has."""
    return [
        (chosen, _weights(network, [grams[i] for i in chosen]))
        for chosen in alike({i: row for i, row in enumerate(grams)}, ROWS)  # pyright: ignore[reportArgumentType]
    ]


def _weights(network: GateNetwork, rows: Sequence[np.ndarray]) -> Tensor:
    number_BG = np.full((len(rows), max(map(len, rows))), PADDING, dtype=np.int64)
    for into_G, row in zip(number_BG, rows, strict=True):
        into_G[: len(row)] = row
    gram_BG = torch.from_numpy(number_BG)
    return torch.where(gram_BG < 0, PADDING, network.weight_of(gram_BG.clamp(min=0)))
