"""Predicts the cost of each size without allocating it. The rows of a transformer are tokens."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.model import SIZES, Model
from gradproof.models.moe import MoE, MoEConfig
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.params import padded


class Cost(NamedTuple):
    """Memory in bytes, in fp32: the flat buffers with padding, AdamW's two moments, the tape of one forward, and the
    working memory of the backward."""

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
    """The memory of one training step of `config` on `rows` rows, with the kernels of the device."""
    flat = 4 * sum(padded(math.prod(entry.shape)) for entry in config.spec())
    tape, working = (4 * rows * per_row for per_row in (config.saved_per_row(), config.working_per_row(device)))
    if device == "cpu":
        working += 4 * config.shared_by_threads() * (torch.get_num_threads() - 1)
    return Cost(name, config.param_count(), flat, flat, 2 * flat, tape, working)


def named() -> dict[str, tuple[type[Model], Any]]:
    """Every named size, with its model and config."""
    moes = {name: (MoE, MoEConfig.sized(name)) for name in SIZES}
    transformers = {f"transformer-{name}": (Transformer, TransformerConfig.sized(name)) for name in SIZES}
    return {**moes, "dense-0.7b": (Dense, DenseConfig.sized("0.7b")), **transformers}
