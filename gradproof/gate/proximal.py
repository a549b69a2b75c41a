"""The n-grams' weights, solved anew from corrections and replay, near the ones that serve.

    min_w  Σ_r m_r·(softplus(z_r) − y_r·z_r) + ‖w − w*‖²/(2·STRENGTH),   z_r = e_r + Σ_g a_rg·w[gram_rg]

e_r is the encoder's logit, which stays. The problem is convex: a few signals move the decision about what is like them
in one go, where gradient steps small enough for the encoder would take hundreds. n-grams that occur in several of the
corrected calls become known, so that there are weights to learn with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradproof.gate.fit import LEAST, ROWS, alike, logits
from gradproof.gate.network import KNOWN, SCALE, WEIGHT, GateModel
from gradproof.gate.ngrams import NUMBERS
from gradproof.ops import bce, hashed_ngrams
from gradproof.ops.embedding import PADDING

STRENGTH = 100.0  # how freely the weights may move
PASSES = 20  # of L-BFGS


def solve(gate: GateModel, texts: Sequence[str], label_R: Tensor, mass_R: Tensor) -> None:
    """Moves the gate's n-gram weights; labels in [0, 1], masses above 0."""
    network = gate.network
    before_N = network.params[WEIGHT].clone()
    solved = before_N.clone()
    rows = {i: gate.encode(text) for i, text in enumerate(texts)}
    z_R = torch.from_numpy(logits(gate, list(rows.values()))).float()
    parts = [(*_encoded(gate, [rows[i] for i in chosen], z_R[chosen]), chosen) for chosen in alike(rows, ROWS)]

    def objective() -> Tensor:
        moved_N = solved - before_N
        value = moved_N.square().sum() / (2 * STRENGTH)
        solved.grad = moved_N / STRENGTH
        for e_B, gram_BG, chosen in parts:
            y_B, share_BG = hashed_ngrams.forward(gram_BG, network.buffers[SCALE], solved)
            z_B, label_B = e_B + y_B, label_R[chosen]
            loss, kept = bce.forward(z_B, label_B, mass_R[chosen], total=1.0)
            dz_B = bce.backward(torch.ones(()), kept, z_B, label_B)
            solved.grad += hashed_ngrams.backward(dz_B, share_BG, gram_BG, solved)
            value = value + loss
        return value

    optimizer = torch.optim.LBFGS([solved], max_iter=PASSES, history_size=10, line_search_fn="strong_wolfe")
    optimizer.step(objective)  # pyright: ignore[reportArgumentType]
    network.params[WEIGHT].copy_(solved)


def get_to_know(gate: GateModel, texts: Sequence[str]) -> None:
    """n-grams that occur in several of these calls are known from now on."""
    network = gate.network
    vocabulary = network.config.vocabulary
    numbers = [number - vocabulary for text in texts for number in gate.encode(text) if number >= vocabulary]
    count = torch.bincount(torch.tensor(numbers, dtype=torch.int64), minlength=NUMBERS)
    network.buffers[KNOWN][count >= LEAST] = 1


def _encoded(gate: GateModel, rows: Sequence[Sequence[int]], z_B: Tensor) -> tuple[Tensor, Tensor]:
    """e_B and gram_BG of rows whose logits are known: the encoder's part, and the weights that the n-grams have."""
    network = gate.network
    vocabulary = network.config.vocabulary
    grams = [[PADDING, *(number for number in row if number >= vocabulary)] for row in rows]
    gram_BG = network.split(gate.batch(grams))[1]
    y_B, _ = hashed_ngrams.forward(gram_BG, network.buffers[SCALE], network.params[WEIGHT])
    return z_B - y_B, gram_BG
