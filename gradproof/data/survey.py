"""The first pass over a table: the target's classes, or that it is numeric, and the type of each column."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gradproof.data.cells import number_of, shown, text_of
from gradproof.data.fits import Fit, Fits
from gradproof.data.frame import Unread, class_slot
from gradproof.data.reading import BOOLEAN, ISO, NAMES, PLAIN, ColumnReading
from gradproof.data.roles import Roles
from gradproof.data.schema import is_decimal, is_truth, one_name
from gradproof.data.table import clean
from gradproof.data.target import TargetReader, TaskName, is_many, strata_of, stratum, target_values

if TYPE_CHECKING:
    import polars as pl

CLASSES = 1000

_ALMOST = 0.9  # of a column's values are numbers: that it is read as names is then worth a word


class Survey:
    """The first pass: the classes, each row's outcome and each feature's kind, over the rows with a target."""

    def __init__(self, roles: Roles, task: TaskName | None = "classification"):
        self.roles, self.rows = roles, 0
        self.number: ColumnReading | None = None  # how a target that is a number is read
        self.edges: tuple[float, ...] = ()  # between its strata
        self._target = TargetReader(roles, task)
        self.classes: tuple[str, ...] = ()
        self.outcome_R = np.empty(0, np.int64)
        self.fits: dict[str, Fit] = {}  # what each feature is read as
        self.present = dict.fromkeys(roles.features, 0)
        self._texts: dict[str, int] = {}  # those of the target, by their first row
        self._codes: list[np.ndarray] = []
        self._empty = list(roles.features)  # without a value so far
        self._held: str | None = None  # the first text of the target that counts as missing
        self._fits: dict[str, Fits] = {}  # of columns of text

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
        self._target.add(frame[self.roles.target], row_R)
        # Of a number that may be predicted, no more texts are kept than show that it has no classes.
        if len(self._texts) <= 2 * CLASSES or not self._target.possible:
            for name in text.unique(maintain_order=True):
                self._texts.setdefault(name, len(self._texts))
        if len(self._texts) > CLASSES and len(_classes(self._texts)) > CLASSES and not self._target.possible:
            raise self._no_class(f"more than {CLASSES}")
        self._codes.append(text.replace_strict(self._texts, default=-1, return_dtype=pl.Int32).to_numpy())
        self._settle(frame, row_R)

    def finish(self, chunk: int) -> None:
        """Sets `classes` or `number`, `outcome_R` and `fits`, or says what is wrong with the target or a feature. A
        target that is a number is read once more, in chunks of so many rows."""
        path, target = self.roles.table.path, self.roles.target
        if not self._texts:
            why = f", where {self._held!r} counts as missing" if self._held else ""
            raise ValueError(f"no row of {path} has a value in target column {target!r}{why}; choose another target")
        if not self._settle_number(chunk):
            self._settle_classes()
        if self._empty:
            raise ValueError(f"column {self._empty[0]!r} of {path} has no value in any row; exclude it with --ignore")
        self.fits = {name: self._fit(name) for name in self.roles.features}

    def _settle_number(self, chunk: int) -> bool:
        """Whether the target is a number to predict."""
        reading, table, target = self._target.decide(), self.roles.table, self.roles.target
        if reading is None:
            return False
        value_R = target_values(table, target, reading, chunk)
        if self._target.task is None and not is_many(value_R):
            return False
        if not len(value_R) or value_R.min() == value_R.max():
            raise ValueError(f"every row of {table.path} has the same {target}; there is nothing to predict")
        self.number, self.edges = reading, strata_of(value_R)
        self.outcome_R = stratum(value_R, self.edges)
        return True

    def _settle_classes(self) -> None:
        path, target = self.roles.table.path, self.roles.target
        if len(self._texts) > CLASSES and len(_classes(self._texts)) > CLASSES:
            raise self._no_class(f"more than {CLASSES}")
        if self._dated():
            raise self._no_class("")
        self.classes = _classes(self._texts)
        slot_of = np.array(list(map(class_slot(self.classes), self._texts)), np.int64)
        self.outcome_R = slot_of[np.concatenate(self._codes)]
        if len(self.classes) == 1:
            every = f"every row of {path} has {target} = {self.classes[0]!r}; a classifier needs two classes"
            dropped = self.dropped()
            raise ValueError(f"{every}; {dropped}" if dropped else every)
        if len(self.outcome_R) > 20 and len(self.classes) > len(self.outcome_R) / 2:
            raise self._no_class(f"{len(self.classes)}")

    @property
    def readings(self) -> dict[str, ColumnReading]:
        return {name: fit.reading for name, fit in self.fits.items()}

    def dropped(self) -> str:
        """A sentence on the rows without a target; empty if there are none."""
        if not (count := self.rows - len(self.outcome_R)):
            return ""
        why = f"; {self._held!r} counts as missing" if self._held else ""
        return f"{count:,} of {self.rows:,} rows have no {self.roles.target} and are left out{why}"

    def odd(self) -> dict[str, str]:
        """Why a column that holds almost nothing but numbers, say, is read as names."""
        nearest = {name: fits.nearest() for name, fits in self._fits.items() if self.fits[name].reading == NAMES}
        return {
            name: f"is read as names, since row {fit.row} holds {shown(fit.held)}, not {fit.reading.expected}"
            for name, fit in nearest.items()
            if fit.row and fit.fits >= _ALMOST * self._fits[name].present
        }

    def unread(self) -> dict[str, str]:
        """Which values of a column count as missing, as they do not fit what the others are read as."""
        unread = {name: self.present[name] - fit.fits for name, fit in self.fits.items() if name in self._fits}
        return {
            name: Unread(count, fit.row, shown(fit.held), fit.reading.expected).sentence(name)
            for name, count in unread.items()
            if count and (fit := self.fits[name]).reading != NAMES
        }

    def _settle(self, frame: pl.DataFrame, row_R: np.ndarray) -> None:
        """Counts what the columns of text could be read as."""
        import polars as pl

        for name in self.roles.features:
            if not (count := frame.select(text_of(name, frame.schema[name]).count()).item()):
                continue
            self.present[name] += count
            if self.roles.table.dtypes[name] == pl.String and name not in self.roles.categorical:
                self._fits.setdefault(name, Fits()).add(frame[name], row_R)
        self._empty = [name for name in self._empty if not self.present[name]]

    def _fit(self, name: str) -> Fit:
        """By its texts, or by its type."""
        if name in self._fits:
            return self._fits[name].decide()
        reading = NAMES if name in self.roles.categorical else _typed(self.roles.table.dtypes[name])
        return Fit(reading, self.present[name])

    def _dated(self) -> bool:
        """Whether the target holds dates."""
        import polars as pl

        dtype = self.roles.table.dtypes[self.roles.target]
        if dtype != pl.String:
            return dtype.is_temporal()
        texts = Fits()
        texts.add(pl.Series(list(self._texts), dtype=pl.String), np.arange(1, len(self._texts) + 1))
        return texts.decide().reading.kind == "date"

    def _check_metrics(self, frame: pl.DataFrame, known: pl.Series) -> None:
        for name in self.roles.metrics:
            values = frame.select(number_of(name, frame.schema[name], PLAIN)).to_series()
            if len(wrong := (values.is_null() & known).arg_true()):
                held = frame[name][wrong[0]]
                raise ValueError(
                    f"metric column {name!r} of {self.roles.table.path} must hold a number in every row; "
                    f"row {self.rows + wrong[0] + 1} holds {'nothing' if held is None else repr(str(held))}"
                )

    def _no_class(self, count: str) -> ValueError:
        number = all(map(is_decimal, self._texts))
        looks = "a numeric target" if number else "an id or free text"
        column = f"column {self.roles.target!r} of {self.roles.table.path}"
        if self._dated():
            return ValueError(f"{column} holds dates; choose another target")
        hint = "; --task regression predicts numbers" if number else ""
        return ValueError(f"{column} has {count} different values; it looks like {looks}, not a class" + hint)


def _typed(dtype: pl.DataType) -> ColumnReading:
    """What a column's type says that it holds."""
    import polars as pl

    if dtype == pl.Boolean:
        return BOOLEAN
    return PLAIN if dtype.is_numeric() else ISO if dtype.is_temporal() else NAMES


def _classes(texts: Iterable[str]) -> tuple[str, ...]:
    """The target's classes in order: of numbers where every text is one, otherwise of names."""
    if all(is_decimal(text) and math.isfinite(float(text)) for text in texts):
        return tuple(sorted(set(map(one_name, texts)), key=lambda name: (float(name), name)))
    return tuple(sorted(set(map(one_name, texts)) if all(map(is_truth, texts)) else texts))
