"""The target: classes or a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from gradproof.data.cells import number_of, numbers_of, shown, text_of
from gradproof.data.fits import Fit, Fits
from gradproof.data.reading import NAMES, PLAIN, ColumnReading
from gradproof.data.roles import Roles
from gradproof.data.table import Table

if TYPE_CHECKING:
    import polars as pl

TaskName = Literal["classification", "regression"]
DISTINCT = 50  # different values of a float column up to which they are taken for classes
STRATA, ROWS_PER_STRATUM = 10, 10  # a split gives each tenth of the values its share of every part


class TargetReader:
    """Watches the target, chunk by chunk, for what it can be: `decide` says how its numbers are read, or that it has
    classes. `task` is what was asked for; None chooses."""

    def __init__(self, roles: Roles, task: TaskName | None):
        if task == "regression" and roles.metrics:
            raise ValueError("--metrics are predicted along with a class; omit them with --task regression")
        # A target with metrics has always been a class.
        self.task: TaskName | None = "classification" if task is None and roles.metrics else task
        self.roles, self._fits, self._typed, self._pointed = roles, Fits(), NAMES, False

    @property
    def possible(self) -> bool:
        """Whether it can be a number still."""
        return self.task == "regression" or (self.task is None and self._fit().reading.kind == "number")

    def add(self, target: pl.Series, row_R: np.ndarray) -> None:
        """The next values, clean and present."""
        import polars as pl

        if self.task == "classification":
            return
        if target.dtype == pl.String:
            self._fits.add(target, row_R)
            self._pointed |= bool(target.str.contains("[.eE]").any())
        elif target.dtype.is_numeric():
            self._typed, self._pointed = PLAIN, not target.dtype.is_integer()

    def decide(self) -> ColumnReading | None:
        """How the numbers are read; None where the target has classes. Without a task, `is_many` has the last word."""
        if self.task == "classification":
            return None
        fit = self._fit()
        if fit.reading.kind == "number":
            floating = self._pointed or fit.reading.format is not None
            return fit.reading if self.task == "regression" or floating else None
        if self.task == "regression":
            column = f"column {self.roles.target!r} of {self.roles.table.path}"
            nearest = self._fits.nearest()
            held = f"; row {nearest.row} holds {shown(nearest.held)}" if nearest.row else ""
            raise ValueError(
                f"--task regression needs a numeric target, and {column} is not numeric{held}; choose another target"
            )
        return None

    def _fit(self) -> Fit:
        return self._fits.decide() if self._fits.present else Fit(self._typed, 0)


def has_target(frame: pl.DataFrame, target: str, reading: ColumnReading | None) -> pl.Series:
    """Which rows of a clean frame have a target: one that is a number, where it is read as one."""
    dtype = frame.schema[target]
    cells = text_of(target, dtype) if reading is None else number_of(target, dtype, reading)
    return frame.select(cells).to_series().is_not_null()


def target_values(table: Table, target: str, reading: ColumnReading, chunk: int) -> np.ndarray:
    """value_R of the rows that have one: a pass over this one column."""
    chunks = [numbers_of(frame, [(target, reading, "")])[:, 0] for frame in table.chunks([target], chunk)]
    value_R = np.concatenate(chunks)
    return value_R[~np.isnan(value_R)]


def is_many(value_R: np.ndarray) -> bool:
    """Whether a float column has too many values for classes."""
    return len(np.unique(value_R)) > DISTINCT


def strata_of(value_R: np.ndarray) -> tuple[float, ...]:
    """The edges between the strata of the values, at quantiles; fewer strata of a small table."""
    strata = max(1, min(STRATA, len(value_R) // ROWS_PER_STRATUM))
    return tuple(np.unique(np.quantile(value_R, np.arange(1, strata) / strata)).tolist())


def stratum(value_R: np.ndarray, edges: tuple[float, ...]) -> np.ndarray:
    """int64: the stratum of each value, −1 where there is none."""
    return np.where(np.isnan(value_R), -1, np.searchsorted(np.array(edges), value_R, side="right")).astype(np.int64)
