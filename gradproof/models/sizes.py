"""What each size costs, predicted without allocating it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from gradproof.models.dense import DenseConfig
from gradproof.models.model import SIZES
from gradproof.models.moe import MoEConfig
from gradproof.params import padded


class Cost(NamedTuple):
    """Bytes, in fp32: the flat buffers with their padding, AdamW's two moments, the tape of one forward, and what the
    backward works in."""

    name: str
    parameters: int
    weights: int
    gradients: int
    moments: int
    activations: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations + self.working


def cost(name: str, config: Any, rows: int, device: str = "cpu") -> Cost:
    """The cost of one training step of `config` on `rows` rows, with the kernels of the device."""
    flat = 4 * sum(padded(math.prod(entry.shape)) for entry in config.spec())
    tape, working = (4 * rows * each for each in (config.saved_per_row(), config.working_per_row(device)))
    if device == "cpu":  # an expert whose rows are shared by threads has a second copy of its gradients
        working += 4 * config.chain.length * (torch.get_num_threads() - 1)
    return Cost(name, config.param_count(), flat, flat, 2 * flat, tape, working)


def costs(rows: int, device: str = "cpu") -> list[Cost]:
    """Every named size."""
    named = [(name, MoEConfig.sized(name)) for name in SIZES]
    return [cost(name, config, rows, device) for name, config in [*named, ("dense-0.7b", DenseConfig.sized("0.7b"))]]
