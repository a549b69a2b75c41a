"""What each size costs, predicted without allocating it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradproof.models.dense import DenseConfig
from gradproof.models.model import SIZES
from gradproof.models.moe import MoEConfig
from gradproof.params import padded


class Cost(NamedTuple):
    """Bytes, in fp32: the flat buffers with their padding, AdamW's two moments, and the tape of one forward."""

    name: str
    parameters: int
    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations


def cost(name: str, config: Any, rows: int) -> Cost:
    """The cost of one training step of `config` on `rows` rows."""
    flat = 4 * sum(padded(math.prod(entry.shape)) for entry in config.spec())
    return Cost(name, config.param_count(), flat, flat, 2 * flat, 4 * rows * config.saved_per_row())


def costs(rows: int) -> list[Cost]:
    """Every named size."""
    named = [(name, MoEConfig.sized(name)) for name in SIZES]
    return [cost(name, config, rows) for name, config in [*named, ("dense-0.7b", DenseConfig.sized("0.7b"))]]
