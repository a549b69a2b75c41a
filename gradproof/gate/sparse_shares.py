"""The shares a_rg of `ops/hashed_ngrams` for many rows at once, as a sparse matrix A: y = A·w, dw = Aᵀ·dy.

Solving for w takes the same product a hundred times over: the shares do not change, so they are computed once, by the
op, and only for what occurs: `used` are those numbers, ascending, and w has an entry for each.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradproof.ops import hashed_ngrams


class SparseShares:
    """Of batches (rows, gram_BG), R rows in all."""

    def __init__(self, batches: Iterable[tuple[Sequence[int], Tensor]], R: int, scale_N: Tensor):
        rows, grams, shares = [], [], []
        for chosen, gram_BG in batches:
            _, share_BG = hashed_ngrams.forward(gram_BG, scale_N, torch.zeros_like(scale_N))
            is_there_BG = gram_BG >= 0
            rows.append(torch.tensor(chosen)[:, None].expand_as(gram_BG)[is_there_BG])
            grams.append(gram_BG[is_there_BG])
            shares.append(share_BG[is_there_BG])
        self.used, column = torch.unique(torch.cat(grams), return_inverse=True)
        row, share = torch.cat(rows), torch.cat(shares)
        with warnings.catch_warnings():  # torch calls its sparse matrices a beta
            warnings.simplefilter("ignore", UserWarning)
            self._a_RU = _matrix(row, column, share, R, len(self.used))
            self._a_UR = _matrix(column, row, share, len(self.used), R)

    def forward(self, w_U: Tensor) -> Tensor:
        return self._a_RU @ w_U

    def backward(self, dy_R: Tensor) -> Tensor:
        """dw_U."""
        return self._a_UR @ dy_R


def _matrix(row: Tensor, column: Tensor, value: Tensor, rows: int, columns: int) -> Tensor:
    return torch.sparse_coo_tensor(torch.stack((row, column)), value, (rows, columns)).coalesce().to_sparse_csr()
