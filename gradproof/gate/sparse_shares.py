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
        rows, counts, grams, shares = [], [], [], []
        for chosen, gram_BG in batches:
            _, share_BG = hashed_ngrams.forward(gram_BG, scale_N, torch.zeros_like(scale_N))
            is_there_BG = gram_BG >= 0
            rows.append(torch.tensor(chosen))
            counts.append(is_there_BG.sum(1))
            grams.append(gram_BG[is_there_BG])
            shares.append(share_BG[is_there_BG])
        number, share, count = torch.cat(grams), torch.cat(shares), torch.cat(counts)
        self._row, self.R = torch.cat(rows), R
        is_used_N = torch.zeros(len(scale_N), dtype=torch.bool).index_fill_(0, number, True)
        self.used = is_used_N.nonzero()[:, 0]
        U, lines = len(self.used), len(self._row)
        column = (is_used_N.int().cumsum(0, dtype=torch.int32) - 1)[number]
        line = torch.arange(lines, dtype=torch.int32).repeat_interleave(count)
        by_column, order = torch.sort(column, stable=True)
        self._a_LU = _matrix(count, column, share, U)
        self._a_UL = _matrix(torch.bincount(by_column, minlength=U), line[order], share[order], lines)

    def forward(self, w_U: Tensor) -> Tensor:
        return w_U.new_zeros(self.R).index_copy_(0, self._row, self._a_LU @ w_U)

    def backward(self, dy_R: Tensor) -> Tensor:
        """dw_U."""
        return self._a_UL @ dy_R[self._row]


def _matrix(count: Tensor, column: Tensor, value: Tensor, columns: int) -> Tensor:
    """The matrix whose rows, one after the other, have so many entries each; a column may come twice, and adds up. With
    indices of 32 bits a product takes a fifth of the time that it takes with 64."""
    start = torch.zeros(len(count) + 1, dtype=torch.int32)
    torch.cumsum(count, 0, out=start[1:])
    with warnings.catch_warnings():  # torch calls its sparse matrices a beta
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(start, column, value, (len(count), columns), check_invariants=False)
