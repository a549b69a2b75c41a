"""Decimals: the number of decimal places in a column, which makes its numbers integers of a fixed unit.

A column has d decimals where every training value is the float nearest to an integer over 10^d, for the smallest such
d up to nine; 12, 0.5 and 3.25 have two. Measurements that use all digits of a float have none: p-adic distances between
them would mean nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Number, Schema
from gradproof.ops.padic import digits

MOST = 9
CHUNK = 65_536
EXACT = 2.0**53  # up to here a float holds every integer


def with_padic(schema: Schema, rows: Rows, train_R: np.ndarray) -> tuple[Schema, list[str]]:
    """The schema with p-adic columns for each number whose training values are integers of a fixed unit: a second one
    where some have more digits than the first holds. And a sentence for each number that has none."""
    (index_T,) = np.nonzero(train_R)
    decimals_N, largest_N = [0] * len(schema.numbers), np.zeros(len(schema.numbers))
    for start in range(0, len(index_T), CHUNK):
        value_TN = rows.numbers_RN[index_T[start : start + CHUNK]]
        value_TN = np.where(np.isfinite(value_TN), value_TN, 0.0)
        largest_N = np.maximum(largest_N, np.abs(value_TN).max(0, initial=0.0))
        decimals_N = [_decimals(value_TN[:, n], d) for n, d in enumerate(decimals_N)]
    numbers = tuple(
        _encoded(number, d, float(largest))
        for number, d, largest in zip(schema.numbers, decimals_N, largest_N, strict=True)
    )
    notes = [
        f"column {number.name!r} has no p-adic encoding: its numbers are no integers of a fixed unit"
        for number in numbers
        if not number.padic
    ]
    return replace(schema, numbers=numbers), notes


def _decimals(value_T: np.ndarray, least: int) -> int:
    """The smallest d from `least` on that represents the values; more than `MOST` where none does."""
    for d in range(least, MOST + 1):
        scaled_T = np.rint(value_T * 10.0**d)
        if (scaled_T / 10.0**d == value_T).all():
            return d
    return MOST + 1


def _encoded(number: Number, decimals: int, largest: float) -> Number:
    largest *= 10.0**decimals
    if decimals > MOST or largest >= (EXACT if decimals else 2.0**63):
        return number
    return replace(number, padic=1 if largest < 2 ** digits(2) else 2, decimals=decimals)
