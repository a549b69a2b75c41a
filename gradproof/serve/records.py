"""Records: converts decoded JSON objects to rows. Text is read as in a file; any other value that a column does not
take is refused by name, never guessed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import numpy as np

from gradproof.data.date_format import DateFormat
from gradproof.data.number_format import NumberFormat
from gradproof.data.reading import ColumnReading, truth
from gradproof.data.rows import Rows
from gradproof.data.schema import Schema, is_decimal, name_of
from gradproof.data.table import plain

SHOWN = 40  # characters of a bad value that a sentence repeats
NUMERIC = {int, float, type(None)}
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
INFINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.ASCII | re.IGNORECASE)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BadRecord(ValueError):
    """One sentence: the record's number, the column, what was expected and what came."""


def rows_of(records: list, schema: Schema) -> Rows:
    """One row a record. BadRecord on the first that does not fit the schema."""
    return RecordReader(schema)(records)


class RecordReader:
    """`rows_of` for many calls: holds the slots and names of one schema.

    A record gives a value or null for every input column. Names may come as text, true/false or a number, numbers as
    finite numbers or text, dates as text; text is read as in a file. The target, the metrics and the columns that
    training left out may be there and are ignored."""

    def __init__(self, schema: Schema):
        self.schema = schema
        self.slots = [category.slots() for category in schema.categories]
        self.unseen = [category.unseen for category in schema.categories]
        self.categories = [category.name for category in schema.categories]
        self.booleans = [category.boolean for category in schema.categories]
        own = [number for number in schema.numbers if not number.part]
        self.numbers = [number.name for number in own]
        self.readings = [number.reading for number in own]
        self.parts = [(self.numbers.index(number.name), number.part) for number in schema.numbers]
        self.dated = any(number.date for number in own)
        self.features = {*self.categories, *self.numbers}
        self.known = self.features | {schema.target, *schema.left_out, *(metric.name for metric in schema.metrics)}
        self._names = _getter(self.categories)
        self._values = _getter(self.numbers)

    def __call__(self, records: list) -> Rows:
        return self.read(records)[0]

    def read(self, records: list) -> tuple[Rows, dict[int, list[str]]]:
        """The rows, and by record the columns whose text does not fit their reading: it counts as missing."""
        R, M = len(records), self.schema.measured
        codes_RC = np.empty((R, len(self.categories)), np.int32)
        numbers_RN = np.empty((R, len(self.parts)), np.float64)
        unread: dict[int, list[str]] = {}
        for i, record in enumerate(records):
            if not isinstance(record, dict):
                raise BadRecord(f"record {i + 1} must be an object of column: value, not {_shown(record)}")
            if record.keys() != self.features:
                self._check_columns(i, record)
            misfits: list[str] = []
            codes_RC[i] = self._codes(i, record, misfits)
            numbers_RN[i] = self._floats(i, record, misfits)
            if misfits:
                unread[i] = misfits
        return Rows(codes_RC, numbers_RN, np.full(R, -1), np.full((R, M), np.nan, np.float32)), unread

    def _check_columns(self, i: int, record: Mapping[str, Any]) -> None:
        if absent := [name for name in (*self.categories, *self.numbers) if name not in record]:
            raise BadRecord(f"record {i + 1} lacks {_listed(absent)}; use null for a missing value")
        if strange := [name for name in record if name not in self.known]:
            raise BadRecord(f"record {i + 1} has {_listed(strange)}, which the model does not know; omit it")

    def _codes(self, i: int, record: Mapping[str, Any], misfits: list[str]) -> list[int]:
        codes = []
        for value, slots, unseen, boolean in zip(
            self._names(record), self.slots, self.unseen, self.booleans, strict=True
        ):
            if value is not None and type(value) is not str:
                value = _text(i, self.categories[len(codes)], value)
            if value is not None and value not in slots:  # most are known as they are
                value = plain(value)
                if boolean and value is not None and (value := truth(value)) is None:
                    misfits.append(self.categories[len(codes)])
            if value is None:
                codes.append(slots.get(None, -1))
            else:
                codes.append(slots[value] if value in slots else slots.get(name_of(value), unseen))
        return codes

    def _floats(self, i: int, record: Mapping[str, Any], misfits: list[str]) -> np.ndarray:
        values = self._values(record)
        if not self.dated and set(map(type, values)) <= NUMERIC:
            try:
                v_N = np.array(values, np.float64)  # None becomes NaN
            except OverflowError:
                v_N = np.full(len(values), np.nan)
            if np.isfinite(v_N).all():
                return v_N
        # Something is text, a date, missing or wrong: look at each.
        cells = [_cell(i, *cell, misfits) for cell in zip(self.numbers, values, self.readings, strict=True)]
        return np.array([_part(cells[n], part) for n, part in self.parts], np.float64)


