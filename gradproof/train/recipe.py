"""The recipe: the options that `gradproof train --data FILE --target COL` derives from the size of the table.

Eight small networks, each on rows of its own order, learn a table better than one large model, and a time budget says
how long. Numbers are given by their rank and in pieces. Each network is a mixture of one expert: four experts a member,
of which a row sees two, were no better at the same cost. What was tuned was tuned on inner splits of public tables
(docs/notes/tables.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproof.train.config import OF_TABLE, TrainConfig

EPOCHS = 20  # with early stopping; more only overfit
LEAST_STEPS = 800  # of small tables, whose epochs are short
BATCH, LEAST_BATCH = 256, 32
BATCHES = 16  # an epoch at least
PER_MINUTES = 50_000  # rows that the default `minutes` are for; a larger table gets more in proportion
MOST_MINUTES = 10.0


@dataclass(frozen=True)
class TableSize:
    """What a recipe may look at."""

    rows: int  # to train on
    inputs: int
    classes: int  # 0 where the target is a number


def batch_of(size: TableSize) -> int:
    """256, or a power of two that leaves a small table a few batches an epoch."""
    batch = BATCH
    while batch > LEAST_BATCH and batch * BATCHES > size.rows:
        batch //= 2
    return batch


def minutes_of(config: TrainConfig, size: TableSize) -> float | None:
    """As given; the recipe's own grow with the table."""
    if config.minutes is None or config.recipe == "none" or config.minutes != OF_TABLE["minutes"]:
        return config.minutes
    return min(MOST_MINUTES, config.minutes * max(1.0, size.rows / PER_MINUTES))


def sized(config: TrainConfig, size: TableSize) -> dict[str, Any]:
    """The options that follow from the table's size alone."""
    if config.recipe == "none" or config.batch != TrainConfig.batch:
        return {}
    return {"batch": batch_of(size)}


def steps_of(config: TrainConfig, size: TableSize, seconds_a_step: float, seconds_validating: float = 0.0) -> int:
    """Steps that fit the time beside all validations, and with the recipe no more than are of use."""
    minutes, fitting = minutes_of(config, size), config.steps
    if minutes is not None:
        seconds = 60 * minutes
        fitting = max(1, int(max(seconds - seconds_validating, seconds / 2) / seconds_a_step))
    return fitting if config.recipe == "none" else min(fitting, most_steps(size, config.batch))


def most_steps(size: TableSize, batch: int) -> int:
    """Steps that are of use."""
    return max(LEAST_STEPS, EPOCHS * size.rows // batch)
