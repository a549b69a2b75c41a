"""Pieces: the piecewise linear encoding of a number.

    piece_j(v) = clamp((v − k_j)/(k_{j+1} − k_j), 0, 1),  knots k at quantiles of the training rows

Beside the standardised number, this lets a network bend at any of the knots: for thresholds, which trees find so
easily, and for skewed columns, whose bulk standardising squeezes together.

    place(v) = the normal score of v's rank among the training rows, linear between knots

The place of a value can stand for the standardised number: no outlier moves it, and it is a sum of pieces. The inputs
beside it are then smaller (`BESIDE`): a network that hears a piece as loudly as the place learns single stretches by
heart before it has learned the trend.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Schema

MOST = 48
ROWS_PER_PIECE = 50
ALTOGETHER = 1024  # pieces of all numbers: a wide table must not become a far wider one
SAMPLE = 50_000  # training rows, evenly spaced, that the quantiles are taken from
BESIDE = 0.2  # of the pieces, flag and levels of a number with places
OUTERMOST = 1e-3  # rank; its normal score is 3.1


def with_knots(schema: Schema, rows: Rows, train_R: np.ndarray, most: int = MOST, places: bool = False) -> Schema:
    """The schema, each of its numbers with knots: a piece for every fifty training rows, `most` at most, and about a
    thousand in all. With `places`, each knot has its place."""
    (index_T,) = np.nonzero(train_R)
    index_T = index_T[:: -(-len(index_T) // SAMPLE)]
    most = min(most, int(train_R.sum()) // ROWS_PER_PIECE, ALTOGETHER // max(1, len(schema.numbers)))
    value_TN = rows.numbers_RN[index_T]
    numbers = []
    for number, value_T in zip(schema.numbers, value_TN.T, strict=True):
        knots = _knots(value_T, most)
        numbers.append(replace(number, knots=knots, places=_places(value_T, knots) if places else ()))
    return replace(schema, numbers=tuple(numbers))


def _knots(value_T: np.ndarray, most: int) -> tuple[float, ...]:
    """Distinct quantiles; none where they would make fewer than two pieces, or where a stretch is not a number."""
    known_T = value_T[np.isfinite(value_T)]
    if most < 2 or not len(known_T):
        return ()
    knots = np.unique(np.quantile(known_T, np.linspace(0, 1, most + 1), method="nearest"))
    with np.errstate(over="ignore"):
        stretches = np.diff(knots)
    return tuple(knots.tolist()) if len(knots) > 2 and np.isfinite(stretches).all() else ()


def _places(value_T: np.ndarray, knots: tuple[float, ...]) -> tuple[float, ...]:
    """The normal score of each knot's rank, the middle one where many rows have the same value."""
    sorted_T = np.sort(value_T[np.isfinite(value_T)])
    before, upto = (np.searchsorted(sorted_T, knots, side) for side in ("left", "right"))
    rank = np.clip((before + upto + 1) / (2 * len(sorted_T) + 2), OUTERMOST, 1 - OUTERMOST)
    return tuple(NormalDist().inv_cdf(r) for r in rank.tolist())
