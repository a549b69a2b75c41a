"""Batcher: one forward for concurrent requests.

A forward costs almost as much for one row as for a hundred, so the rows of all requests that wait are joined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradproof.data.rows import Rows
from gradproof.http.batching import Batching, Busy
from gradproof.train.predictor import CHUNK, Predictions

__all__ = ["INLINE", "WAITING", "Batcher", "Busy"]

WAITING = 1 << 16  # rows in the queue; each takes a few hundred bytes
INLINE = 256  # rows that run in the event loop: about 3 ms of a nano model


class Batcher(Batching[Rows, Predictions]):
    """`await batcher(rows)`: the predictions of these rows, computed together with those of other callers.

    A batch takes whole requests in their order, as many as fit into `max_rows` and always at least one: with
    `max_rows=1` every request is a forward of its own. An error in a forward reaches every caller of its batch, and
    nobody else."""

    def __init__(
        self,
        predict: Callable[[Rows], Predictions],
        max_rows: int = CHUNK,
        max_waiting: int = WAITING,
        inline: int = INLINE,
    ):
        self.predict = predict
        super().__init__(self._predict, max_rows, max_waiting, inline=inline, size=lambda rows: rows.count, unit="rows")

    def _predict(self, parts: list[Rows]) -> list[Predictions]:
        joined = self.predict(_joined(parts))
        ends = np.cumsum([part.count for part in parts]).tolist()
        return [joined.slice(end - part.count, end) for part, end in zip(parts, ends, strict=True)]


def _joined(parts: list[Rows]) -> Rows:
    return parts[0] if len(parts) == 1 else Rows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
