"""Baseline: the mean of the encoded training rows, which explanations start from. A finished run keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.source import open_source
from gradproof.data.split import TRAIN
from gradproof.files import write_atomically
from gradproof.train.evaluate import spaced
from gradproof.train.run import Run

FILE = "baseline.json"
MOST = 100_000  # training rows, evenly spaced, that the mean is taken of
CHUNK = 4096


def mean_input(encoder: Encoder, rows: Rows, index_R: np.ndarray) -> Tensor:
    """baseline_I, in float64."""
    index_T = spaced(index_R, MOST)
    total_I = torch.zeros(encoder.schema.inputs, dtype=torch.float64)
    for i in range(0, len(index_T), CHUNK):
        total_I += encoder.inputs(rows.take(index_T[i : i + CHUNK])).double().sum(0).cpu()
    return total_I / len(index_T)


def keep_baseline(run: Path, baseline_I: Tensor) -> None:
    """Beside the run's checkpoints."""
    write_atomically(run / FILE, json.dumps({"mean_input": baseline_I.tolist()}) + "\n")


def read_baseline(path: Path, encoder: Encoder) -> Tensor:
    """As kept. For a run from before it was: of the run's rows, or without these of the schema."""
    file = path / FILE
    if file.is_file():
        kept = json.loads(file.read_text(encoding="utf-8"))["mean_input"]
        if len(kept) == encoder.schema.inputs:
            return torch.tensor(kept, dtype=torch.float64)
    try:
        source = open_source(Run(path).config.source, path)
    except (OSError, ValueError):
        return _mean_numbers(encoder)
    return mean_input(encoder, source.rows, source.index(TRAIN))


def _mean_numbers(encoder: Encoder) -> Tensor:
    """A row of mean numbers and no names: what a schema alone knows of the training rows."""
    schema = encoder.schema
    numbers_RN = np.array([[number.mean for number in schema.numbers]], np.float64)
    none = np.full((1, len(schema.categories)), -1, np.int32)
    row = Rows(none, numbers_RN, np.zeros(1, np.int64), np.zeros((1, len(schema.metrics)), np.float32))
    return encoder.inputs(row)[0].double().cpu()
