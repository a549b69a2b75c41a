"""From a file to a Schema and Rows, in three passes over it, so that the file need not fit into memory:

    all rows       the target's classes, and what each column holds: numbers, dates or names
    training rows  the schema's figures: mean, std, known names, whether values are missing
    all rows       encoded and written

Prediction encodes by the same function as the last pass.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gradproof.data.figures import Counts, Moments
from gradproof.data.pieces import with_knots
from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Metric, Number, Schema, is_decimal, is_truth, name_of, one_name
from gradproof.data.table import Table, clean

if TYPE_CHECKING:
    import polars as pl

CLASSES = 1000
CHUNK = 65_536
IGNORED = "is ignored, as asked"

_DAY = 86_400e6  # microseconds
_SHOWN = 40  # characters of a value that a sentence repeats
_ALMOST = 0.9  # of a column's values are numbers: that it is read as names is then worth a word

Kind = Literal["number", "date", "name"]
Progress = Callable[[int, int], None]


class Read(NamedTuple):
    """What `read` found; `notes` are sentences for the user."""

    schema: Schema
    rows: Rows
    notes: list[str]


def read(
    path: str | Path,
    target: str,
    *,
    metrics: Sequence[str] = (),
    categorical: Sequence[str] = (),
    ignore: Sequence[str] = (),
    split: Callable[[np.ndarray], np.ndarray],
    folder: Path,
    progress: Progress | None = None,
) -> Read:
    """The schema and the rows of a file, the rows written to `folder`, which must not exist yet.

    `split` maps outcome_R to train_R, the rows that the schema's figures are taken from. `progress` is told how many
    rows of how many are done, all passes together; the total is 0 while it is not known yet."""
    table = Table(path)
    if folder.exists():
        raise ValueError(f"{folder} exists already; name a folder that does not")
    roles = _Roles(table, target, metrics, categorical, ignore)
    survey = _Survey(roles)
    for frame in _pass(roles, 0, 0, progress, raw=True):
        survey.add(frame)
    survey.finish()
    train_R = split(survey.outcome_R)
    figures = _Figures(roles, survey.kinds, train_R)
    for frame in _pass(roles, 1, survey.rows, progress):
        figures.add(frame)
    odd = survey.odd()
    schema = figures.schema(survey.classes, odd)
    encoded = (_encode(schema, frame) for frame in _pass(roles, 2, survey.rows, progress))
    _write(encoded, schema, len(survey.outcome_R), folder, table.path)
    left_out = {name: reason for name, reason in schema.left_out.items() if reason != IGNORED}
    notes = [f"column {name!r} is left out: it {reason}" for name, reason in left_out.items()]
    notes += [f"column {name!r} {reason}" for name, reason in odd.items() if name not in schema.left_out]
    if dropped := survey.dropped():
        notes.insert(0, dropped)
    rows = Rows.open(folder)
    return Read(with_knots(schema, rows, train_R), rows, notes)


def encode(schema: Schema, frame: pl.DataFrame, start: int = 0) -> Rows:
    """The frame's rows as the schema reads them. Outcome −1 and metrics NaN where the frame does not have them.

    ValueError on a number or date that is none; `start` rows of the file come before the frame's."""
    features = [column.name for column in (*schema.categories, *schema.numbers)]
    if absent := [name for name in features if name not in frame.columns]:
        names = ", ".join(map(repr, absent))
        raise ValueError(f"the table has no column {names}; it needs every column that the model was trained on")
    answers = [name for name in (schema.target, *(metric.name for metric in schema.metrics)) if name in frame.columns]
    frame = clean(frame.select(*features, *answers))
    for number in schema.numbers:
        _check_number(frame, number, start)
    return _encode(schema, frame)


def _check_number(frame: pl.DataFrame, number: Number, start: int) -> None:
    value = frame.select(_value(number.name, frame.schema[number.name], number.date)).to_series()
    if len(wrong := (value.is_null() & frame[number.name].is_not_null()).arg_true()):
        must = "a date like '2024-05-31'" if number.date else "a number"
        held = _held(frame[number.name][wrong[0]])
        raise ValueError(f"column {number.name!r} must be {must} or empty; row {start + wrong[0] + 1} holds {held}")


