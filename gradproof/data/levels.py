"""Levels: one input per value, for numbers with few distinct values.

    level_j(v) = 1 where v is the j-th value, else 0

A code, a distance between two of a hundred airports, a price from a list: such numbers are more like names, and a
value may say more than its size. Pieces tell values apart only where a knot lies between them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Number, Schema

FEW = 48  # values that pieces serve as well
LEAST = 8  # training rows of a value that gets an input
ROWS_PER_LEVEL = 20  # on average; with fewer, values are no levels but numbers that happen to come again
ALTOGETHER = 1024


def with_levels(schema: Schema, rows: Rows, train_R: np.ndarray, most: int) -> Schema:
    """The schema, its numbers with levels where a column has at most `most` values, and more than its pieces tell
    apart."""
    if not most:
        return schema
    numbers, left = list[Number](), ALTOGETHER
    for n, number in enumerate(schema.numbers):
        levels = _levels(np.asarray(rows.numbers_RN[:, n])[train_R], min(most, left), number.pieces)
        numbers.append(replace(number, levels=levels))
        left -= len(levels)
    return replace(schema, numbers=tuple(numbers))


def _levels(value_R: np.ndarray, most: int, pieces: int) -> tuple[float, ...]:
    value_V, count_V = np.unique(value_R[np.isfinite(value_R)], return_counts=True)
    # Pieces between all values say the same as an input for each.
    if not max(FEW, pieces + 1) < len(value_V) <= most or ROWS_PER_LEVEL * len(value_V) > count_V.sum():
        return ()
    return tuple(value_V[count_V >= LEAST].tolist())
