"""Predict: runs a file through a model, and formats predictions as records and tables."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradproof.data.cells import unreadable
from gradproof.data.frame import Unread, encode
from gradproof.data.roles import check_columns
from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.data.table import Table
from gradproof.files import sync
from gradproof.train.costs import decide, total_cost
from gradproof.train.explanation import NAMED, Explainer, Explanation
from gradproof.train.number_score import true_values
from gradproof.train.predictor import Predictions, Predictor

if TYPE_CHECKING:
    import polars as pl


def as_records(
    predictions: Predictions, schema: Schema, unread: Mapping[int, list[str]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Plain data for JSON, one object a row. Where the model's outputs are not finite, every value is None. `unread`
    are, by row, the columns whose value could not be read."""
    if schema.quantity:
        return _number_records(predictions, unread)
    classes, metrics = schema.classes, [metric.name for metric in schema.metrics]
    records = [
        {
            "decision": classes[decision] if decision >= 0 else None,
            "probability": p_C[decision],
            "probabilities": dict(zip(classes, p_C, strict=True)),
            "metrics": dict(zip(metrics, m_M, strict=True)),
            "gates": g_E,
            **({"router_energy": e_R[0]} if e_R else {}),
        }
        for decision, p_C, m_M, g_E, e_R in zip(*(array.tolist() for array in predictions[:5]), strict=True)
    ]
    for record in records:
        if record["decision"] is None:
            record |= {key: None for key in ("probability", "router_energy") if key in record}
            record["gates"] = [None] * len(record["gates"])
            record |= {key: dict.fromkeys(record[key]) for key in ("probabilities", "metrics")}
    for i, columns in unread.items():
        records[i]["unread"] = columns
    return records


def _number_records(predictions: Predictions, unread: Mapping[int, list[str]]) -> list[dict[str, Any]]:
    """mean, low, high and gates."""
    records = []
    for (mean, _, low, high), gates, energy in zip(
        *(array.tolist() for array in (predictions.number_TV, predictions.gates_TE, predictions.energy_TR)), strict=True
    ):
        record = {"mean": mean, "low": low, "high": high, "gates": gates}
        records.append(record | ({"router_energy": energy[0]} if energy else {}))
    for i in np.flatnonzero(predictions.decision_T < 0).tolist():
        nothing = dict.fromkeys(records[i])
        records[i] = nothing | {"gates": [None] * len(records[i]["gates"])}
    for i, columns in unread.items():
        records[i]["unread"] = columns
    return records


class PredictedFile(NamedTuple):
    """What `predict_file` counted; accuracy is None where no true outcome was known. `unread` are the values, by
    column, that could not be read. `cost` is the mean over the rows with a known outcome, where costs were given;
    `explanations` has one record a row, where they are recorded."""

    rows: int
    known: int
    accuracy: float | None
    unread: dict[str, Unread]
    cost: float | None = None
    explanations: Sequence[dict[str, Any] | None] = ()


class PredictedNumbers(NamedTuple):
    """The same where the target is a number."""

    rows: int
    known: int
    rmse: float | None
    coverage: float | None
    unread: dict[str, Unread]


def predict_file(
    predictor: Predictor,
    path: Path,
    out: Path | None,
    keep: Sequence[str] | None = (),
    cost_C: np.ndarray | None = None,
    explainer: Explainer | None = None,
    record_explanations: bool = False,
) -> PredictedFile | PredictedNumbers:
    """Streams the CSV or Parquet file `path` through the model to `out` (by its suffix), or as CSV to standard output.

    The columns to `keep`, or all of them where it is None, are copied as they are and come first. With `cost_C`, what a
    mistake costs for rows of each class, decisions are those of the lowest expected cost. With an `explainer` the
    columns because_1 … come last. `out` appears complete or not at all."""
    tally = _NumberTally() if predictor.schema.quantity else _Tally(cost_C, explainer, record_explanations)
    table = Table(path)
    written = _written(predictor, explainer)
    kept = _kept(written, table, keep, as_text=out is None or Path(out).suffix == ".csv")
    frames = tally.frames(predictor, table, kept)
    if out is None:
        _write_csv(frames, sys.stdout)
        return tally.scored()
    out = Path(out)
    _check_out(out, Path(path))
    with tempfile.TemporaryDirectory(prefix=f".partial-{out.name}-", dir=out.parent) as folder:
        whole = Path(folder) / out.name
        if out.suffix == ".csv":
            with open(whole, "w", encoding="utf-8", newline="") as file:
                _write_csv(frames, file)
        else:
            _write_parquet(frames, Path(folder), whole)
        sync(whole)
        os.replace(whole, out)
    sync(out.parent)
    return tally.scored()


