"""The default configuration on tables whose target is a number, against scikit-learn's HistGradientBoostingRegressor.

    python benchmarks/regression.py --json benchmarks/results/regression.json
    python benchmarks/regression.py --tables even --repeats 1

diabetes comes with scikit-learn. even (Friedman's first function, 4,000 rows) and uneven (10,000 rows, one column of
names) are generated: noise of 1 in every row, and of 0.3 to 1.5 depending on a column. Each fold trains by `gradproof
train --data FOLD.csv --target COL`, no other option, and predicts the rows left out. `best` is the RMSE of the noise
alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tables import Silent

TABLES = {"diabetes": 3, "even": 1, "uneven": 1}  # how often five folds


def table(name: str) -> tuple[pl.DataFrame, np.ndarray | None]:
    """The table with its target y, and the noise in it where that is known."""
    rng = np.random.default_rng(1)
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        bunch: Any = load_diabetes()
        return pl.DataFrame({**_columns(bunch.data), "y": bunch.target}), None
    if name == "even":
        x_RD = rng.random((4000, 10))
        f_R = 10 * np.sin(np.pi * x_RD[:, 0] * x_RD[:, 1]) + 20 * (x_RD[:, 2] - 0.5) ** 2 + x_RD[:, 3:5] @ [10, 5]
        noise_R = rng.normal(size=4000)
        return pl.DataFrame({**_columns(x_RD), "y": f_R + noise_R}), noise_R
    x_RD, kind_R, level = rng.normal(size=(10_000, 5)), rng.integers(0, 6, 10_000), 2 * rng.normal(size=6)
    f_R = level[kind_R] + 2 * np.tanh(2 * x_RD[:, 0]) + x_RD[:, 1] * x_RD[:, 2] * (kind_R % 2) + np.abs(x_RD[:, 3])
    noise_R = (0.3 + 1.2 / (1 + np.exp(-2 * x_RD[:, 4]))) * rng.normal(size=10_000)
    return pl.DataFrame({**_columns(x_RD), "kind": [f"k{k}" for k in kind_R], "y": f_R + noise_R}), noise_R


def _columns(x_RD: np.ndarray) -> dict[str, np.ndarray]:
    return {f"x{d}": x_RD[:, d] for d in range(x_RD.shape[1])}


def ours(train: pl.DataFrame, test: pl.DataFrame, minutes: float | None) -> dict[str, float]:
    """RMSE, coverage, width and seconds of the default run on these rows."""
    from gradproof.serve.predict import PredictedNumbers, predict_file
    from gradproof.train.load import load_predictor
    from gradproof.train.loop import Trainer
    from gradproof.train.report import best_of
    from gradproof.train.run import start

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train.write_csv(folder / "train.csv")
        test.write_csv(folder / "test.csv")
        begun = time.perf_counter()
        given = {"data": str(folder / "train.csv"), "target": "y", **({"minutes": minutes} if minutes else {})}
        run = start(folder / "run", given, resume=False)
        trainer = Trainer(run, Silent())
        trainer.settle()
        trainer.train()
        best_of(trainer)
        seconds = time.perf_counter() - begun
        scored = predict_file(load_predictor(run.path)[0], folder / "test.csv", folder / "out.csv")
        written = pl.read_csv(folder / "out.csv")
        assert isinstance(scored, PredictedNumbers) and scored.rmse is not None and scored.coverage is not None
        width = float((written["high"] - written["low"]).to_numpy().mean())
        figures = dict(rmse=scored.rmse, coverage=scored.coverage, width=width, seconds=seconds)
        return {**figures, "steps": trainer.at.step, "best_step": float(trainer.at.best_step or 0)}


def theirs(train: pl.DataFrame, test: pl.DataFrame) -> float:
    """RMSE of HistGradientBoostingRegressor, names as categories."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def matrix(frame: pl.DataFrame) -> np.ndarray:
        codes = {"kind": pl.col("kind").str.slice(1).cast(pl.Float64)} if "kind" in frame.columns else {}
        return frame.drop("y").with_columns(**codes).to_numpy()

    categorical = [column == "kind" for column in train.columns if column != "y"]
    model = HistGradientBoostingRegressor(categorical_features=categorical, random_state=0)  # type: ignore[arg-type]
    model.fit(matrix(train), train["y"].to_numpy())
    return float(np.sqrt(((model.predict(matrix(test)) - test["y"].to_numpy()) ** 2).mean()))


def fold(name: str, repeat: int, number: int, minutes: float | None) -> dict[str, Any]:
    """Both on one fold."""
    from sklearn.model_selection import KFold

    frame, noise_R = table(name)
    train, test = list(KFold(5, shuffle=True, random_state=repeat).split(frame))[number]
    best = None if noise_R is None else float(np.sqrt((noise_R[test] ** 2).mean()))
    figures = dict(**ours(frame[train], frame[test], minutes), hist_gradient_boosting=theirs(frame[train], frame[test]))
    return dict(table=name, repeat=repeat, fold=number, **figures, best=best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--repeats", type=int, help="of the five folds; default: three for diabetes, else one")
    parser.add_argument("--minutes", type=float, help="of training a fold, on a busy machine; default: the recipe's")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    print(f"{'table':10}{'gradproof':>11}{'HistGB':>9}{'ratio':>8}{'best':>8}{'coverage':>10}{'seconds':>9}")
    for name in options.tables.split(","):
        folds = [fold(name, r, f, options.minutes) for r in range(options.repeats or TABLES[name]) for f in range(5)]
        results += folds
        mean = {key: np.mean([one[key] for one in folds]) for key in ("rmse", "hist_gradient_boosting", "coverage")}
        best = "" if folds[0]["best"] is None else f"{np.mean([one['best'] for one in folds]):.3f}"
        ratio, seconds = mean["rmse"] / mean["hist_gradient_boosting"], np.mean([one["seconds"] for one in folds])
        line = f"{name:10}{mean['rmse']:>11.3f}{mean['hist_gradient_boosting']:>9.3f}{ratio:>8.3f}{best:>8}"
        print(f"{line}{mean['coverage']:>10.1%}{seconds:>9.1f}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
