"""The second pass over a table: the schema, with figures from the training rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gradproof.data.cells import numbers_of, text_of
from gradproof.data.figures import Counts, Moments
from gradproof.data.roles import Roles
from gradproof.data.schema import Category, Metric, Number, Schema
from gradproof.data.survey import ColumnKind
from gradproof.data.table import changed

if TYPE_CHECKING:
    import polars as pl

IGNORED = "is ignored, as asked"


class Summary:
    """The second pass: the schema's figures, from the training rows."""

    def __init__(self, roles: Roles, kinds: dict[str, ColumnKind], train_R: np.ndarray):
        self.roles, self.kinds, self.train_R = roles, kinds, train_R
        self._row, self._outcome = 0, 0  # where the next chunk begins, in the file and in train_R
        self._names = {name: Counts() for name in roles.features if kinds[name] == "name"}
        numbers = [name for name in roles.features if kinds[name] != "name"]
        self._numbers = {name: i for i, name in enumerate([*numbers, *roles.metrics])}
        self._moments = Moments(len(self._numbers))

    def add(self, frame: pl.DataFrame) -> None:
        """The next chunk of the file."""
        import polars as pl

        text = frame.select(text_of(self.roles.target, frame.schema[self.roles.target])).to_series()
        train_R = text.is_not_null().to_numpy(writable=True)
        known = int(train_R.sum())
        if self._outcome + known > len(self.train_R):
            raise changed(self.roles.table.path)
        train_R[train_R] = self.train_R[self._outcome : self._outcome + known]
        row_R = self._row + np.flatnonzero(train_R)
        self._row, self._outcome = self._row + frame.height, self._outcome + known
        frame = frame.filter(pl.Series(train_R))
        dates = {name: self.kinds.get(name) == "date" for name in self._numbers}
        self._moments.add(numbers_of(frame, dates), row_R)
        names = frame.select(text_of(name, frame.schema[name]) for name in self._names)
        for name, counts in self._names.items():
            counts.add(names[name])

    def schema(self, classes: tuple[str, ...], odd: Mapping[str, str]) -> Schema:
        """The schema, of every column that tells something; `odd` has better reasons to leave some out."""
        columns: list[Category | Number] = []
        left_out = dict.fromkeys(sorted(self.roles.ignore), IGNORED)
        for name in self.roles.candidates:
            column = self._column(name)
            if isinstance(column, str):
                left_out[name] = odd.get(name, column)
            else:
                columns.append(column)
        if not columns:
            reasons = ", ".join(f"{name!r} {reason}" for name, reason in left_out.items())
            raise ValueError(f"no column of {self.roles.table.path} is left to learn from: {reasons}")
        return Schema(
            self.roles.target,
            classes,
            tuple(column for column in columns if isinstance(column, Category)),
            tuple(column for column in columns if isinstance(column, Number)),
            tuple(self._metric(name) for name in self.roles.metrics),
            left_out,
        )

    def _column(self, name: str) -> Category | Number | str:
        """The column, or why it is left out."""
        if name in self._names:
            return self._names[name].category(name)
        if name in self._numbers:
            return self._moments.number(self._numbers[name], name, self.kinds[name] == "date")
        return f"holds {self.roles.table.dtypes[name]}, no plain values"

    def _metric(self, name: str) -> Metric:
        low, high = self._moments.extremes(self._numbers[name])
        if low >= 0 and high <= 1:
            return Metric(name)
        if not math.isfinite(high - low):
            held = f"metric column {name!r} of {self.roles.table.path} reaches from {low:g} to {high:g}"
            raise ValueError(f"{held}, further than a number can tell; scale it down")
        # A constant is 0 on a scale of one; of a huge one, the next float is further away than that.
        return Metric(name, low, high if high > low else low + max(1.0, abs(low) * 2.0**-52))