def _getter(names: list[str]) -> Callable[[Mapping[str, Any]], tuple]:
    """The values of `names` as a tuple, for any number of names."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda record: tuple(record[name] for name in names)


def _text(i: int, column: str, value: Any) -> str:
    """How a value that is not text is written in a table: true, 3, 2.5."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
    except ValueError:  # more digits than Python writes
        pass
    raise BadRecord(
        f"record {i + 1}: {_quoted(column)} must be text, a number, true, false or null, not {_shown(value)}"
    )


def _cell(i: int, column: str, value: Any, reading: ColumnReading, misfits: list[str]) -> float | datetime:
    """A number, or the moment of a date; NaN where it is missing or where text does not fit."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        if (text := plain(value)) is None:
            return math.nan
        cell = _moment(text, reading) if reading.kind == "date" else _number(text, reading)
        if cell is None:
            misfits.append(column)
        return math.nan if cell is None else cell
    if reading.kind == "date":
        raise BadRecord(f"record {i + 1}: {_quoted(column)} must be {reading.expected} or null, not {_shown(value)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if math.isfinite(number := float(value)):
                return number
        except OverflowError:
            pass
        raise BadRecord(f"record {i + 1}: {_quoted(column)} must be a finite number or null, not {_shown(value)}")
    raise BadRecord(f"record {i + 1}: {_quoted(column)} must be a number or null, not {_shown(value)}")


def _number(text: str, reading: ColumnReading) -> float | None:
    """None where the text is not a number; an infinite one is missing, as in a file."""
    if isinstance(reading.format, NumberFormat):
        number = reading.format.value(text)
    else:
        number = float(text) if is_decimal(text) else math.nan if INFINITE.fullmatch(text) else None
    return math.nan if number is not None and math.isinf(number) else number


def _moment(text: str, reading: ColumnReading) -> datetime | None:
    """A time without a zone is UTC."""
    if isinstance(reading.format, DateFormat):
        return reading.format.value(text)
    try:
        time = datetime.fromisoformat(text) if ISO_DATE.fullmatch(text) else None
    except ValueError:  # the 30th of February
        return None
    return time and (time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC))


def _part(cell: float | datetime, part: str) -> float:
    """A number itself; of a date the days since 1970, or its part."""
    if not isinstance(cell, datetime):
        return cell
    if part == "time":
        return (cell - cell.replace(hour=0, minute=0, second=0, microsecond=0)) / timedelta(hours=1)
    if part:
        return float({"year": cell.year, "month": cell.month, "weekday": cell.isoweekday()}[part])
    return (cell - EPOCH) / timedelta(days=1)


def _shown(value: Any) -> str:
    """What came, in a few characters: JSON's own words, and never a long value whole."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the text {_quoted(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer beyond the largest float" if value.bit_length() > 1024 else "a very large integer"
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value)[:SHOWN])


def _quoted(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def _listed(names: list[str]) -> str:
    few = ", ".join(_quoted(name) for name in names[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")