def _held(value: object) -> str:
    """A cell, in a few characters."""
    text = str(value)
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _encode(schema: Schema, frame: pl.DataFrame) -> Rows:
    """`encode` for a frame that is clean."""
    metrics_RM = _numbers(frame, {metric.name: False for metric in schema.metrics})
    low_M, high_M = np.array([(metric.low, metric.high) for metric in schema.metrics]).reshape(-1, 2).T
    codes = [_codes(category, frame) for category in schema.categories]
    return Rows(
        np.stack(codes, 1) if codes else np.empty((frame.height, 0), np.int32),
        _numbers(frame, {number.name: number.date for number in schema.numbers}),
        _outcome(schema, frame),
        ((metrics_RM - low_M) / (high_M - low_M)).astype(np.float32),
    )


def _codes(category: Category, frame: pl.DataFrame) -> np.ndarray:
    import polars as pl

    slots = category.slots()
    text = frame.select(_text(category.name, frame.schema[category.name])).to_series()
    found = {value: slots.get(name_of(value), category.unseen) for value in text.drop_nulls().unique()}
    return text.replace_strict(found, default=slots.get(None, -1), return_dtype=pl.Int32).to_numpy()


def _numbers(frame: pl.DataFrame, dates: Mapping[str, bool]) -> np.ndarray:
    """number_RN of the named columns, NaN where missing or not there; a date, where `dates` says so, in days."""
    columns = [_number(name, frame.schema.get(name), date) for name, date in dates.items()]
    if not columns:
        return np.empty((frame.height, 0))
    # Not divided by polars: its quotients differ in the last bit with the length of a chunk.
    number_RN = np.array(frame.select(columns).to_numpy(), np.float64, order="C")
    number_RN /= np.where(list(dates.values()), _DAY, 1.0)
    return number_RN


def _outcome(schema: Schema, frame: pl.DataFrame) -> np.ndarray:
    import polars as pl

    if schema.target not in frame.columns:
        return np.full(frame.height, -1, np.int64)
    text = frame.select(_text(schema.target, frame.schema[schema.target])).to_series()
    slot = _class_slot(schema.classes)
    found = {name: slot(name) for name in text.drop_nulls().unique()}
    return text.replace_strict(found, default=-1, return_dtype=pl.Int64).to_numpy(writable=True)


def _class_slot(classes: Sequence[str]) -> Callable[[str], int]:
    """From a target's text to its class, −1 where it is none."""
    exact = {name: slot for slot, name in enumerate(classes)}
    same = {one_name(name): slot for slot, name in enumerate(classes)}
    return lambda text: exact.get(text, same.get(one_name(text), -1))


def _text(name: str, dtype: pl.DataType) -> pl.Expr:
    """A clean column as names; null where missing."""
    import polars as pl

    if dtype.is_float():
        return pl.col(name).fill_nan(None).cast(pl.String)
    return _nothing(name, pl.String) if _unreadable(dtype) else pl.col(name).cast(pl.String)


def _number(name: str, dtype: pl.DataType | None, date: bool) -> pl.Expr:
    """`_value`, null where it is not finite."""
    import polars as pl

    value = _value(name, dtype, date)
    return pl.when(value.is_finite()).then(value).alias(name)


def _value(name: str, dtype: pl.DataType | None, date: bool) -> pl.Expr:
    """A clean column as float64, null where missing, or where it holds something else; dates in microseconds."""
    import polars as pl

    column = pl.col(name)
    if dtype == pl.String:
        return _iso(column).dt.timestamp("us").cast(pl.Float64) if date else _float(column)
    if dtype is not None and date and dtype.is_temporal():
        return _microseconds(column, dtype).cast(pl.Float64)
    if dtype is not None and not date and dtype.is_numeric():
        return column.cast(pl.Float64)
    return _nothing(name, pl.Float64)


def _nothing(name: str, dtype: type[pl.DataType]) -> pl.Expr:
    import polars as pl

    return pl.repeat(None, pl.len(), dtype=dtype).alias(name)


def _unreadable(dtype: pl.DataType) -> bool:
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


def _iso(column: pl.Expr) -> pl.Expr:
    """ISO 8601 dates and times, null where the text is none. A time without a zone is UTC."""
    day = r"^(\d{4}-\d\d-\d\d)"
    text = column.str.replace(day + "$", "${1} 00:00")
    text = text.str.replace(day + r"[T ](\d\d:\d\d)(Z|[+-]|$)", "${1} ${2}:00${3}")
    text = text.str.replace(day + r"[T ](\S*?)(Z|$)", "${1} ${2}+00:00")
    text = text.str.replace(r"([+-]\d\d:?\d\d)\+00:00$", "${1}")
    return text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", strict=False, time_unit="us")


