"""The source of a run's rows: the synthetic set, or a file that was read into the run's folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.data.split import TRAIN, split
from gradproof.data.target import DISTINCT, TaskName
from gradproof.files import publish, write_atomically

SYNTHETIC = {"rows": 200_000, "seed": 0, "regimes": 4}


@dataclass(frozen=True)
class SourceOptions:
    """What reading rows depends on: where they are, what the columns are there for, how many `names` of a column,
    `pieces` and `levels` of a number are told apart, whether numbers have `places`, how they are encoded, whether the
    target is a number (None: by what it holds), and which shares of the rows are held out."""

    data: str = "synthetic"
    target: str | None = None
    metrics: Sequence[str] = ()
    categorical: Sequence[str] = ()
    ignore: Sequence[str] = ()
    encoding: Literal["onehot", "padic"] = "onehot"
    names: int = 64
    pieces: int = 48
    levels: int = 0
    places: bool = False
    task: TaskName | None = "classification"
    validation: float = 0.1
    test: float = 0.1
    seed: int = 0

    def part(self, outcome_R: np.ndarray) -> np.ndarray:
        """part_R: TRAIN, VALIDATION or TEST for each row."""
        return split(outcome_R, self.seed, self.validation, self.test)


@dataclass
class Source:
    """Rows with their parts (TRAIN, VALIDATION, TEST); `best_R`, the chance of the best decision, and `regime_R`, the
    rule behind each row, where they are known."""

    schema: Schema
    rows: Rows
    part_R: np.ndarray
    notes: list[str]
    columns: list[dict[str, Any]] = field(default_factory=list)  # how each column of the file is read
    best_R: np.ndarray | None = None
    regime_R: np.ndarray | None = None

    def index(self, part: int) -> np.ndarray:
        """The rows of a part."""
        return np.nonzero(self.part_R == part)[0]


def synthetic_options(data: str) -> dict[str, int] | None:
    """The options of `synthetic[:regimes=N,rows=N,seed=N]`, or None where `data` names a file."""
    name, _, rest = data.partition(":")
    if name != "synthetic":
        return None
    options = dict(SYNTHETIC)
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in options or not re.fullmatch(r"-?[0-9]+", value):
            raise ValueError(f"--data {data}: {item!r} is not understood; write synthetic:regimes=4,rows=200000,seed=0")
        options[key] = int(value)
    if min(options["rows"], options["regimes"]) < 1:
        raise ValueError(f"--data {data}: rows and regimes must be at least 1")
    return options


def check(data: str, target: str | None, named: Sequence[str]) -> None:
    """What can be said of the data at once, before anything is written; `named` are other columns that must exist."""
    if synthetic_options(data) is not None:
        if target is not None or named:
            raise ValueError(
                "the synthetic set has its own target and metrics;"
                " name your table with --data, or omit --target and --metrics"
            )
        return
    from gradproof.data.table import Table

    columns = Table(Path(data)).columns
    if target is None:
        raise ValueError(
            f"--target is missing: which column of {data} should be predicted? ({', '.join(columns[:12])})"
        )
    from gradproof.data.roles import check_columns

    check_columns(columns, target, named)


def open_source(options: SourceOptions, folder: Path, progress: Callable[[int, int], None] | None = None) -> Source:
    """The rows that the options ask for. A file is read once, into `folder`/rows, and from there ever after."""
    how = synthetic_options(options.data)
    if how is not None:
        made = _synthetic(**how)
        part_R = options.part(made.rows.outcome_R)
        schema, notes = _encoded(options, made.schema, made.rows, part_R == TRAIN)
        if not (folder / "schema.json").exists():
            _write_schema(folder, schema, notes)
        rows = Rows(*(array.copy() for array in made.rows))  # whoever writes to them writes to his own
        return Source(schema, rows, part_R, notes, best_R=made.best_R, regime_R=made.regime_R)
    if not (folder / "schema.json").exists():
        _read(options, folder, progress)
    schema, notes = read_schema(folder)
    try:
        rows = Rows.open(folder / "rows")
    except (OSError, ValueError) as error:
        again = f"remove {folder / 'schema.json'} to read {options.data} again"
        raise ValueError(f"{folder / 'rows'} is damaged ({error}); {again}") from None
    return Source(schema, rows, options.part(np.asarray(rows.outcome_R)), notes, read_columns(folder))


def task_lines(source: Source, asked: TaskName | None) -> list[str]:
    """What the target of a table is taken for, and how to have it otherwise; nothing of the synthetic set."""
    if not source.columns:
        return []
    target, why = source.schema.target, ", as requested" if asked else ""
    if source.schema.quantity:
        other = "" if asked else f", a float with more than {DISTINCT} values; for classes: --task classification"
        return [f"task: regression{why}: predicts {target}{other}"]
    return [f"task: classification{why}: {len(source.schema.classes):,} classes of {target}"]


@lru_cache(maxsize=1)
def _synthetic(rows: int, seed: int, regimes: int) -> Any:
    """Kept, as a study asks a process for the same set again and again."""
    from gradproof.data.synthetic import synthetic

    return synthetic(rows, seed, regimes)


def read_schema(folder: Path) -> tuple[Schema, list[str]]:
    """A run's schema, and what was noticed while its table was read."""
    try:
        record = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
        return Schema.from_dict(record["schema"]), record["notes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'schema.json'} cannot be read ({error}); without it the run is lost") from None


def read_columns(folder: Path) -> list[dict[str, Any]]:
    """How each column of a run's table is read; empty for runs from before this was recorded."""
    return json.loads((folder / "schema.json").read_text(encoding="utf-8")).get("columns", [])


def _read(options: SourceOptions, folder: Path, progress: Callable[[int, int], None] | None) -> None:
    """The schema is written last: without it, the rows are read again."""
    from gradproof.data.infer import read

    aside = folder / ".partial-rows"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(folder / "rows", ignore_errors=True)
    if options.target is None:
        raise ValueError(f"--target is missing: which column of {options.data} should be predicted?")
    table = read(
        Path(options.data),
        options.target,
        metrics=options.metrics,
        categorical=options.categorical,
        ignore=options.ignore,
        names=options.names,
        pieces=options.pieces,
        levels=options.levels,
        places=options.places,
        task=options.task,
        split=lambda outcome_R: options.part(outcome_R) == TRAIN,
        folder=aside,
        progress=progress,
    )
    publish(aside, folder / "rows")
    train_R = options.part(np.asarray(table.rows.outcome_R)) == TRAIN
    schema, notes = _encoded(options, table.schema, table.rows, train_R)
    _write_schema(folder, schema, [*table.notes, *notes], table.columns)


def _encoded(options: SourceOptions, schema: Schema, rows: Rows, train_R: np.ndarray) -> tuple[Schema, list[str]]:
    """The schema with the encoding that was asked for."""
    if options.encoding != "padic":
        return schema, []
    from gradproof.data.decimals import with_padic

    return with_padic(schema, rows, train_R)


def _write_schema(folder: Path, schema: Schema, notes: list[str], columns: Sequence[dict[str, Any]] = ()) -> None:
    record = {"schema": schema.to_dict(), "notes": notes, "columns": list(columns)}
    write_atomically(folder / "schema.json", json.dumps(record, indent=1) + "\n")
