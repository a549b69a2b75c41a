"""CheckedFile: an exported model that reproduced the predictions of its run before it was put in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gradproof.data.rows import Rows
from gradproof.data.source import open_source
from gradproof.data.split import TEST
from gradproof.export.description import describe, onnx_lesson, torch_lesson
from gradproof.export.frozen import freeze
from gradproof.export.onnx_file import need_onnx, run_onnx, write_onnx
from gradproof.export.torch_file import run_torch, write_torch
from gradproof.files import sync
from gradproof.train.evaluate import spaced
from gradproof.train.load import load_predictor
from gradproof.train.predictor import Predictor
from gradproof.train.run import Run

ROWS = 5000  # of the test part, at most
CHUNK = 500  # rows at a time: every expert is computed for each
BOUND = 1e-5
NEAR_TIE = 1e-6  # of scores: which expert is chosen is up to rounding, there and here

ExportFormat = Literal["onnx", "torch"]
WAYS: dict[str, tuple[Callable[..., None], Callable[[Path], Any], Callable[..., str]]] = {
    "onnx": (write_onnx, run_onnx, onnx_lesson),
    "torch": (write_torch, run_torch, torch_lesson),
}


class Differs(Exception):
    """The file does not decide as the run does."""


@dataclass(frozen=True)
class CheckedFile:
    """`difference` is the largest one of probabilities, over all rows but the `near_ties`."""

    out: str
    format: ExportFormat
    bytes: int
    rows: int
    near_ties: int
    difference: float
    lesson: str  # how to call it


def export(run: Path, form: ExportFormat, out: Path) -> CheckedFile:
    """Writes the run's decision to `out`. Differs where it is another than the run's own: then nothing is written."""
    if form == "onnx":
        need_onnx()
    if not out.parent.is_dir() or out.is_dir():
        raise ValueError(f"{out} must be a file in a folder that exists")
    predictor, _ = load_predictor(run)
    if predictor.schema.quantity:
        raise ValueError(f"{run} predicts a number; only classifiers can be exported so far")
    source = open_source(Run(run).config.source, run)
    rows = source.rows.take(spaced(source.index(TEST), ROWS))
    write, runner, lesson = WAYS[form]
    schema = predictor.schema
    columns = len(schema.categories), len(schema.numbers)
    with tempfile.TemporaryDirectory(prefix=f".partial-{out.name}-", dir=out.parent) as folder:
        file = Path(folder) / f"decision{'.onnx' if form == 'onnx' else '.pt2'}"
        write(file, freeze(predictor), columns, describe(schema))
        near_ties, difference = _compare(predictor, rows, runner(file))
        if not difference < BOUND:
            raise Differs(
                f"the {form} file differs from the run's own predictions by {difference:.1e} on {rows.count:,} test "
                f"rows, and {BOUND:.0e} is allowed; nothing was written"
            )
        size = file.stat().st_size
        sync(file)
        os.replace(file, out)
    sync(out.parent)
    return CheckedFile(str(out), form, size, rows.count, near_ties, difference, lesson(str(out), schema))


def _compare(predictor: Predictor, rows: Rows, run: Callable[..., list[np.ndarray]]) -> tuple[int, float]:
    """Near-ties, and the largest difference of the other rows' probabilities and of their metrics on [0, 1]."""
    near_ties, largest = 0, 0.0
    for start in range(0, rows.count, CHUNK):
        some = rows.slice(start, start + CHUNK)
        ours = predictor(some)
        theirs = run(np.ascontiguousarray(some.codes_RC, np.int64), np.ascontiguousarray(some.numbers_RN, np.float64))
        difference_TD = [np.abs(theirs[0] - ours.probability_TC)]
        if len(theirs) > 1:
            difference_TD.append(np.abs(theirs[1] - ours.metrics_TM) / predictor.span_M)
        with torch.no_grad():
            margin_T = predictor.model.margin(predictor.model.params, predictor.encoder.inputs(some)).cpu().numpy()
        tied_T = margin_T < NEAR_TIE
        near_ties += int(tied_T.sum())
        # A NaN is a difference too: `max` would pass it over.
        found_T = np.nan_to_num(np.concatenate(difference_TD, 1), nan=np.inf).max(1)
        largest = max(largest, float(found_T[~tied_T].max(initial=0.0)))
    return near_ties, largest