def check_columns(columns: Sequence[str], target: str, named: Sequence[str] = ()) -> None:
    """A ValueError unless `columns` has the target and all that is `named`."""
    for name in (target, *named):
        if name in columns:
            continue
        lowered = {column.lower(): column for column in columns}
        if close := get_close_matches(name.lower(), lowered, cutoff=0.5):
            hint = f"did you mean {' or '.join(repr(lowered[each]) for each in close)}?"
        else:
            hint = f"its columns are {', '.join(columns[:12])}{', …' if len(columns) > 12 else ''}"
        raise ValueError(f"the table has no column {name!r}; {hint}")


class _Roles:
    """What each column of the table is there for, checked."""

    def __init__(
        self, table: Table, target: str, metrics: Sequence[str], categorical: Sequence[str], ignore: Sequence[str]
    ):
        self.table, self.target, self.metrics = table, target, list(dict.fromkeys(metrics))
        self.categorical, self.ignore = set(categorical), set(ignore)
        check_columns(table.columns, target, [*metrics, *categorical, *ignore])
        roles: dict[str, str] = {target: "the target"}
        others = {"a metric": self.metrics, "categorical": self.categorical, "ignored": self.ignore}
        for role, name in ((role, name) for role, names in others.items() for name in sorted(names)):
            if name in roles:
                raise ValueError(f"column {name!r} cannot be {roles[name]} and {role} at once; give it one role")
            roles[name] = role
        for name in (target, *self.metrics):
            if _unreadable(dtype := table.dtypes[name]):
                raise ValueError(f"column {name!r} of {table.path} must hold plain values; it holds {dtype}")
        self.candidates = [name for name in table.columns if roles.get(name, "categorical") == "categorical"]
        self.features = [name for name in self.candidates if not _unreadable(table.dtypes[name])]
        if not self.features:
            raise ValueError(f"no column of {table.path} is left to learn from; it needs one besides the target")


def _pass(
    roles: _Roles, number: int, rows: int, progress: Progress | None, raw: bool = False
) -> Iterator[pl.DataFrame]:
    """The chunks of one of the three passes over a file of `rows` rows, 0 if that is not known."""
    done = number * rows
    for frame in roles.table.chunks([roles.target, *roles.metrics, *roles.features], CHUNK, raw):
        yield frame
        done += frame.height
        if progress is not None:
            progress(done, 3 * rows)


