"""Reads the rows of a frame according to a schema, in the last pass over a table and in prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradproof.data.cells import category_of, numbers_of, shown, text_of, truth_of, value_of
from gradproof.data.reading import BOOLEAN, NAMES, PLAIN, ColumnReading
from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Schema, name_of, one_name
from gradproof.data.table import clean
from gradproof.data.target import stratum

if TYPE_CHECKING:
    import polars as pl


class Unread(NamedTuple):
    """Values of a column that do not fit its reading: how many, the first one and its row, and what was expected."""

    values: int
    row: int
    value: str
    expected: str

    def sentence(self, name: str) -> str:
        held = (
            f"the first is {self.value} in row {self.row}" if self.values > 1 else f"row {self.row} holds {self.value}"
        )
        values = f"{self.values:,} values are" if self.values > 1 else "1 value is"
        return f"column {name!r}: {values} not {self.expected} and count{'s' * (self.values == 1)} as missing; {held}"


def encode(schema: Schema, frame: pl.DataFrame, start: int = 0, unread: dict[str, Unread] | None = None) -> Rows:
    """The frame's rows as the schema reads them. Outcome −1 and metrics NaN where the frame does not have them.

    What does not fit a column's reading is missing, and is counted in `unread`; `start` rows of the file come before
    the frame's."""
    features = [column.name for column in schema.columns]
    if absent := [name for name in features if name not in frame.columns]:
        names = ", ".join(map(repr, absent))
        raise ValueError(f"the table has no column {names}; every column that the model was trained on is needed")
    answers = [name for name in (schema.target, *(metric.name for metric in schema.metrics)) if name in frame.columns]
    frame = clean(frame.select(*features, *answers))
    if unread is not None:
        for column in schema.columns:
            _count_unread(frame, column.name, column.reading, start, unread)
    return encode_clean(schema, frame)


def _count_unread(
    frame: pl.DataFrame, name: str, reading: ColumnReading, start: int, unread: dict[str, Unread]
) -> None:
    if reading == NAMES:
        return
    dtype, present = frame.schema[name], frame[name].is_not_null()
    value = frame.select(truth_of(name, dtype) if reading == BOOLEAN else value_of(name, dtype, reading)).to_series()
    if len(wrong := (value.is_null() & present).arg_true()):
        first = Unread(0, start + wrong[0] + 1, shown(frame[name][wrong[0]]), reading.expected)
        before = unread.get(name, first)
        unread[name] = before._replace(values=before.values + len(wrong))


def encode_clean(schema: Schema, frame: pl.DataFrame) -> Rows:
    """`encode` for a frame that is clean."""
    codes = [_codes(category, frame) for category in schema.categories]
    return Rows(
        np.stack(codes, 1) if codes else np.empty((frame.height, 0), np.int32),
        numbers_of(frame, [(number.name, number.reading, number.part) for number in schema.numbers]),
        *_answers(schema, frame),
    )


def _answers(schema: Schema, frame: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """outcome_R and metrics_RM."""
    if quantity := schema.quantity:
        value_RM = numbers_of(frame, [(schema.target, quantity.reading, "")])
        standardised_RM = ((value_RM - quantity.mean) / quantity.std).astype(np.float32)
        return stratum(value_RM[:, 0], quantity.edges), standardised_RM
    metrics_RM = numbers_of(frame, [(metric.name, PLAIN, "") for metric in schema.metrics])
    low_M, high_M = np.array([(metric.low, metric.high) for metric in schema.metrics]).reshape(-1, 2).T
    return _outcome(schema, frame), ((metrics_RM - low_M) / (high_M - low_M)).astype(np.float32)


def _codes(category: Category, frame: pl.DataFrame) -> np.ndarray:
    import polars as pl

    slots = category.slots()
    text = frame.select(category_of(category.name, frame.schema[category.name], category.boolean)).to_series()
    codes = {value: slots.get(name_of(value), category.unseen) for value in text.drop_nulls().unique()}
    return text.replace_strict(codes, default=slots.get(None, -1), return_dtype=pl.Int32).to_numpy()


def _outcome(schema: Schema, frame: pl.DataFrame) -> np.ndarray:
    import polars as pl

    if schema.target not in frame.columns:
        return np.full(frame.height, -1, np.int64)
    text = frame.select(text_of(schema.target, frame.schema[schema.target])).to_series()
    slot = class_slot(schema.classes)
    slots = {name: slot(name) for name in text.drop_nulls().unique()}
    return text.replace_strict(slots, default=-1, return_dtype=pl.Int64).to_numpy(writable=True)


def class_slot(classes: Sequence[str]) -> Callable[[str], int]:
    """From a target's text to its class, −1 where it is none."""
    exact = {name: slot for slot, name in enumerate(classes)}
    same = {one_name(name): slot for slot, name in enumerate(classes)}
    return lambda text: exact.get(text, same.get(one_name(text), -1))
