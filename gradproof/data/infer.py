"""From a file to a Schema and Rows, in three passes over it, so that the file need not fit into memory:

    all rows       the target's classes or values, and what each column holds: numbers, dates or names
    training rows  the schema's figures: mean, std, known names, whether values are missing
    all rows       encoded and written

Prediction encodes by the same function as the last pass.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradproof.data.columns import columns_of
from gradproof.data.figures import SLOTS
from gradproof.data.frame import encode_clean
from gradproof.data.levels import with_levels
from gradproof.data.pieces import MOST, with_knots
from gradproof.data.roles import Roles
from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.data.summary import IGNORED, Summary
from gradproof.data.survey import Survey
from gradproof.data.table import Table, changed
from gradproof.data.target import TaskName

if TYPE_CHECKING:
    import polars as pl

CHUNK = 65_536


class ReadTable(NamedTuple):
    """What `read` found; `notes` are sentences for the user, `columns` says how each column is read."""

    schema: Schema
    rows: Rows
    notes: list[str]
    columns: list[dict[str, Any]]


def read(
    path: str | Path,
    target: str,
    *,
    metrics: Sequence[str] = (),
    categorical: Sequence[str] = (),
    ignore: Sequence[str] = (),
    names: int = SLOTS,
    pieces: int = MOST,
    levels: int = 0,
    places: bool = False,
    task: TaskName | None = "classification",
    split: Callable[[np.ndarray], np.ndarray],
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> ReadTable:
    """The schema and the rows of a file, the rows written to `folder`, which must not exist yet.

    The target has classes, or is a number, as the `task` says; None chooses a number for floats of more than fifty
    values. The `names` most frequent of a column are told apart; a number has at most so many `pieces`, and one of at
    most so many `levels` an input for each; with `places` its place stands for the standardised number.
    `split` maps outcome_R to train_R, the rows that the schema's figures are taken from. `progress` is told how many
    rows of how many are done, all passes together; the total is 0 while it is not known yet."""
    table = Table(path)
    if folder.exists():
        raise ValueError(f"{folder} exists already; name a folder that does not")
    roles = Roles(table, target, metrics, categorical, ignore)
    survey = Survey(roles, task)
    for frame in _pass(roles, 0, 0, progress, raw=True):
        survey.add(frame)
    survey.finish(CHUNK)
    train_R = split(survey.outcome_R)
    figures = Summary(roles, survey.readings, train_R, names, survey.number)
    for frame in _pass(roles, 1, survey.rows, progress):
        figures.add(frame)
    odd = survey.odd()
    schema = figures.schema(survey.classes, odd, survey.edges)
    encoded = (encode_clean(schema, frame) for frame in _pass(roles, 2, survey.rows, progress))
    _write(encoded, schema, len(survey.outcome_R), folder, table.path)
    left_out = {name: reason for name, reason in schema.left_out.items() if reason != IGNORED}
    notes = [f"column {name!r} is left out: it {reason}" for name, reason in left_out.items()]
    notes += [f"column {name!r} {reason}" for name, reason in odd.items() if name not in schema.left_out]
    notes += [sentence for name, sentence in survey.unread().items() if name not in schema.left_out]
    if dropped := survey.dropped():
        notes.insert(0, dropped)
    rows = Rows.open(folder)
    columns = columns_of(survey, figures, schema, rows)
    schema = with_levels(with_knots(schema, rows, train_R, pieces, places), rows, train_R, levels)
    return ReadTable(schema, rows, notes, columns)


def _pass(
    roles: Roles, number: int, rows: int, progress: Callable[[int, int], None] | None, raw: bool = False
) -> Iterator[pl.DataFrame]:
    """The chunks of one of the three passes over a file of `rows` rows, 0 if that is not known."""
    done = number * rows
    for frame in roles.table.chunks([roles.target, *roles.metrics, *roles.features], CHUNK, raw):
        yield frame
        done += frame.height
        if progress is not None:
            progress(done, 3 * rows)


def _write(chunks: Iterable[Rows], schema: Schema, count: int, folder: Path, path: Path) -> None:
    """Writes the rows with a target as `Rows.save` does, chunk by chunk; leaves no folder behind if it fails.

    Written, not mapped: a full disk is then an error, and what is written does not stay in memory."""
    folder.mkdir(parents=True)
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(open(folder / f"{name}.npy", "wb")) for name in Rows._fields]
            widths = [(len(schema.categories),), (len(schema.numbers),), (), (schema.measured,)]
            for file, dtype, width in zip(files, ("<i4", "<f8", "<i8", "<f4"), widths, strict=True):
                header = {"descr": dtype, "fortran_order": False, "shape": (count, *width)}
                np.lib.format.write_array_header_1_0(file, header)
            written = 0
            for rows in chunks:
                rows = rows.take(rows.outcome_R >= 0)
                written += rows.count
                for file, array in zip(files, rows, strict=True):
                    file.write(array.tobytes())
            if written != count:
                raise changed(path)
            for file in files:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        shutil.rmtree(folder)
        raise
