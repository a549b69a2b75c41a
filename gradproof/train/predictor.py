"""Predictor: runs rows through a model and interprets its outputs: decision, probabilities and metrics, or a number
with an interval.

C classes, M metrics, V = 4: mean, spread, low and high.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.kernels.variants import Kernels
from gradproof.models.model import Model
from gradproof.ops import gaussian
from gradproof.ranks.mesh import Mesh
from gradproof.train.checked_path import UNCHECKED, CheckedPath, checked_path

NUMBERS = 1 << 23  # inputs encoded at a time
CHUNK = 8192  # rows a forward; bounds the memory that a large request or file takes
NORMAL = 1.6449  # spreads from the mean, between which 90% of a Gaussian lies
MANY = 256  # rows, from which on kernels are worth proving: that takes a second, once for a machine


class Predictions(NamedTuple):
    """One row each. A row with outputs that are not finite has decision −1 and NaN. If the target is a number, there
    are no probabilities, and any other row has decision 0."""

    decision_T: np.ndarray  # int64, the class
    probability_TC: np.ndarray  # float64
    metrics_TM: np.ndarray  # float64, in the metrics' own units
    gates_TE: np.ndarray  # float64
    energy_TR: np.ndarray  # float64; R = 1 with a sheaf router, whose self-disagreement it is, else 0
    number_TV: np.ndarray = np.empty((0, 0))  # float64; of a target that is a number: mean, spread, low, high

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return len(self.decision_T)

    def slice(self, start: int, stop: int) -> Predictions:
        """Rows start : stop, as views."""
        return Predictions(*(array[start:stop] for array in self))


class Predictor:
    """A model with its schema. `predictor(rows)` keeps no tape. A `fast` one decides
    many rows on a CPU by the kernels that are admitted, each checked at the first call of its path. Logits are divided
    by the `temperature`, which a run may have fitted (`train/temperature.py`); an interval reaches so many spreads
    (`reach`) from the mean to either side (`train/interval.py`)."""

    def __init__(
        self,
        model: Model,
        schema: Schema,
        *,
        device: torch.device | str = "cpu",
        fast: bool = False,
        temperature: float = 1.0,
        reach: float = NORMAL,
    ):
        here, there = (model.config.inputs, model.config.outputs), (schema.inputs, schema.outputs)
        if here != there:
            raise ValueError(
                f"the model has {here[0]} inputs and {here[1]} outputs, the schema {there[0]} and {there[1]}; "
                "give the schema that the model was trained on"
            )
        flat_P = model.params.flat_P
        if flat_P.device.type != torch.device(device).type:
            raise ValueError(f"the model is on {flat_P.device}, the predictor on {device}; move one of them")
        if not flat_P.isfinite().all():
            raise ValueError("the model's parameters are not all finite; take an earlier checkpoint")
        self.model, self.schema, self.fast = model, schema, fast and flat_P.is_cpu
        self.temperature, self.reach = temperature, reach
        self.mesh: Mesh | None = None  # whose ranks share the rows of `evaluate.predictions`
        self._paths: dict[tuple[int, int], CheckedPath[Kernels]] = {}  # by rows and threads
        self.encoder = Encoder(schema, flat_P.device, flat_P.dtype)
        self.low_M = np.array([metric.low for metric in schema.metrics], np.float64)
        self.span_M = np.array([metric.high - metric.low for metric in schema.metrics], np.float64)

    def __call__(self, rows: Rows) -> Predictions:
        """The predictions of all rows, in their order."""
        # Fewer rows at a time where they are wide: encoding them takes several arrays of inputs in float64.
        chunk = min(CHUNK, max(64, NUMBERS // self.schema.inputs))
        if rows.count <= chunk:
            return self._forward(rows)
        parts = [self._forward(rows.slice(i, i + chunk)) for i in range(0, rows.count, chunk)]
        return Predictions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _path(self, rows: int) -> CheckedPath[Kernels]:
        if not self.fast or rows < MANY:
            return UNCHECKED
        at = rows, torch.get_num_threads()
        if at not in self._paths:
            self._paths[at] = checked_path(self.model.shape(rows, self.model.params.flat_P.dtype), fused=False)
        return self._paths[at]

    @torch.no_grad()
    def _forward(self, rows: Rows) -> Predictions:
        C = len(self.schema.classes)
        if not rows.count:
            widths = (C, len(self.low_M), self.model.experts, int(self.model.has_energy))
            empty = [np.zeros((0, width)) for width in widths]
            numbers = [np.zeros((0, 4))] if self.schema.quantity else []
            return Predictions(np.zeros(0, np.int64), *empty, *numbers)
        model, x_TI = self.model, self.encoder.inputs(rows)
        output, saved = self._path(rows.count).forward(lambda kernels: model.apply(model.params, x_TI, None, kernels))
        logits_TO = output.logits_TO.cpu().double()
        probability_TC = torch.softmax(logits_TO[:, :C] / self.temperature, 1).numpy()
        metrics_TM = self.low_M + logits_TO[:, C : C + len(self.low_M)].numpy() * self.span_M
        gates_TE = output.gates_TE.cpu().double().numpy()
        energy_T = self.model.energy(saved)
        energy_TR = np.zeros((rows.count, 0)) if energy_T is None else energy_T.cpu().double().numpy()[:, None]
        number_TV = self._numbers(logits_TO)
        decision_T = probability_TC.argmax(1) if C else np.zeros(rows.count, np.int64)
        finite_T = logits_TO.isfinite().all(1).numpy()
        if not finite_T.all():
            decision_T[~finite_T] = -1
            for array in (probability_TC, metrics_TM, gates_TE, energy_TR, number_TV):
                if array.shape[1]:
                    array[~finite_T] = np.nan
        return Predictions(decision_T, probability_TC, metrics_TM, gates_TE, energy_TR, number_TV)

    def _numbers(self, y_TO: Tensor) -> np.ndarray:
        """number_TV in the target's own units; nothing where it has classes."""
        if (quantity := self.schema.quantity) is None:
            return np.empty((0, 0))
        mean_T = quantity.mean + quantity.std * y_TO[:, 0].numpy()
        spread_T = quantity.std * y_TO[:, 1].clamp(gaussian.LOW, gaussian.HIGH).exp().numpy()
        return np.stack([mean_T, spread_T, mean_T - self.reach * spread_T, mean_T + self.reach * spread_T], 1)