def _check_out(out: Path, path: Path) -> None:
    """Before anything is read: a long prediction must not fail at its end."""
    if out.suffix not in (".csv", ".parquet"):
        raise ValueError(f"{out} must end in .csv or .parquet, which selects the format")
    if not out.parent.is_dir():
        raise ValueError(f"the folder {out.parent} of {out.name} does not exist; create it first")
    if out.is_dir():
        raise ValueError(f"{out} is a folder; name a file")
    if out.resolve() == path.resolve():
        raise ValueError(f"{out} is the input; name another file")


def _kept(written: Sequence[str], table: Table, keep: Sequence[str] | None, as_text: bool) -> list[str]:
    """The columns that are copied, checked before anything is read."""
    kept = table.columns if keep is None else list(dict.fromkeys(keep))
    if not kept:
        return []
    check_columns(table.columns, kept[0], kept[1:])
    if clash := [name for name in kept if name in written]:
        others = "name the columns to keep without it" if keep is None else "omit it"
        raise ValueError(f"--keep: the predictions have a column {clash[0]!r} of their own; {others}, or rename it")
    if as_text and (nested := [name for name in kept if unreadable(table.dtypes[name])]):
        raise ValueError(
            f"--keep: CSV cannot hold column {nested[0]!r} of type {table.dtypes[nested[0]]}; write .parquet instead"
        )
    return kept


def _written(predictor: Predictor, explainer: Explainer | None) -> list[str]:
    """The columns of predictions and of their explanations."""
    schema = predictor.schema
    C, N, M = len(schema.categories), len(schema.numbers), schema.measured
    none = Rows(np.empty((0, C), np.int32), np.empty((0, N)), np.empty(0, np.int64), np.empty((0, M), np.float32))
    return as_frame(predictor(none), schema, None if explainer is None else []).columns


class _Tally:
    """Counts rows, right decisions and costs while the frames pass; explains them, where somebody can."""

    def __init__(self, cost_C: np.ndarray | None, explainer: Explainer | None, record: bool):
        self.explainer, self.record = explainer, record
        self.explanations: list[dict[str, Any] | None] = []
        self.rows = self.known = self.right = 0
        self.cost_C, self.cost = cost_C, 0.0
        self.unread: dict[str, Unread] = {}

    def frames(self, predictor: Predictor, table: Table, kept: list[str]) -> Iterator[pl.DataFrame]:
        for frame in table.chunks(raw=True):
            rows = encode(predictor.schema, frame, self.rows, self.unread)
            predictions = decide(predictor(rows), self.cost_C)
            self.rows += rows.count
            self.known += int((rows.outcome_R >= 0).sum())
            self.count(rows, predictions, predictor.schema)
            decided = as_frame(predictions, predictor.schema, self._explained(rows, predictions))
            yield frame.select(kept).hstack(decided) if kept else decided

    def count(self, rows: Rows, predictions: Predictions, schema: Schema) -> None:
        known_R = rows.outcome_R >= 0
        self.right += int((known_R & (rows.outcome_R == predictions.decision_T)).sum())
        if self.cost_C is not None:
            self.cost += total_cost(predictions.decision_T[known_R], rows.outcome_R[known_R], self.cost_C)

    def _explained(self, rows: Rows, predictions: Predictions) -> list[Explanation | None] | None:
        if self.explainer is None:
            return None
        explanations = self.explainer(rows, predictions.decision_T)
        if self.record:
            self.explanations += [explanation and explanation.record() for explanation in explanations]
        return explanations

    def scored(self) -> PredictedFile | PredictedNumbers:
        accuracy = self.right / self.known if self.known else None
        cost = self.cost / self.known if self.known and self.cost_C is not None else None
        return PredictedFile(self.rows, self.known, accuracy, self.unread, cost, self.explanations)


