"""Who is compared on a fold: our command line, HistGradientBoosting and LightGBM, each with its defaults.

Ours is always this checkout's code, wherever gradproof is installed, run as a user runs it: `python -m gradproof train`
in a process of its own. Shapes: T test rows, C classes, R rows, I inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from table_scores import regression_scores, scores
from table_sets import Fold

ROOT = Path(__file__).resolve().parents[1]
CONTESTANTS = ("ours", "hist", "lightgbm")
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
CATEGORIES = 254  # HistGradientBoosting has 255 bins, one of them for missing values
# A process begins with its parent's peak of memory, and this one may hold a table: a bare Python starts the command.
LAUNCHER = """
import resource, subprocess, sys, time
begun = time.perf_counter()
code = subprocess.call(sys.argv[2:])
seconds, usage = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write(f"{seconds} {usage.ru_maxrss}")
sys.exit(code)
"""


class CommandFailed(RuntimeError):
    """What gradproof said."""


class Cost(NamedTuple):
    """Wall seconds and the largest resident set of a command."""

    seconds: float
    peak_mib: float


def available(contestant: str) -> bool:
    """LightGBM is optional."""
    return contestant != "lightgbm" or find_spec("lightgbm") is not None


def measure(contestant: str, fold: Fold, options: Mapping[str, Any] = NO_OPTIONS, seed: int = 0) -> dict[str, float]:
    """Scores of one contestant on the test rows of a fold, and what its training cost."""
    if contestant == "ours":
        decision_T, probability_TC, cost = _ours(fold, options)
    else:
        decision_T, probability_TC, cost = _trees(contestant, fold, options, seed)
    truth_T = np.searchsorted(fold.classes, fold.test[fold.target].cast(pl.String).to_numpy())
    return {**scores(truth_T, decision_T, probability_TC), **cost}


def measure_regression(
    contestant: str, fold: Fold, options: Mapping[str, Any] = NO_OPTIONS, seed: int = 0
) -> dict[str, float]:
    """The same for a number; only ours has intervals."""
    truth_T = fold.test[fold.target].to_numpy()
    if contestant == "ours":
        with tempfile.TemporaryDirectory() as folder:
            config = _config(Path(folder), options)
            predicted, cost = _train_and_predict(fold, Path(folder), [*config, "--task", "regression"])
        intervals = (predicted[name].cast(pl.Float64).to_numpy() for name in ("mean", "low", "high"))
        return {**regression_scores(truth_T, *intervals), **cost}
    begun = time.perf_counter()
    columns = TreeColumns(fold)
    model = _regressor(contestant, columns, seed)
    columns.fit(model, fold.train, fold.train[fold.target].to_numpy())
    seconds = time.perf_counter() - begun
    return {**regression_scores(truth_T, model.predict(columns.matrix(fold.test))), "seconds": seconds}


def run_gradproof(*arguments: str | Path, folder: Path) -> Cost:
    """`gradproof ARGUMENTS` with this checkout's code, run in `folder`; CommandFailed with its last words."""
    told = folder / "cost.txt"
    command = [sys.executable, "-ISc", LAUNCHER, str(told), sys.executable, "-m", "gradproof", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode:
        said = " ".join(line.strip(" │╭╰─╮╯") for line in (ended.stderr or ended.stdout).splitlines()[-6:]).strip()
        raise CommandFailed(f"gradproof {arguments[0]} ended with exit code {ended.returncode}: {said}")
    seconds, kilobytes = told.read_text().split()
    return Cost(float(seconds), int(kilobytes) / 1024)


def _ours(fold: Fold, options: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Without `options`, no more is said to the command than the file and the target."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predicted, cost = _train_and_predict(fold, folder, _config(folder, options))
    classes = fold.classes
    if missing := [c for c in classes if f"p_{c}" not in predicted.columns]:
        raise CommandFailed(
            f"gradproof predict wrote no column p_{missing[0]}; it wrote {', '.join(predicted.columns)}"
        )
    if undecided := predicted["decision"].null_count():
        raise CommandFailed(f"gradproof predict left {undecided} of {predicted.height} rows undecided")
    decision_T = np.searchsorted(classes, predicted["decision"].to_numpy())
    return decision_T, predicted.select(pl.col([f"p_{c}" for c in classes]).cast(pl.Float64)).to_numpy(), cost


def _config(folder: Path, options: Mapping[str, Any]) -> list[Path]:
    """A config file of these options; without any none is needed."""
    if not options:
        return []
    file = folder / "options.json"
    file.write_text(json.dumps(options))
    return [file]


def _train_and_predict(fold: Fold, folder: Path, more: Sequence[str | Path]) -> tuple[pl.DataFrame, dict[str, float]]:
    """What `predict` writes for the test rows, and what `train` cost. The test file has no target."""
    train, test, run, out = (folder / name for name in ("train.csv", "test.csv", "run", "predicted.csv"))
    fold.train.write_csv(train)
    fold.test.drop(fold.target).write_csv(test)
    cost = run_gradproof("train", *more, "--data", train, "--target", fold.target, "--out", run, folder=folder)
    run_gradproof("predict", run, "--data", test, "--out", out, folder=folder)
    # A class may be called 0 or true: its name is compared as text.
    return pl.read_csv(out, schema_overrides={"decision": pl.String}), cost._asdict()


def _trees(
    contestant: str, fold: Fold, options: Mapping[str, Any], seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """HistGradientBoosting or LightGBM; the seconds include making numbers of names, as ours do."""
    begun = time.perf_counter()
    columns = TreeColumns(fold)
    model = _classifier(contestant, columns, seed, options)
    columns.fit(model, fold.train, fold.train[fold.target].cast(pl.String).to_numpy())
    seconds = time.perf_counter() - begun
    probability_TC = model.predict_proba(columns.matrix(fold.test))
    assert list(model.classes_) == fold.classes
    return probability_TC.argmax(1), probability_TC, {"seconds": seconds}


class TreeColumns:
    """A table as trees take it: numbers as they are, names as categories, nothing imputed.

    Names beyond the 253 most frequent share a category. A column in which most values are distinct is left out, as
    ours leaves it out."""

    def __init__(self, fold: Fold):
        from sklearn.preprocessing import OrdinalEncoder

        inputs = fold.train.drop(fold.target)
        texts = [c for c in inputs.columns if inputs[c].dtype == pl.String]
        self.names = [c for c in texts if inputs[c].n_unique() <= max(CATEGORIES, inputs.height // 2)]
        self.numbers = [c for c in inputs.columns if c not in texts]
        self.coder = OrdinalEncoder(
            handle_unknown="use_encoded_value",
            unknown_value=-1,
            encoded_missing_value=-1,
            max_categories=CATEGORIES,
        )
        if self.names:
            self.coder.fit(self._objects(inputs))

    @property
    def categorical(self) -> list[bool]:
        """For each input, whether it is a category."""
        return [False] * len(self.numbers) + [True] * len(self.names)

    def matrix(self, frame: pl.DataFrame) -> np.ndarray:
        """x_RI, NaN where a value is missing or a name was never seen."""
        parts = [frame.select(pl.col(self.numbers).cast(pl.Float64)).to_numpy()] if self.numbers else []
        if self.names:
            codes = self.coder.transform(self._objects(frame)).astype(np.float64)
            parts.append(np.where(codes < 0, np.nan, codes))
        return np.concatenate(parts, 1)

    def fit(self, model: Any, frame: pl.DataFrame, target_R: np.ndarray) -> None:
        """LightGBM is told of categories here, HistGradientBoosting when it is made."""
        numbers = [i for i, is_name in enumerate(self.categorical) if is_name]
        told = {"categorical_feature": numbers} if numbers and type(model).__module__.startswith("lightgbm") else {}
        model.fit(self.matrix(frame), target_R, **told)

    def _objects(self, frame: pl.DataFrame) -> np.ndarray:
        return frame.select(self.names).to_numpy().astype(object)


def _classifier(contestant: str, columns: TreeColumns, seed: int, options: Mapping[str, Any]) -> Any:
    if contestant == "lightgbm":
        from lightgbm import LGBMClassifier

        return LGBMClassifier(random_state=seed, verbose=-1, **options)
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(categorical_features=columns.categorical, random_state=seed, **options)


def _regressor(contestant: str, columns: TreeColumns, seed: int) -> Any:
    if contestant == "lightgbm":
        from lightgbm import LGBMRegressor

        return LGBMRegressor(random_state=seed, verbose=-1)
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(categorical_features=columns.categorical, random_state=seed)
