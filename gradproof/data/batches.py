"""Batches: the training rows in a new order for each epoch, as an endless stream that can be entered anywhere.

Batch s holds positions s·B … (s+1)·B − 1 of the stream; position i is row i mod R of the permutation of epoch i // R.
Nothing but the step is needed to go on at the exact row.
"""

from __future__ import annotations

import numpy as np

from gradproof.streams import philox


class Batches:
    """`batches[s]` is index_B: the rows of batch s, out of `index_R`."""

    def __init__(self, index_R: np.ndarray, batch: int, seed: int | str):
        self.index_R, self.seed = index_R, seed
        self.batch = min(batch, len(index_R))  # a batch never holds a row twice in one epoch
        self._epoch, self._order = -1, index_R

    def __getitem__(self, step: int) -> np.ndarray:
        first, last = step * self.batch, (step + 1) * self.batch
        R = len(self.index_R)
        parts = []
        while first < last:
            epoch, start = divmod(first, R)
            stop = min(R, start + last - first)
            parts.append(self._permuted(epoch)[start:stop])
            first += stop - start
        return np.concatenate(parts)

    def _permuted(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            order = np.random.Generator(philox(self.seed, "batches", epoch)).permutation(len(self.index_R))
            self._epoch, self._order = epoch, self.index_R[order]
        return self._order
