"""Schema: the columns of a run's table and how each is encoded. Saved with the run, so that prediction reads a record
exactly as training did.

C categorical columns, N number columns, M metrics. The inputs are laid out as

    one-hot of each categorical column | each number, standardised or its place | its pieces | its p-adic columns | a
    flag where it may be missing | one-hot of its levels
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gradproof.data.date_format import DateFormat
from gradproof.data.number_format import NumberFormat
from gradproof.data.reading import BOOLEAN, NAMES, ColumnReading

_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?[1-9]\d*|0\d*", re.ASCII)
_PADDED = re.compile(r"\.\d*[1-9]0+\Z", re.ASCII)


def is_decimal(text: str) -> bool:
    return _DECIMAL.fullmatch(text) is not None


def is_truth(text: str) -> bool:
    return text.lower() in ("true", "false")


def one_name(text: str) -> str:
    """One name for a number or a truth value however it is written: 1.0 and +1 are 1, True is true; an integer stays as
    it is, so that 007 is not 7."""
    if is_truth(text):
        return text.lower()
    if _INTEGER.fullmatch(text) or not is_decimal(text) or math.isinf(value := float(text)):
        return text
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def name_of(text: str) -> str:
    """The name that a category's text stands for, whether it comes from CSV, Parquet or JSON: its `one_name`, except
    that 3.10, a version, is not 3.1."""
    return text if _PADDED.search(text) else one_name(text)


@dataclass(frozen=True)
class Category:
    """A column of names. Slots: its known `values`, then `other` (rare or never seen), then `missing`, where the column
    has them. A value without a slot is encoded as zeros. A `boolean` one reads yes, no and their like as true and
    false."""

    name: str
    values: tuple[str, ...]
    other: bool = False
    missing: bool = False
    boolean: bool = False

    @property
    def reading(self) -> ColumnReading:
        return BOOLEAN if self.boolean else NAMES

    @property
    def width(self) -> int:
        return len(self.values) + self.other + self.missing

    def slots(self) -> dict[str | None, int]:
        """The slot of each known value, by its `name_of`, and of None where missing values have one."""
        known: dict[str | None, int] = {name_of(value): slot for slot, value in enumerate(self.values)}
        return known | ({None: self.width - 1} if self.missing else {})

    @property
    def unseen(self) -> int:
        """The slot of a value that is not known; −1 is none."""
        return len(self.values) if self.other else -1


@dataclass(frozen=True)
class Number:
    """A column of numbers, standardised by the training rows; a missing one becomes the mean, and sets its flag where
    the column has one. A `date` is days since 1970, or with a `part` its year, month, weekday or time. Text is read by
    the `format`; without one as Python writes numbers, and dates as ISO 8601. Between `knots` lie its pieces
    (`data/pieces.py`), and with `places`, one for each knot, its place is an input instead of the standardised number.
    Its integer of so many `decimals` has `padic` columns, none to two (`ops/padic.py`). Each of its
    `levels` has an input of its own (`data/levels.py`)."""

    name: str
    mean: float
    std: float
    missing: bool = False
    date: bool = False
    knots: tuple[float, ...] = ()
    padic: int = 0
    decimals: int = 0
    format: NumberFormat | DateFormat | None = None
    part: str = ""
    levels: tuple[float, ...] = ()
    places: tuple[float, ...] = ()

    @property
    def reading(self) -> ColumnReading:
        return ColumnReading("date" if self.date else "number", self.format)

    @property
    def pieces(self) -> int:
        return max(0, len(self.knots) - 1)

    @property
    def width(self) -> int:
        """How many inputs it has."""
        return 1 + self.pieces + self.padic + self.missing + len(self.levels)


@dataclass(frozen=True)
class Metric:
    """A second target, learned on [0, 1] between `low` and `high`."""

    name: str
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Quantity:
    """A target that is a number: standardised by the training rows, read by the `format`. Between the `edges` lie the
    strata that a split takes its shares of."""

    mean: float
    std: float
    edges: tuple[float, ...] = ()
    format: NumberFormat | None = None

    @property
    def reading(self) -> ColumnReading:
        return ColumnReading("number", self.format)


PATCHES = 32  # blocks that a sheaf router tells apart


@dataclass(frozen=True)
class Schema:
    """The columns in the table's order, the classes of the target, the metrics, and the columns left out, with why. A
    target that is a number has no classes but a `quantity`."""

    target: str
    classes: tuple[str, ...]
    categories: tuple[Category, ...] = ()
    numbers: tuple[Number, ...] = ()
    metrics: tuple[Metric, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    quantity: Quantity | None = None

    @property
    def columns(self) -> tuple[Category | Number, ...]:
        """The columns of the table that are read, each once: the parts of a date are not among them."""
        return (*self.categories, *(number for number in self.numbers if not number.part))

    @property
    def inputs(self) -> int:
        return sum(self.blocks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many inputs each categorical column has, and the numbers together."""
        numbers = sum(number.width for number in self.numbers)
        return (*(category.width for category in self.categories), *([numbers] if numbers else []))

    @property
    def patches(self) -> tuple[int, ...]:
        """The blocks that a sheaf router reads; neighbouring columns share one where there would be more than 32."""
        names, last = self.blocks[:-1], self.blocks[-1:]
        per_patch = max(1, -(-len(names) // (PATCHES - 1)))
        return (*(sum(names[i : i + per_patch]) for i in range(0, len(names), per_patch)), *last)

    @property
    def outputs(self) -> int:
        """A logit of each class and the metrics; of a quantity, mean and log spread."""
        return 2 if self.quantity else len(self.classes) + len(self.metrics)

    @property
    def measured(self) -> int:
        """How many numbers of a row are learned: the metrics, or the quantity alone."""
        return 1 if self.quantity else len(self.metrics)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Schema:
        """The inverse of `to_dict`, after a way through JSON too."""
        return cls(
            record["target"],
            tuple(record["classes"]),
            tuple(Category(**{**category, "values": tuple(category["values"])}) for category in record["categories"]),
            tuple(map(_number, record["numbers"])),
            tuple(Metric(**metric) for metric in record["metrics"]),
            dict(record["left_out"]),
            _quantity(record.get("quantity")),
        )


def _quantity(record: Mapping[str, Any] | None) -> Quantity | None:
    """Of a regression; runs from before there were any do not name it."""
    if record is None:
        return None
    form = record["format"]
    return Quantity(record["mean"], record["std"], tuple(record["edges"]), NumberFormat(**form) if form else None)


def _number(record: Mapping[str, Any]) -> Number:
    form = record.get("format")
    if form is not None:
        form = DateFormat(**form) if "order" in form else NumberFormat(**form)
    tuples = {name: tuple(record.get(name, ())) for name in ("knots", "levels", "places")}
    return Number(**{**record, **tuples, "format": form})
