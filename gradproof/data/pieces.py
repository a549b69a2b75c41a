"""Pieces: a number as how far it has come through each stretch of its range.

    piece_j(v) = clamp((v − k_j)/(k_{j+1} − k_j), 0, 1),  knots k at quantiles of the training rows

Beside the standardised number, this lets a network bend at any of the knots: for thresholds, which trees find so
easily, and for skewed columns, whose bulk standardising squeezes together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Schema

MOST = 48
ROWS_PER_PIECE = 50
ALTOGETHER = 1024  # pieces of all numbers: a wide table must not become a far wider one
SAMPLE = 50_000  # training rows, evenly spaced, that the quantiles are taken from


def with_knots(schema: Schema, rows: Rows, train_R: np.ndarray, most: int = MOST) -> Schema:
    """The schema, each of its numbers with knots: a piece for every fifty training rows, `most` at most, and about a
    thousand in all."""
    (index_T,) = np.nonzero(train_R)
    index_T = index_T[:: -(-len(index_T) // SAMPLE)]
    most = min(most, int(train_R.sum()) // ROWS_PER_PIECE, ALTOGETHER // max(1, len(schema.numbers)))
    value_TN = rows.numbers_RN[index_T]
    numbers = (replace(number, knots=_knots(value_TN[:, n], most)) for n, number in enumerate(schema.numbers))
    return replace(schema, numbers=tuple(numbers))


def _knots(value_T: np.ndarray, most: int) -> tuple[float, ...]:
    """Distinct quantiles; none where they would make fewer than two pieces, or where a stretch is no number."""
    known_T = value_T[np.isfinite(value_T)]
    if most < 2 or not len(known_T):
        return ()
    knots = np.unique(np.quantile(known_T, np.linspace(0, 1, most + 1), method="nearest"))
    with np.errstate(over="ignore"):
        stretches = np.diff(knots)
    return tuple(knots.tolist()) if len(knots) > 2 and np.isfinite(stretches).all() else ()