class _NumberTally(_Tally):
    """Adds up errors, and counts values inside their intervals."""

    def __init__(self):
        super().__init__(None, None, False)
        self.squares, self.inside = 0.0, 0

    def count(self, rows: Rows, predictions: Predictions, schema: Schema) -> None:
        known_T = rows.outcome_R >= 0
        value_T, (mean_T, _, low_T, high_T) = true_values(rows, schema)[known_T], predictions.number_TV[known_T].T
        self.squares += float(((mean_T - value_T) ** 2).sum())
        self.inside += int(((low_T <= value_T) & (value_T <= high_T)).sum())

    def scored(self) -> PredictedNumbers:
        if not self.known:
            return PredictedNumbers(self.rows, 0, None, None, self.unread)
        rmse, coverage = (self.squares / self.known) ** 0.5, self.inside / self.known
        return PredictedNumbers(self.rows, self.known, rmse, coverage, self.unread)


def as_frame(
    predictions: Predictions, schema: Schema, explanations: Sequence[Explanation | None] | None = None
) -> pl.DataFrame:
    """decision, probability, p_<class>…, <metric>…, gate_<e>…, with a sheaf router router_energy, with explanations
    because_1 …; a name already taken gets a trailing underscore. Of a number: mean, low, high, gate_<e>…"""
    import polars as pl

    routing = [f"gate_{e}" for e in range(predictions.gates_TE.shape[1])]
    routing += ["router_energy"] * predictions.energy_TR.shape[1]
    if schema.quantity:
        values_TV = np.concatenate([predictions.number_TV[:, [0, 2, 3]], *predictions[3:5]], 1)
        return pl.DataFrame(dict(zip(["mean", "low", "high", *routing], values_TV.T, strict=True))).fill_nan(None)
    decision_T, p_TC = predictions.decision_T, predictions.probability_TC
    names = [f"p_{c}" for c in schema.classes] + [metric.name for metric in schema.metrics] + routing
    columns = {
        "decision": pl.Series([None if d < 0 else schema.classes[d] for d in decision_T.tolist()], dtype=pl.String),
        "probability": p_TC[np.arange(len(p_TC)), decision_T],
    }
    values = list(np.concatenate(predictions[1:5], 1).T)
    if explanations is not None:
        names += [f"because_{n + 1}" for n in range(NAMED)]
        values += [pl.Series([_because(e, n) for e in explanations], dtype=pl.String) for n in range(NAMED)]
    for name, values_T in zip(names, values, strict=True):
        while name in columns:
            name += "_"
        columns[name] = values_T
    return pl.DataFrame(columns).fill_nan(None)


def _because(explanation: Explanation | None, n: int) -> str | None:
    """The n-th reason, where there is one."""
    return explanation.because[n].text() if explanation and n < len(explanation.because) else None


def _write_csv(frames: Iterator[pl.DataFrame], file: Any) -> None:
    for i, frame in enumerate(frames):
        file.write(frame.write_csv(include_header=i == 0))


def _write_parquet(frames: Iterator[pl.DataFrame], folder: Path, whole: Path) -> None:
    """A part for each chunk, then all parts as a stream into one file: a table need not fit into memory."""
    import polars as pl

    parts = []
    for i, frame in enumerate(frames):
        parts.append(folder / f"part-{i}.parquet")
        frame.write_parquet(parts[-1])
    pl.scan_parquet(parts, glob=False).sink_parquet(whole)