class _Survey:
    """The first pass: the classes, each row's outcome and each feature's kind, over the rows with a target."""

    def __init__(self, roles: _Roles):
        self.roles, self.rows = roles, 0
        self.classes: tuple[str, ...] = ()
        self.outcome_R = np.empty(0, np.int64)
        self.kinds: dict[str, Kind] = {}
        self._texts: dict[str, int] = {}  # those of the target, by their first row
        self._codes: list[np.ndarray] = []
        self._empty = list(roles.features)  # without a value so far
        self._held: str | None = None  # the first text of the target that counts as missing
        self._numbers: dict[str, _Numbers] = {}  # of text columns
        for name in roles.features:
            if kind := "name" if name in roles.categorical else _kind(roles.table.dtypes[name]):
                self.kinds[name] = kind

    def add(self, frame: pl.DataFrame) -> None:
        """The next chunk of the file, not clean yet."""
        import polars as pl

        raw, frame = frame[self.roles.target], clean(frame)
        text = frame.select(_text(self.roles.target, frame.schema[self.roles.target])).to_series()
        if self._held is None and text.null_count() and frame.schema[self.roles.target] == pl.String:
            held = raw.cast(pl.String).filter(text.is_null()).drop_nulls().str.strip_chars()
            self._held = next(filter(None, held), None)
        self._check_metrics(frame, text.is_not_null())
        row_R = self.rows + text.is_not_null().arg_true().to_numpy() + 1
        self.rows += frame.height
        frame, text = frame.filter(text.is_not_null()), text.drop_nulls()
        for name in text.unique(maintain_order=True):
            self._texts.setdefault(name, len(self._texts))
        if len(self._texts) > CLASSES and len(_classes(self._texts)) > CLASSES:
            raise self._no_class(f"more than {CLASSES}")
        self._codes.append(text.replace_strict(self._texts, default=-1, return_dtype=pl.Int32).to_numpy())
        self._settle(frame, row_R)

    def finish(self) -> None:
        """Sets `classes` and `outcome_R`, or says what is wrong with the target or a feature."""
        path, target = self.roles.table.path, self.roles.target
        if not self._texts:
            why = f", where {self._held!r} counts as missing" if self._held else ""
            raise ValueError(f"no row of {path} has a value in target column {target!r}{why}; choose another target")
        self.classes = _classes(self._texts)
        slot_of = np.array(list(map(_class_slot(self.classes), self._texts)), np.int64)
        self.outcome_R = slot_of[np.concatenate(self._codes)]
        if len(self.classes) == 1:
            every = f"every row of {path} has {target} = {self.classes[0]!r}; a classifier needs two classes"
            dropped = self.dropped()
            raise ValueError(f"{every}; {dropped}" if dropped else every)
        if len(self.outcome_R) > 20 and len(self.classes) > len(self.outcome_R) / 2:
            raise self._no_class(f"{len(self.classes)}")
        if self._empty:
            raise ValueError(f"column {self._empty[0]!r} of {path} has no value in any row; leave it out by --ignore")

    def dropped(self) -> str:
        """A sentence on the rows without a target; empty if there are none."""
        if not (count := self.rows - len(self.outcome_R)):
            return ""
        why = f"; {self._held!r} counts as missing" if self._held else ""
        return f"{count:,} of {self.rows:,} rows have no {self.roles.target} and are left out{why}"

    def odd(self) -> dict[str, str]:
        """Why a column that holds almost nothing but numbers is read as names."""
        return {
            name: f"is read as names, since row {numbers.row} holds {_held(numbers.held)}, no number"
            for name, numbers in self._numbers.items()
            if numbers.row and numbers.count >= _ALMOST * numbers.present
        }

    def _settle(self, frame: pl.DataFrame, row_R: np.ndarray) -> None:
        """A column of text holds numbers, or dates, as long as all of it does."""
        import polars as pl

        kind = self.kinds.get
        dtypes = self.roles.table.dtypes
        free = [name for name in self.roles.features if name not in self.roles.categorical]
        texts = [name for name in free if dtypes[name] == pl.String and frame[name].count()]
        for name in texts:
            self._numbers.setdefault(name, _Numbers()).add(frame[name], row_R)
        open_ = [name for name in texts if kind(name) != "name"]
        floats = {name for name in open_ if kind(name) != "date" and not self._numbers[name].row}
        dates = _parsed(frame, [name for name in open_ if kind(name) != "number" and name not in floats], _iso)
        for name in open_:
            self.kinds[name] = "number" if name in floats else "date" if name in dates else "name"
        self._empty = [name for name in self._empty if not self._filled(frame, name)]

    def _filled(self, frame: pl.DataFrame, name: str) -> bool:
        kind, dtype = self.kinds.get(name, "name"), frame.schema[name]
        cells = _text(name, dtype) if kind == "name" else _number(name, dtype, kind == "date")
        return frame.select(cells.count()).item() > 0

    def _check_metrics(self, frame: pl.DataFrame, known: pl.Series) -> None:
        for name in self.roles.metrics:
            values = frame.select(_number(name, frame.schema[name], False)).to_series()
            if len(wrong := (values.is_null() & known).arg_true()):
                held = frame[name][wrong[0]]
                raise ValueError(
                    f"metric column {name!r} of {self.roles.table.path} must hold a number in every row; "
                    f"row {self.rows + wrong[0] + 1} holds {'nothing' if held is None else repr(str(held))}"
                )

    def _no_class(self, count: str) -> ValueError:
        looks = "a number to predict" if all(map(is_decimal, self._texts)) else "an id or free text"
        column = f"column {self.roles.target!r} of {self.roles.table.path}"
        return ValueError(f"{column} has {count} different values; it looks like {looks}, not a class")


class _Numbers:
    """Of a column of text: how many values are numbers, decimal commas or not, and the first that is none."""

    def __init__(self):
        self.count = self.present = self.row = 0
        self.held = ""

    def add(self, text: pl.Series, row_R: np.ndarray) -> None:
        import polars as pl

        value = text.cast(pl.Float64, strict=False)
        odd = (value.is_null() & text.is_not_null()).arg_true()
        self.present += text.count()
        self.count += value.count()
        if len(odd):
            self.count += text[odd].str.replace(",", ".", literal=True).cast(pl.Float64, strict=False).count()
            if not self.row:
                self.row, self.held = int(row_R[odd[0]]), text[odd[0]]


def _kind(dtype: pl.DataType) -> Kind | None:
    """What a column's type says that it holds; text says nothing."""
    import polars as pl

    if dtype in (pl.String, pl.Null):
        return None
    return "number" if dtype.is_numeric() else "date" if dtype.is_temporal() else "name"


def _parsed(frame: pl.DataFrame, names: list[str], parse: Callable[[pl.Expr], pl.Expr]) -> set[str]:
    """The columns all of whose values parse."""
    import polars as pl

    whole = frame.select((parse(pl.col(name)).count() == pl.col(name).count()).alias(name) for name in names)
    return {name for name in names if whole[name][0]}


