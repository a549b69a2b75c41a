"""The first pass over a table: the target's classes, and what each column holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np

from gradproof.data.cells import iso, number_of, shown, text_of
from gradproof.data.frame import class_slot
from gradproof.data.roles import Roles
from gradproof.data.schema import is_decimal, is_truth, one_name
from gradproof.data.table import clean

if TYPE_CHECKING:
    import polars as pl

CLASSES = 1000

_ALMOST = 0.9  # of a column's values are numbers: that it is read as names is then worth a word

ColumnKind = Literal["number", "date", "name"]


class Survey:
    """The first pass: the classes, each row's outcome and each feature's kind, over the rows with a target."""

    def __init__(self, roles: Roles):
        self.roles, self.rows = roles, 0
        self.classes: tuple[str, ...] = ()
        self.outcome_R = np.empty(0, np.int64)
        self.kinds: dict[str, ColumnKind] = {}
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
        text = frame.select(text_of(self.roles.target, frame.schema[self.roles.target])).to_series()
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
        slot_of = np.array(list(map(class_slot(self.classes), self._texts)), np.int64)
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
            name: f"is read as names, since row {numbers.row} holds {shown(numbers.held)}, no number"
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
        dates = _parsed(frame, [name for name in open_ if kind(name) != "number" and name not in floats], iso)
        for name in open_:
            self.kinds[name] = "number" if name in floats else "date" if name in dates else "name"
        self._empty = [name for name in self._empty if not self._filled(frame, name)]

    def _filled(self, frame: pl.DataFrame, name: str) -> bool:
        kind, dtype = self.kinds.get(name, "name"), frame.schema[name]
        cells = text_of(name, dtype) if kind == "name" else number_of(name, dtype, kind == "date")
        return frame.select(cells.count()).item() > 0

    def _check_metrics(self, frame: pl.DataFrame, known: pl.Series) -> None:
        for name in self.roles.metrics:
            values = frame.select(number_of(name, frame.schema[name], False)).to_series()
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


def _kind(dtype: pl.DataType) -> ColumnKind | None:
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
