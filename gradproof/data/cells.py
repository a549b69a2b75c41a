"""Converts the cells of a clean column to categories or numbers, including dates and missing values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradproof.data.date_format import DateFormat
from gradproof.data.number_format import NumberFormat
from gradproof.data.reading import FALSE, TRUE, ColumnReading

if TYPE_CHECKING:
    import polars as pl

PARTS = ("year", "month", "weekday", "time")  # of a date, inputs of their own beside the days since 1970
_UNITS = {"": 86_400e6, "time": 3600e6}  # microseconds of a day and of an hour
_SHOWN = 40  # characters of a value that a sentence repeats


def text_of(name: str, dtype: pl.DataType) -> pl.Expr:
    """A clean column as names; null where missing."""
    import polars as pl

    if dtype.is_float():
        return pl.col(name).fill_nan(None).cast(pl.String)
    return _nothing(name, pl.String) if unreadable(dtype) else pl.col(name).cast(pl.String)


def truth_of(name: str, dtype: pl.DataType) -> pl.Expr:
    """A clean column as true and false, null where missing or where it says neither."""
    import polars as pl

    if dtype == pl.Boolean:
        return pl.col(name).cast(pl.String)
    if dtype != pl.String:
        return _nothing(name, pl.String)
    word = pl.col(name).str.to_lowercase()
    yes = pl.when(word.is_in(TRUE)).then(pl.lit("true"))
    return yes.when(word.is_in(FALSE)).then(pl.lit("false")).alias(name)


def category_of(name: str, dtype: pl.DataType, boolean: bool) -> pl.Expr:
    """What a category's slots are looked up by."""
    return truth_of(name, dtype) if boolean else text_of(name, dtype)


def number_of(name: str, dtype: pl.DataType | None, reading: ColumnReading) -> pl.Expr:
    """`value_of`, null where it is not finite."""
    import polars as pl

    value = value_of(name, dtype, reading)
    return pl.when(value.is_finite()).then(value).alias(name)


def numbers_of(frame: pl.DataFrame, columns: Sequence[tuple[str, ColumnReading, str]]) -> np.ndarray:
    """number_RN of the columns, each with its reading and its part; NaN where missing or not there. A date is in days,
    its time in hours."""
    if not columns:
        return np.empty((frame.height, 0))
    # A date is read once, whatever its parts.
    read = {name: number_of(name, frame.schema.get(name), reading) for name, reading, _ in columns}
    frame = frame.select(read.values())
    values = [_part(name, part).alias(str(i)) for i, (name, _, part) in enumerate(columns)]
    # Not divided by polars: its quotients differ in the last bit with the length of a chunk.
    number_RN = np.array(frame.select(values).to_numpy(), np.float64, order="C")
    number_RN /= [_UNITS.get(part, 1.0) if reading.kind == "date" else 1.0 for _, reading, part in columns]
    return number_RN


def value_of(name: str, dtype: pl.DataType | None, reading: ColumnReading) -> pl.Expr:
    """A clean column as float64, null where missing, or where it holds something else; dates in microseconds."""
    import polars as pl

    column, form = pl.col(name), reading.format
    if reading.kind == "date":
        if dtype == pl.String:
            moment = form.expression(column) if isinstance(form, DateFormat) else iso(column)
            return moment.dt.timestamp("us").cast(pl.Float64)
        if dtype is not None and dtype.is_temporal():
            return _microseconds(column, dtype).cast(pl.Float64)
    elif dtype == pl.String:
        return form.expression(column) if isinstance(form, NumberFormat) else _float(column)
    elif dtype is not None and dtype.is_numeric():
        return column.cast(pl.Float64)
    return _nothing(name, pl.Float64)


def _part(name: str, part: str) -> pl.Expr:
    """A part of a date that is in microseconds since 1970, by UTC."""
    import polars as pl

    if not part:
        return pl.col(name)
    field = pl.col(name).cast(pl.Int64).cast(pl.Datetime("us")).dt
    if part == "time":
        return (field.time().cast(pl.Int64) // 1000).cast(pl.Float64)
    return {"year": field.year, "month": field.month, "weekday": field.weekday}[part]().cast(pl.Float64)


def _nothing(name: str, dtype: type[pl.DataType]) -> pl.Expr:
    import polars as pl

    return pl.repeat(None, pl.len(), dtype=dtype).alias(name)


def unreadable(dtype: pl.DataType) -> bool:
    import polars as pl

    return dtype.is_nested() or dtype in (pl.Binary, pl.Object)


def _microseconds(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Since 1970, or of a time, since midnight."""
    import polars as pl

    if dtype == pl.Duration:
        return column.dt.total_microseconds()
    return column.cast(pl.Int64) // 1000 if dtype == pl.Time else column.dt.timestamp("us")


def _float(column: pl.Expr) -> pl.Expr:
    """Text as numbers, null where it is none."""
    import polars as pl

    return column.cast(pl.Float64, strict=False)


def iso(column: pl.Expr) -> pl.Expr:
    """ISO 8601 dates and times, null where the text is none. A time without a zone is UTC."""
    day = r"^(\d{4}-\d\d-\d\d)"
    text = column.str.replace(day + "$", "${1} 00:00")
    text = text.str.replace(day + r"[T ](\d\d:\d\d)(Z|[+-]|$)", "${1} ${2}:00${3}")
    text = text.str.replace(day + r"[T ](\S*?)(Z|$)", "${1} ${2}+00:00")
    text = text.str.replace(r"([+-]\d\d:?\d\d)\+00:00$", "${1}")
    return text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", strict=False, time_unit="us")


def shown(value: object) -> str:
    """A cell, in a few characters."""
    text = str(value)
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
