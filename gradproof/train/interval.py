"""The prediction interval of a number: the multiple of the predicted spread that covers 90%.

    q = the 90% quantile of |t − m|/σ over the validation rows;   low, high = m ∓ q·σ

This is split conformal prediction: whatever the model's spreads are worth, a new row of the same kind lies inside with
the wanted chance. Kept beside the run's checkpoints, as a temperature is.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gradproof.files import write_atomically
from gradproof.train.predictor import NORMAL

FILE = "interval.json"
COVERED = 0.9


def fit_reach(number_TV: np.ndarray, value_T: np.ndarray) -> float:
    """q. Between the ordered scores 1 … n, a new one falls with even chances into any of n + 1 gaps: the quantile is at
    0.9·(n + 1), and with fewer than nine rows it is the largest."""
    score_T = np.sort(np.abs(value_T - number_TV[:, 0]) / number_TV[:, 1])
    place = COVERED * (len(score_T) + 1) - 1
    return float(np.interp(place, np.arange(len(score_T)), score_T))


def keep_reach(run: Path, reach: float, rows: int) -> None:
    """Beside the run's checkpoints."""
    record = {"covered": COVERED, "reach": reach, "validation_rows": rows}
    write_atomically(run / FILE, json.dumps(record) + "\n")


def read_reach(run: Path) -> float:
    """A Gaussian's where a run has fitted none."""
    file = run / FILE
    return float(json.loads(file.read_text(encoding="utf-8"))["reach"]) if file.is_file() else NORMAL
