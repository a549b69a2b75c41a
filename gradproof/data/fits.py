"""Fits: which formats the texts of a column match, counted chunk by chunk and decided for the whole column.

Each text belongs to the set of readings that it fits. Numbers that a cast reads are told apart by a few cheap
questions, any other text by its shape, in which every digit is a 9: a column has few shapes, and Python sees only them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gradproof.data.cells import iso
from gradproof.data.date_format import FORMATS as DATE_FORMATS
from gradproof.data.date_format import DateFormat, date_formats_of
from gradproof.data.number_format import ANY_CURRENCY, CURRENCY, MARKS, MINUS, SPACE, NumberFormat, formats_of
from gradproof.data.reading import BOOLEAN, FALSE, ISO, NAMES, PLAIN, TRUE, ColumnReading

if TYPE_CHECKING:
    import polars as pl

SHARE = 0.99  # of the present values must fit: one typing error in a hundred must not make names of numbers
LONGEST = 64  # bytes of a number or date: free text is not looked at any further

# What may be a number or a date; all else is neither, and need not be shaped.
_LIKELY = (
    rf"^[(+{MINUS}]?{CURRENCY}?{SPACE}?[(+{MINUS}]?[0-9.,]"
    rf"[0-9.,'\u2019/:TZ+{MINUS} \u00a0\u2009\u202f]*(?:[AaPp][Mm])?{SPACE}?(?:{CURRENCY}|%)?\)?$"
)
_DATE_SHAPE = re.compile(r"[0-9]{1,4}[/.-][0-9]{1,2}[/.-][0-9]{1,4}([ T].*)?")
_ISO_SHAPE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?")
# Numbers that a cast reads, by how they are written; and a text for each kind, which fits what they all fit. A code,
# with a leading zero, is no sign of a number.
_EXPONENT, _INTEGER, _THREE, _DECIMAL, _CODE = range(5)
_EXAMPLES = ("9e9", "9", "9.999", "9.9")
_THREE_BEHIND_A_POINT = r"^[+-]?[1-9][0-9]{0,2}\.[0-9]{3}$"

_Readings = frozenset[ColumnReading]
_NONE: _Readings = frozenset()


@dataclass
class _Seen:
    """Texts that fit the same readings: how many, and the first of them."""

    count: int
    row: int
    text: str


@dataclass(frozen=True)
class Fit:
    """What a column is read as; how many values fit, the first that does not; `assumed` says what no value decides."""

    reading: ColumnReading
    fits: int
    row: int = 0
    held: str = ""
    assumed: str = ""


class Fits:
    """The texts of one column, clean."""

    def __init__(self):
        self.present = self.cast = 0
        self._seen: dict[_Readings, _Seen] = {}
        self._codes: _Seen | None = None  # numbers with a leading zero
        self._digits: set[int] = set()  # how many digits the formatted numbers have
        self._marked = False  # whether one of them has a decimal mark
        self._words: set[str] = set()

    def add(self, text: pl.Series, row_R: np.ndarray) -> None:
        """The next chunk; null where missing."""
        import polars as pl

        frame = pl.DataFrame({"text": text, "row": pl.Series(row_R, dtype=pl.Int64)}).filter(
            pl.col("text").is_not_null()
        )
        if not frame.height:
            return
        self.present += frame.height
        number = frame["text"].cast(pl.Float64, strict=False).is_not_null()
        count = int(number.sum())
        self.cast += count
        if count:
            self._add_casts(frame if count == frame.height else frame.filter(number))
        if count < frame.height:
            self._add_others(frame.filter(~number))

    def _add_casts(self, frame: pl.DataFrame) -> None:
        import polars as pl

        text = pl.col("text")
        kind = (
            pl.when(text.str.contains("^[+-]?0[0-9]"))
            .then(_CODE)
            .when(text.str.contains("[eEnN]"))
            .then(_EXPONENT)
            .when(~text.str.contains(".", literal=True))
            .then(_INTEGER)
            .when(text.str.contains(_THREE_BEHIND_A_POINT))
            .then(_THREE)
            .otherwise(_DECIMAL)
        )
        kinds = frame.with_columns(kind=kind.cast(pl.Int8)).group_by("kind")
        for number, count, row, held in kinds.agg(pl.len(), pl.col("row").first(), text.first()).iter_rows():
            if number == _CODE:
                self._codes = _merged(self._codes, _Seen(count, row, held))
            else:
                self._count(_cast_readings(number), _Seen(count, row, held))

    def _add_others(self, frame: pl.DataFrame) -> None:
        import polars as pl

        text = pl.col("text")
        frame = frame.group_by("text").agg(pl.len().alias("count"), pl.col("row").min())
        word = text.str.to_lowercase()
        frame = frame.with_columns(
            likely=(text.str.len_bytes() <= LONGEST) & text.str.contains(_LIKELY),
            true=word.is_in(TRUE),
            false=word.is_in(FALSE),
        )
        spoken = pl.col("true") | pl.col("false")
        self._gather(frame.filter(~pl.col("likely") & ~spoken), _NONE)
        words = frame.filter(spoken)
        self._words |= set(words["text"].str.to_lowercase())
        self._gather(words, frozenset({BOOLEAN}))
        self._add_shapes(frame.filter("likely"))

    def _add_shapes(self, frame: pl.DataFrame) -> None:
        import polars as pl

        text = pl.col("text")
        nines = text.str.replace_all("[0-9]", "9")
        led = text.str.contains("^[^0-9]*0")
        frame = frame.with_columns(shape=pl.when(led).then(nines.str.replace("9", "0", literal=True)).otherwise(nines))
        for (shape,), part in frame.group_by("shape"):
            shape = str(shape)
            if _DATE_SHAPE.fullmatch(shape):
                self._add_dates(part, shape)
                continue
            formats = formats_of(shape)
            if formats:
                self._digits.add(sum(map(str.isdigit, shape)))
                self._marked |= "," in shape or "." in shape
            self._gather(part, frozenset(ColumnReading("number", form) for form in formats))

    def _add_dates(self, frame: pl.DataFrame, shape: str) -> None:
        import polars as pl

        readings = [ColumnReading("date", form) for form in date_formats_of(shape)]
        readings += [ISO] if _ISO_SHAPE.fullmatch(shape) else []
        if not readings:
            self._gather(frame, _NONE)
            return
        moments = [iso(pl.col("text")) if r is ISO else r.format.expression(pl.col("text")) for r in readings]  # type: ignore[union-attr]
        names = [f"fits{i}" for i in range(len(readings))]
        frame = frame.with_columns(
            moment.is_not_null().alias(name) for moment, name in zip(moments, names, strict=True)
        )
        for fits, part in frame.group_by(names):
            self._gather(part, frozenset(reading for reading, fit in zip(readings, fits, strict=True) if fit))

    def _gather(self, frame: pl.DataFrame, readings: _Readings) -> None:
        """Different texts that fit the same readings."""
        if frame.height:
            first = int(frame["row"].arg_min() or 0)
            self._count(readings, _Seen(int(frame["count"].sum()), frame["row"][first], frame["text"][first]))

    def _count(self, readings: _Readings, seen: _Seen) -> None:
        self._seen[readings] = _merged(self._seen.get(readings), seen)

    def decide(self) -> Fit:
        """The reading that most values fit, or names where no reading fits enough of them."""
        counts = self._counts()
        best = max(counts, key=lambda reading: (counts[reading], -_rank(reading)), default=NAMES)
        if not self.present or counts.get(best, 0) < SHARE * self.present:
            return Fit(NAMES, self.present)
        row, held = self._first_misfit(best)
        fits = self.cast if best == PLAIN else counts[best]
        return Fit(best, fits, row, held, self._assumed(best, counts))

    def nearest(self) -> Fit:
        """The reading that most values fit, however few."""
        counts = self._counts()
        best = max(counts, key=lambda reading: (counts[reading], -_rank(reading)), default=NAMES)
        return Fit(best, counts.get(best, 0), *self._first_misfit(best))

    def _counts(self) -> dict[ColumnReading, int]:
        """How many values fit each reading that may be chosen."""
        readings = {reading for seen in self._seen for reading in seen if not _is_any_currency(reading)}
        if not (self._words & set(TRUE) and self._words & set(FALSE)):
            readings.discard(BOOLEAN)  # ON may be Ontario, NO Norway
        if len(self._digits) == 1 and min(self._digits) > 6 and not self.cast and not self._marked:
            # As many digits in every row, in three groups or more: a telephone number or an account.
            readings = {reading for reading in readings if not _spaced_integer(reading)}
        return {
            reading: sum(seen.count for fitting, seen in self._seen.items() if _fits(reading, fitting))
            for reading in readings
        }

    def _first_misfit(self, reading: ColumnReading) -> tuple[int, str]:
        misfits = [seen for fitting, seen in self._seen.items() if not _fits(reading, fitting)]
        misfits += [self._codes] if self._codes and reading != PLAIN else []  # a cast reads them too
        first = min(misfits, key=lambda seen: seen.row, default=None)
        return (first.row, first.text) if first else (0, "")

    def _assumed(self, reading: ColumnReading, counts: dict[ColumnReading, int]) -> str:
        form = reading.format
        if isinstance(form, DateFormat):
            other = replace(
                reading, format=DateFormat({"dmy": "mdy", "mdy": "dmy"}.get(form.order, ""), form.separator)
            )
            if counts.get(other) == counts[reading]:
                return f"{'day' if form.order == 'dmy' else 'month'} first is assumed: no value above 12 decides"
        elif isinstance(form, NumberFormat) and form.group in ".,":
            others = [r for r in counts if isinstance(r.format, NumberFormat) and r.format.decimal == form.group]
            if any(map(_marked, self._seen)) and any(counts[other] == counts[reading] for other in others):
                return f"{form.group!r} is assumed to separate thousands: no value decides"
        elif reading == PLAIN and _cast_readings(_THREE) in self._seen and _cast_readings(_DECIMAL) not in self._seen:
            return "'.' is assumed to be the decimal point: no value decides"
        return ""


def _merged(one: _Seen | None, other: _Seen) -> _Seen:
    if one is None:
        return other
    first = one if one.row <= other.row else other
    return _Seen(one.count + other.count, first.row, first.text)


@lru_cache
def _cast_readings(kind: int) -> _Readings:
    return frozenset({PLAIN, *(ColumnReading("number", form) for form in formats_of(_EXAMPLES[kind]))})


def _marked(fitting: _Readings) -> bool:
    """Whether texts that fit these formats have a mark, so that not all formats read them."""
    marks = {(r.format.decimal, r.format.group) for r in fitting if isinstance(r.format, NumberFormat)}
    return 0 < len(marks) < len(MARKS)


def _is_any_currency(reading: ColumnReading) -> bool:
    return isinstance(reading.format, NumberFormat) and reading.format.unit == ANY_CURRENCY


def _spaced_integer(reading: ColumnReading) -> bool:
    form = reading.format
    return isinstance(form, NumberFormat) and form.group == " " and not form.unit


def _fits(reading: ColumnReading, fitting: _Readings) -> bool:
    """A currency may be left out, a per cent sign may not: 12 beside 12% could be either."""
    form = reading.format
    if reading in fitting or not isinstance(form, NumberFormat) or form.unit in ("", "%"):
        return reading in fitting
    return ColumnReading("number", replace(form, unit=ANY_CURRENCY)) in fitting


def _rank(reading: ColumnReading) -> int:
    """The smaller one is chosen where as many values fit."""
    form = reading.format
    if isinstance(form, NumberFormat):
        return 1 + MARKS.index((form.decimal, form.group))
    return 1 + DATE_FORMATS.index(form) if isinstance(form, DateFormat) else 0