def _classes(texts: Iterable[str]) -> tuple[str, ...]:
    """The target's classes in order: of numbers where every text is one, otherwise of names."""
    if all(is_decimal(text) and math.isfinite(float(text)) for text in texts):
        return tuple(sorted(set(map(one_name, texts)), key=lambda name: (float(name), name)))
    return tuple(sorted(set(map(one_name, texts)) if all(map(is_truth, texts)) else texts))


class _Figures:
    """The second pass: the schema's figures, from the training rows."""

    def __init__(self, roles: _Roles, kinds: dict[str, Kind], train_R: np.ndarray):
        self.roles, self.kinds, self.train_R = roles, kinds, train_R
        self._row, self._outcome = 0, 0  # where the next chunk begins, in the file and in train_R
        self._names = {name: Counts() for name in roles.features if kinds[name] == "name"}
        numbers = [name for name in roles.features if kinds[name] != "name"]
        self._numbers = {name: i for i, name in enumerate([*numbers, *roles.metrics])}
        self._moments = Moments(len(self._numbers))

    def add(self, frame: pl.DataFrame) -> None:
        """The next chunk of the file."""
        import polars as pl

        text = frame.select(_text(self.roles.target, frame.schema[self.roles.target])).to_series()
        train_R = text.is_not_null().to_numpy(writable=True)
        known = int(train_R.sum())
        if self._outcome + known > len(self.train_R):
            raise _changed(self.roles.table.path)
        train_R[train_R] = self.train_R[self._outcome : self._outcome + known]
        row_R = self._row + np.flatnonzero(train_R)
        self._row, self._outcome = self._row + frame.height, self._outcome + known
        frame = frame.filter(pl.Series(train_R))
        dates = {name: self.kinds.get(name) == "date" for name in self._numbers}
        self._moments.add(_numbers(frame, dates), row_R)
        names = frame.select(_text(name, frame.schema[name]) for name in self._names)
        for name, counts in self._names.items():
            counts.add(names[name])

    def schema(self, classes: tuple[str, ...], odd: Mapping[str, str]) -> Schema:
        """The schema, of every column that tells something; `odd` has better reasons to leave some out."""
        columns: list[Category | Number] = []
        left_out = dict.fromkeys(sorted(self.roles.ignore), IGNORED)
        for name in self.roles.candidates:
            column = self._column(name)
            if isinstance(column, str):
                left_out[name] = odd.get(name, column)
            else:
                columns.append(column)
        if not columns:
            reasons = ", ".join(f"{name!r} {reason}" for name, reason in left_out.items())
            raise ValueError(f"no column of {self.roles.table.path} is left to learn from: {reasons}")
        return Schema(
            self.roles.target,
            classes,
            tuple(column for column in columns if isinstance(column, Category)),
            tuple(column for column in columns if isinstance(column, Number)),
            tuple(self._metric(name) for name in self.roles.metrics),
            left_out,
        )

    def _column(self, name: str) -> Category | Number | str:
        """The column, or why it is left out."""
        if name in self._names:
            return self._names[name].category(name)
        if name in self._numbers:
            return self._moments.number(self._numbers[name], name, self.kinds[name] == "date")
        return f"holds {self.roles.table.dtypes[name]}, no plain values"

    def _metric(self, name: str) -> Metric:
        low, high = self._moments.extremes(self._numbers[name])
        if low >= 0 and high <= 1:
            return Metric(name)
        if not math.isfinite(high - low):
            held = f"metric column {name!r} of {self.roles.table.path} reaches from {low:g} to {high:g}"
            raise ValueError(f"{held}, further than a number can tell; scale it down")
        # A constant is 0 on a scale of one; of a huge one, the next float is further away than that.
        return Metric(name, low, high if high > low else low + max(1.0, abs(low) * 2.0**-52))


def _write(chunks: Iterable[Rows], schema: Schema, count: int, folder: Path, path: Path) -> None:
    """Writes the rows with a target as `Rows.save` does, chunk by chunk; leaves no folder behind if it fails.

    Written, not mapped: a full disk is then an error, and what is written does not stay in memory."""
    folder.mkdir(parents=True)
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(open(folder / f"{name}.npy", "wb")) for name in Rows._fields]
            widths = [(len(schema.categories),), (len(schema.numbers),), (), (len(schema.metrics),)]
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
                raise _changed(path)
            for file in files:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        shutil.rmtree(folder)
        raise


def _changed(path: Path) -> ValueError:
    return ValueError(f"{path} changed while it was read; start again when it no longer does")
