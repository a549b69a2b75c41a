"""The cells of a clean column, as names or as numbers: what text, dates and nothing at all are read as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

_DAY = 86_400e6  # microseconds
_SHOWN = 40  # characters of a value that a sentence repeats


def text_of(name: str, dtype: pl.DataType) -> pl.Expr:
    """A clean column as names; null where missing."""
    import polars as pl

    if dtype.is_float():
        return pl.col(name).fill_nan(None).cast(pl.String)
    return _nothing(name, pl.String) if unreadable(dtype) else pl.col(name).cast(pl.String)


def number_of(name: str, dtype: pl.DataType | None, date: bool) -> pl.Expr:
    """`_value`, null where it is not finite."""
    import polars as pl

    value = value_of(name, dtype, date)
    return pl.when(value.is_finite()).then(value).alias(name)


def numbers_of(frame: pl.DataFrame, dates: Mapping[str, bool]) -> np.ndarray:
    """number_RN of the named columns, NaN where missing or not there; a date, where `dates` says so, in days."""
    columns = [number_of(name, frame.schema.get(name), date) for name, date in dates.items()]
    if not columns:
        return np.empty((frame.height, 0))
    # Not divided by polars: its quotients differ in the last bit with the length of a chunk.
    number_RN = np.array(frame.select(columns).to_numpy(), np.float64, order="C")
    number_RN /= np.where(list(dates.values()), _DAY, 1.0)
    return number_RN


def value_of(name: str, dtype: pl.DataType | None, date: bool) -> pl.Expr:
    """A clean column as float64, null where missing, or where it holds something else; dates in microseconds."""
    import polars as pl

    column = pl.col(name)
    if dtype == pl.String:
        return iso(column).dt.timestamp("us").cast(pl.Float64) if date else _float(column)
    if dtype is not None and date and dtype.is_temporal():
        return _microseconds(column, dtype).cast(pl.Float64)
    if dtype is not None and not date and dtype.is_numeric():
        return column.cast(pl.Float64)
    return _nothing(name, pl.Float64)


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
