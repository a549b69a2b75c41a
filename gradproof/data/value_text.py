"""The value of a column in a row, as text, restored from the arrays that a model reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Number, Schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MISSING, OTHER = "missing", "other"


class ValueText:
    """`text(rows, t, c)` is the value of column c of `schema.columns` in row t. Names that training did not tell apart
    are all "other"."""

    def __init__(self, schema: Schema):
        self.columns = schema.columns
        self.place = {number.name: n for n, number in enumerate(schema.numbers) if not number.part}

    def __call__(self, rows: Rows, t: int, c: int) -> str:
        column = self.columns[c]
        if isinstance(column, Category):
            return _name(column, int(rows.codes_RC[t, c]))  # categories are the first columns
        return _number(column, float(rows.numbers_RN[t, self.place[column.name]]))


def _name(category: Category, code: int) -> str:
    if 0 <= code < len(category.values):
        return category.values[code]
    return MISSING if category.missing and code == category.width - 1 else OTHER


def _number(number: Number, value: float) -> str:
    if not np.isfinite(value):
        return MISSING
    if number.date:
        try:
            moment = EPOCH + timedelta(days=value)
        except OverflowError:
            return f"{value:.6g} days"
        return f"{moment:%Y-%m-%d}" if value.is_integer() else f"{moment:%Y-%m-%d %H:%M}"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
