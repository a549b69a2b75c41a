"""Statistics of columns, gathered chunk by chunk: the counts of categories, and the moments of numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gradproof.data.reading import ColumnReading
from gradproof.data.schema import Category, Number, name_of

if TYPE_CHECKING:
    import polars as pl

SLOTS = 64  # names of a column that are told apart
_TRACKED = 50_000  # names of a column that are counted, so that a column of ids does not fill the memory
_JUDGED = 50  # rows before a column is said to be unique or to count


class Counts:
    """How often each name of a column is seen."""

    def __init__(self):
        self.seen: Counter[str] = Counter()
        self.present = self.missing = 0
        self.unique = False

    def add(self, text: pl.Series) -> None:
        self.missing += text.null_count()
        self.present += text.count()
        if self.unique:
            return
        for value, count in text.drop_nulls().rename("value").value_counts().iter_rows():
            self.seen[name_of(value)] += count
        if len(self.seen) > 2 * _TRACKED:
            # So many names: what matters is whether they come again, and the frequent ones.
            self.unique = len(self.seen) > 0.95 * self.present
            self.seen = Counter({} if self.unique else dict(self._frequent(_TRACKED)))

    def _frequent(self, count: int) -> list[tuple[str, int]]:
        return sorted(self.seen.items(), key=lambda item: (-item[1], item[0]))[:count]

    def category(self, name: str, boolean: bool = False, slots: int = SLOTS) -> Category | str:
        """The column, the `slots` most frequent of its names told apart, or why it is left out."""
        if not self.present:
            return "has no value in the training rows"
        if self.unique or (self.present >= _JUDGED and len(self.seen) > 0.95 * self.present):
            return "has a different value in nearly every row, like an id or free text"
        if len(self.seen) == 1 and not self.missing:
            return "has the same value in all training rows"
        least = max(2, (self.present + self.missing) // 10_000)
        known = [value for value, count in self._frequent(slots) if count >= least]
        category = Category(name, tuple(sorted(known)), len(known) < len(self.seen), self.missing > 0, boolean)
        return category if category.width > 1 else "has no value that is seen more than once"


class Moments:
    """Count, mean, standard deviation and extremes of N columns, merged chunk by chunk (Chan, Golub, LeVeque)."""

    def __init__(self, N: int):
        self.count_N, self.missing_N = np.zeros(N, np.int64), np.zeros(N, np.int64)
        self.mean_N, self.std_N = np.zeros(N), np.zeros(N)
        self.low_N, self.high_N = np.full(N, np.inf), np.full(N, -np.inf)
        # of value − row: a column where they are equal counts the rows
        self.least_N, self.most_N = np.full(N, np.inf), np.full(N, -np.inf)

    def add(self, value_RN: np.ndarray, row_R: np.ndarray) -> None:
        """Rows of the training set, NaN where missing."""
        present_RN = ~np.isnan(value_RN)
        n_N = present_RN.sum(0)
        value_RN, ahead_RN = np.where(present_RN, value_RN, 0.0), value_RN - row_R[:, None]
        low_N = np.min(value_RN, 0, initial=np.inf, where=present_RN)
        high_N = np.max(value_RN, 0, initial=-np.inf, where=present_RN)
        # Scaled by a power of two, which rounds nothing, so that no sum or square overflows.
        _, exponent_N = np.frexp(np.where(n_N > 0, np.maximum(np.abs(low_N), np.abs(high_N)), 1.0))
        scaled_RN = np.ldexp(value_RN, -exponent_N)
        mean_N = scaled_RN.sum(0) / np.maximum(n_N, 1)
        off_RN = np.where(present_RN, scaled_RN - mean_N, 0.0)
        std_N = np.sqrt((off_RN * off_RN).sum(0) / np.maximum(n_N, 1))
        self._merge(n_N, np.ldexp(mean_N, exponent_N), np.ldexp(std_N, exponent_N))
        self.missing_N += len(value_RN) - n_N
        self.low_N, self.high_N = np.minimum(self.low_N, low_N), np.maximum(self.high_N, high_N)
        self.least_N = np.minimum(self.least_N, np.min(ahead_RN, 0, initial=np.inf, where=present_RN))
        self.most_N = np.maximum(self.most_N, np.max(ahead_RN, 0, initial=-np.inf, where=present_RN))

    def _merge(self, n_N: np.ndarray, mean_N: np.ndarray, std_N: np.ndarray) -> None:
        self.count_N += n_N
        share_N = n_N / np.maximum(self.count_N, 1)
        # Half the distance of the means: the whole one may overflow.
        half_N = mean_N / 2 - self.mean_N / 2
        within_N = np.hypot(np.sqrt(1 - share_N) * self.std_N, np.sqrt(share_N) * std_N)
        self.std_N = np.hypot(within_N, half_N * (2 * np.sqrt(share_N * (1 - share_N))))
        self.mean_N = 2 * (self.mean_N / 2 + half_N * share_N)

    def extremes(self, i: int) -> tuple[float, float]:
        return float(self.low_N[i]), float(self.high_N[i])

    def number(self, i: int, name: str, reading: ColumnReading) -> Number | str:
        """Column i, or why it is left out."""
        missing, date = bool(self.missing_N[i]), reading.kind == "date"
        if not self.count_N[i]:
            return "has no value in the training rows"
        if self.low_N[i] == self.high_N[i]:
            value = float(self.low_N[i])
            constant = Number(name, value, 1.0, missing, date, format=reading.format)
            return constant if missing else "has the same value in all training rows"
        if not date and not missing and self.count_N[i] >= _JUDGED and self.least_N[i] == self.most_N[i]:
            return "counts the rows"
        std = float(self.std_N[i]) or 1.0
        return Number(name, float(self.mean_N[i]), std, missing, date, format=reading.format)

    def part(self, i: int, name: str, reading: ColumnReading, part: str) -> Number | None:
        """Column i, a part of a date, unless it is the same in all rows. A missing date has one flag, its own."""
        if not self.low_N[i] < self.high_N[i]:
            return None
        mean, std = float(self.mean_N[i]), float(self.std_N[i]) or 1.0
        return Number(name, mean, std, date=True, format=reading.format, part=part)
