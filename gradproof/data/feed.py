"""Feed: the inputs and target of every step, for one model or for each member of an ensemble.

Each member reads the training rows in an order of its own, and loses other inputs to dropout:

    x ← x·keep/(1 − rate),  keep = 0 for about `rate` of the inputs of each row

Everything is a function of the seed, the member and the step, so a run that resumes sees the same rows and the same
zeros. Inputs are encoded once where they fit into `ENCODED` bytes, otherwise batch by batch: with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gradproof.data.batches import Batches
from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.streams import philox

ENCODED = 1 << 30
CHUNK = 4096  # rows encoded at a time
UNITS = 256  # dropout is drawn in bytes: a rate is rounded to a whole number of 256ths

Targets = Tensor | tuple[Tensor, ...]  # outcomes, or outcomes and metrics


class Feed:
    """`feed(s, m)` is (x_TI, target) of step s for member m, or for the only model there is."""

    def __init__(self, rows: Rows, index_R: np.ndarray, encoder: Encoder, batch: int, seed: int, members: int = 1):
        self.rows, self.encoder, self.seed, self.members = rows, encoder, seed, members
        orders = [seed if members == 1 else f"{seed}, member {m}" for m in range(members)]
        self.batches = [Batches(index_R, batch, order) for order in orders]
        self.rate = 0.0
        self.own: Callable[[int], slice] | None = None  # of a batch of so many rows, those of this rank; None for all
        self._encoded: tuple[np.ndarray, Tensor, Targets] | None = None

    @property
    def batch(self) -> int:
        """Rows of one member's batch."""
        return self.batches[0].batch

    def encode_all(self) -> None:
        """Encodes the training rows once, where they fit."""
        index_R, encoder = self.batches[0].index_R, self.encoder
        if len(index_R) * encoder.schema.inputs * 4 > ENCODED or torch.device(encoder.device).type != "cpu":
            return
        place_R = np.zeros(self.rows.count, np.int64)
        place_R[index_R] = np.arange(len(index_R))
        x_RI = torch.empty(len(index_R), encoder.schema.inputs, dtype=encoder.dtype)
        for i in range(0, len(index_R), CHUNK):
            x_RI[i : i + CHUNK] = encoder.inputs(self.rows.take(index_R[i : i + CHUNK]))
        self._encoded = place_R, x_RI, encoder.target(self.rows.take(index_R))

    def __call__(self, s: int, m: int = 0) -> tuple[Tensor, Targets]:
        index_T = self.batches[m][s]
        own = slice(None) if self.own is None else self.own(len(index_T))
        x_TI, target = self.taken(index_T[own])
        return (self._dropped(x_TI, m, s, len(index_T), own) if self.rate else x_TI), target

    def taken(self, index_T: np.ndarray) -> tuple[Tensor, Targets]:
        """Inputs and target of these training rows, nothing dropped."""
        if self._encoded is None:
            rows = self.rows.take(index_T)
            return self.encoder.inputs(rows), self.encoder.target(rows)
        place_R, x_RI, target_R = self._encoded
        at_T = torch.from_numpy(place_R[index_T])
        target = tuple(part[at_T] for part in target_R) if isinstance(target_R, tuple) else target_R[at_T]
        return x_RI.index_select(0, at_T), target

    def _dropped(self, x_TI: Tensor, m: int, s: int, rows: int, own: slice) -> Tensor:
        """Zeros are drawn for the whole batch, so that they do not depend on how it is shared."""
        limit = round(self.rate * UNITS)
        bits = np.random.Generator(philox(self.seed, "dropout", m, s)).bytes(rows * x_TI.shape[1])
        keep_BI = np.frombuffer(bits, np.uint8).reshape(rows, x_TI.shape[1])[own] >= limit
        keep_TI = torch.from_numpy(keep_BI).to(x_TI.device)
        return x_TI.mul_(UNITS / (UNITS - limit)).mul_(keep_TI)  # x is a copy: rows are taken by their index
