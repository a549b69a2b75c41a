"""The second pass over a table: the schema, with figures from the training rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gradproof.data.cells import PARTS, category_of, numbers_of
from gradproof.data.figures import SLOTS, Counts, Moments
from gradproof.data.number_format import NumberFormat
from gradproof.data.reading import BOOLEAN, NAMES, PLAIN, ColumnReading
from gradproof.data.roles import Roles
from gradproof.data.schema import Category, Metric, Number, Quantity, Schema
from gradproof.data.table import changed
from gradproof.data.target import has_target

if TYPE_CHECKING:
    import polars as pl

IGNORED = "ignored, as requested"


class Summary:
    """The second pass: the schema's figures, from the training rows."""

    def __init__(
        self,
        roles: Roles,
        readings: Mapping[str, ColumnReading],
        train_R: np.ndarray,
        slots: int = SLOTS,
        number: ColumnReading | None = None,
    ):
        """`number` is how a target that is a number is read."""
        self.roles, self.readings, self.train_R, self.slots, self.number = roles, readings, train_R, slots, number
        self._row, self._outcome = 0, 0  # where the next chunk begins, in the file and in train_R
        named = [name for name in roles.features if readings[name] in (NAMES, BOOLEAN)]
        self.names = {name: Counts() for name in named}
        parts = [(name, part) for name in roles.features if name not in self.names for part in self._parts(name)]
        parts += [(name, "") for name in roles.metrics]
        parts += [(roles.target, "")] if number else []
        self._numbers = {column: i for i, column in enumerate(parts)}
        read_as = {**readings, **({roles.target: number} if number else {})}
        self._cells = [(name, read_as.get(name, PLAIN), part) for name, part in parts]
        self._moments = Moments(len(parts))

    def _parts(self, name: str) -> tuple[str, ...]:
        """A date has parts; a time of day or a duration, which only Parquet knows, has none."""
        import polars as pl

        dated = self.readings[name].kind == "date" and self.roles.table.dtypes[name] not in (pl.Time, pl.Duration)
        return ("", *PARTS) if dated else ("",)

    def add(self, frame: pl.DataFrame) -> None:
        """The next chunk of the file."""
        import polars as pl

        train_R = has_target(frame, self.roles.target, self.number).to_numpy(writable=True)
        known = int(train_R.sum())
        if self._outcome + known > len(self.train_R):
            raise changed(self.roles.table.path)
        train_R[train_R] = self.train_R[self._outcome : self._outcome + known]
        row_R = self._row + np.flatnonzero(train_R)
        self._row, self._outcome = self._row + frame.height, self._outcome + known
        frame = frame.filter(pl.Series(train_R))
        self._moments.add(numbers_of(frame, self._cells), row_R)
        boolean = {name: self.readings[name] == BOOLEAN for name in self.names}
        names = frame.select(category_of(name, frame.schema[name], boolean[name]) for name in self.names)
        for name, counts in self.names.items():
            counts.add(names[name])

    def schema(self, classes: tuple[str, ...], odd: Mapping[str, str], edges: tuple[float, ...] = ()) -> Schema:
        """The schema, of every column that tells something; `odd` has better reasons to leave some out. The `edges`
        are those between the strata of a target that is a number."""
        columns: list[Category | Number] = []
        left_out = dict.fromkeys(sorted(self.roles.ignore), IGNORED)
        for name in self.roles.candidates:
            column = self._column(name)
            if isinstance(column, str):
                left_out[name] = odd.get(name, column)
            else:
                columns += [column, *self._date_parts(name)]
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
            self._quantity(edges) if self.number else None,
        )

    def _column(self, name: str) -> Category | Number | str:
        """The column, or why it is left out."""
        if name in self.names:
            return self.names[name].category(name, self.readings[name] == BOOLEAN, self.slots)
        if (name, "") in self._numbers:
            return self._moments.number(self._numbers[name, ""], name, self.readings[name])
        return f"holds {self.roles.table.dtypes[name]}, no plain values"

    def _date_parts(self, name: str) -> list[Number]:
        indices = {part: self._numbers.get((name, part)) for part in PARTS}
        parts = [self._moments.part(i, name, self.readings[name], part) for part, i in indices.items() if i is not None]
        return [part for part in parts if part is not None]

    def _quantity(self, edges: tuple[float, ...]) -> Quantity:
        i, form = self._numbers[self.roles.target, ""], self.number.format if self.number else None
        mean, std = float(self._moments.mean_N[i]), float(self._moments.std_N[i]) or 1.0
        return Quantity(mean, std, edges, form if isinstance(form, NumberFormat) else None)

    def _metric(self, name: str) -> Metric:
        low, high = self._moments.extremes(self._numbers[name, ""])
        if low >= 0 and high <= 1:
            return Metric(name)
        if not math.isfinite(high - low):
            held = f"metric column {name!r} of {self.roles.table.path} reaches from {low:g} to {high:g}"
            raise ValueError(f"{held}, further than a number can tell; scale it down")
        # A constant is 0 on a scale of one; of a huge one, the next float is further away than that.
        return Metric(name, low, high if high > low else low + max(1.0, abs(low) * 2.0**-52))
