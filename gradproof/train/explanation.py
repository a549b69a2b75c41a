"""Explanation: the columns that moved a decision most, compared with the mean training row."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.value_text import ValueText
from gradproof.models.model import Model
from gradproof.train.attribution import Attribution, attribute
from gradproof.train.baseline import read_baseline
from gradproof.train.predictor import Predictor

NAMED = 5  # columns of an explanation
CHUNK = 1024  # rows encoded at a time


class Contribution(NamedTuple):
    """How much a column of this value moved the logit of the class that was decided for."""

    column: str
    value: str
    contribution: float

    def text(self) -> str:
        return f"{self.column} = {self.value} ({self.contribution:+.2f})"


class Explanation(NamedTuple):
    """baseline + the contributions + `others`, those of all other columns, is the logit."""

    decision: str
    logit: float
    baseline: float  # the same class's logit for the mean training row
    because: list[Contribution]
    others: float

    def record(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**self._asdict(), "because": [contribution._asdict() for contribution in self.because]}


class Explainer:
    """`explainer(rows, decision_T)`: one explanation a row, None where there is no decision.

    Logits are the model's own, before the temperature. A copy in float64 on the CPU is asked: jumps are bracketed far
    closer than float32 can tell points apart."""

    def __init__(self, predictor: Predictor, baseline_I: Tensor):
        self.schema, self.baseline_I = predictor.schema, baseline_I.double()
        if list(baseline_I.shape) != [self.schema.inputs]:
            raise ValueError(f"the baseline must have {self.schema.inputs} inputs, not {list(baseline_I.shape)}")
        self.predictor = predictor
        self.encoder = Encoder(self.schema, "cpu", predictor.encoder.dtype)
        self.column_I = self.encoder.columns()
        self.text = ValueText(self.schema)

    @cached_property
    def model(self) -> Model:
        """Made for the first explanation: a service may never be asked for one."""
        return in_float64(self.predictor.model)

    def __call__(self, rows: Rows, decision_T: np.ndarray) -> list[Explanation | None]:
        explained: list[Explanation | None] = [None] * rows.count
        (decided,) = np.nonzero(decision_T >= 0)
        for i in range(0, len(decided), CHUNK):
            index_T = decided[i : i + CHUNK]
            some = rows.take(index_T)
            attributed = self.attribute(some, decision_T[index_T])
            for t, row in enumerate(index_T.tolist()):
                explained[row] = self._explanation(some, t, int(decision_T[row]), attributed)
        return explained

    def attribute(self, rows: Rows, class_T: np.ndarray) -> Attribution:
        """What each column contributes to the logits of these classes."""
        # The inputs are rounded as the model itself reads them.
        x_TI = self.encoder.inputs(rows).double()
        columns = len(self.schema.columns)
        return attribute(self.model, x_TI, torch.from_numpy(class_T), self.baseline_I, self.column_I, columns)

    def _explanation(self, rows: Rows, t: int, decision: int, attributed: Attribution) -> Explanation:
        column_C = attributed.column_TC[t].numpy()
        largest = np.argsort(-np.abs(column_C), kind="stable")[:NAMED].tolist()
        columns = self.schema.columns
        because = [Contribution(columns[c].name, self.text(rows, t, c), float(column_C[c])) for c in largest]
        others = float(column_C.sum() - column_C[largest].sum())
        ends = float(attributed.logit_T[t]), float(attributed.baseline_T[t])
        return Explanation(self.schema.classes[decision], *ends, because, others)


def load_explainer(path: Path, predictor: Predictor) -> Explainer:
    """For the decisions of a run's predictor."""
    return Explainer(predictor, read_baseline(path, Encoder(predictor.schema)))


def in_float64(model: Model) -> Model:
    """A copy on the CPU."""
    copy = type(model)(model.config, seed=None, dtype=torch.float64)
    copy.params.flat_P.copy_(model.params.flat_P)
    for name, buffer in model.buffers.items():
        copy.buffers[name].copy_(buffer)
    return copy
