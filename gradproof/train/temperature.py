"""Temperature: calibrates the probabilities of a model with a single number.

    p = softmax(z/T),  T the one of least Σ −log p + (log T)²/2s² over the validation rows

The second term says that T is likely near 1: with a few dozen rows, all of them right, the first alone would make the
model certain of everything. A temperature changes no decision. A run that selects by log loss fits it when it has
ended, and keeps it beside its checkpoints.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gradproof.files import write_atomically
from gradproof.train.score import log_loss

FILE = "temperature.json"
LOW, HIGH = 0.25, 8.0
SPREAD = 0.2  # s: temperatures of tables with thousands of validation rows lay between 0.9 and 1.3
NARROWED = 40  # each step leaves 62% of the stretch that holds the minimum


def fit_temperature(probability_TC: np.ndarray, outcome_T: np.ndarray) -> float:
    """The best temperature for these probabilities, by golden sections of log T: the loss has one minimum there."""
    z_TC = np.log(np.maximum(probability_TC, np.finfo(np.float64).tiny))
    z_TC -= z_TC.max(1, keepdims=True)

    def loss(log_t: float) -> float:
        e_TC = np.exp(z_TC / np.exp(log_t))
        total = len(outcome_T) * log_loss(e_TC / e_TC.sum(1, keepdims=True), outcome_T)
        return total + log_t**2 / (2 * SPREAD**2)

    low, high, ratio = float(np.log(LOW)), float(np.log(HIGH)), (5**0.5 - 1) / 2
    for _ in range(NARROWED):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return float(np.exp((low + high) / 2))


def keep_temperature(run: Path, temperature: float, rows: int) -> None:
    """Beside the run's checkpoints."""
    write_atomically(run / FILE, json.dumps({"temperature": temperature, "validation_rows": rows}) + "\n")


def read_temperature(run: Path) -> float:
    """1 where a run has fitted none."""
    file = run / FILE
    return float(json.loads(file.read_text(encoding="utf-8"))["temperature"]) if file.is_file() else 1.0
