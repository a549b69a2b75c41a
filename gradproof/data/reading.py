"""ColumnReading: how the cells of a column are read, identically in training, prediction and the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradproof.data.date_format import DateFormat
from gradproof.data.number_format import NumberFormat

ColumnKind = Literal["number", "date", "boolean", "name"]
TRUE, FALSE = ("true", "yes", "y", "on"), ("false", "no", "n", "off")


@dataclass(frozen=True)
class ColumnReading:
    """Without a `format`: numbers as Python writes them, dates as ISO 8601 has them."""

    kind: ColumnKind
    format: NumberFormat | DateFormat | None = None

    @property
    def expected(self) -> str:
        """What a cell must hold, with an example of the format."""
        if self.kind == "boolean":
            return "yes or no"
        if self.kind == "date":
            return "a date like " + (repr(self.format.example) if self.format else "'2024-05-31'")
        return "a number" + (f" like {self.format.example!r}" if self.format else "")


PLAIN, ISO = ColumnReading("number"), ColumnReading("date")
BOOLEAN, NAMES = ColumnReading("boolean"), ColumnReading("name")


def truth(text: str) -> str | None:
    """'true' or 'false' for a word that says so, in any case."""
    word = text.lower()
    return "true" if word in TRUE else "false" if word in FALSE else None
