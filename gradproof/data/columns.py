"""Columns: how each column of a table is read, shown before training and kept in the run's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradproof.data.fits import Fit
from gradproof.data.reading import BOOLEAN, ISO, NAMES, PLAIN, ColumnReading
from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.data.summary import Summary
from gradproof.data.survey import Survey

COUNTED = 1_000_000  # rows in which distinct numbers are counted: more would be one more pass over a large table
SHOWN = 40  # columns that are printed, about a screen; the report has them all
HEADER = ("column", "read as", "format", "fits", "distinct", "missing", "")
_FORMATS = {PLAIN: "1234.5", ISO: "year-month-day", BOOLEAN: "yes/no", NAMES: ""}


def columns_of(survey: Survey, summary: Summary, schema: Schema, rows: Rows) -> list[dict[str, Any]]:
    """A record for each column of the file: `fits` is the share of the present values, `missing` that of all rows, with
    those that do not fit; `distinct` is None where it was not counted."""
    roles, known = survey.roles, max(1, len(survey.outcome_R))
    odd, distinct = survey.odd(), _distinct(schema, rows)
    records = []
    for name in roles.table.columns:
        record: dict[str, Any] = {"name": name, "kind": "left out", "format": "", "fits": None, "distinct": None}
        record |= {"missing": None, "note": ""}
        if name == roles.target:
            missing = (survey.rows - known) / max(1, survey.rows)
            record |= {"kind": "target", "distinct": len(schema.classes) or None, "missing": missing}
            if survey.number:
                record |= {"format": _format(survey.number), "distinct": _values(rows), "note": "numeric target"}
        elif name in roles.metrics:
            record |= {"kind": "metric", "missing": 0.0}
        elif name in survey.fits:
            record |= _feature(survey.fits[name], survey.present[name], known)
            record["distinct"] = len(summary.names[name].seen) or None if name in summary.names else distinct.get(name)
            record["note"] = odd.get(name, survey.fits[name].assumed)
            if name in roles.categorical:
                record["note"] = "names, as requested"
        if name in schema.left_out:
            record |= {"kind": "left out", "note": schema.left_out[name]}
        records.append(record)
    return records


def _feature(fit: Fit, present: int, rows: int) -> dict[str, Any]:
    read = fit.fits if fit.reading != NAMES else present
    return {
        "kind": fit.reading.kind,
        "format": _format(fit.reading),
        "fits": read / present if present and fit.reading != NAMES else None,
        "missing": max(0.0, 1 - read / rows),
    }


def _format(reading: ColumnReading) -> str:
    return reading.format.example if reading.format else _FORMATS[reading]


def _distinct(schema: Schema, rows: Rows) -> dict[str, int]:
    """How many different values each column of numbers has in its first rows."""
    own = {number.name: n for n, number in enumerate(schema.numbers) if not number.part}
    value_RN = rows.numbers_RN[:COUNTED]
    return {name: len(np.unique(column[~np.isnan(column)])) for name, n in own.items() for column in [value_RN[:, n]]}


def _values(rows: Rows) -> int:
    """How many different values a target that is a number has in its first rows."""
    return len(np.unique(rows.metrics_RM[:COUNTED]))


def column_lines(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table as lines of text, the first of them its header; empty where there are no columns."""
    if not columns:
        return []
    cells = [HEADER, *(map(_cells, columns[:SHOWN]))]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    if len(columns) > SHOWN:
        lines.append(f"… and {len(columns) - SHOWN} more columns, all in report.html")
    return lines


def _cells(column: Mapping[str, Any]) -> tuple[str, ...]:
    """A column's line; control characters and very long names would break the table."""
    name = "".join(letter if letter.isprintable() else "�" for letter in column["name"])
    return (
        name if len(name) <= SHOWN else name[: SHOWN - 1] + "…",
        column["kind"],
        column["format"],
        _percent(column["fits"]),
        "" if column["distinct"] is None else f"{column['distinct']:,}",
        _percent(column["missing"]),
        column["note"],
    )


def _percent(share: float | None) -> str:
    """Rounded, but never to all or nothing where it is neither."""
    if share is None:
        return ""
    return f"{share:.0%}" if share in (0, 1) else f"{min(max(share, 0.001), 0.999):.1%}"
