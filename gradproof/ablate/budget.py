"""Matched budgets: for each family, the configuration closest to a target. Nothing is allocated.

What is held equal is one of

    total    parameters
    active   parameters that a row meets: the router's and those of K of the E experts
    flops    products of a training step for one row, forward and backward: 6 for each weight that the row meets

A dense model of `budget` parameters is the yardstick of all three: its parameters are all active, and its flops are
what the others have to come to. Of an ensemble all members count: each has its share of the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

from gradproof.ablate.families import Family
from gradproof.models.dense import DenseConfig
from gradproof.models.ensemble import EnsembleConfig
from gradproof.models.moe import MoEConfig
from gradproof.train.config import TrainConfig
from gradproof.train.load import model_config

MATCHES = ("total", "active", "flops")
NEAR = 0.01  # further off than this share of the target is worth a sentence
SHAPES = {"moe": ("hidden", "depth"), "dense": ("hidden", "feedforward", "blocks")}


@dataclass(frozen=True)
class Solved:
    """A family's configuration, and how far what is held equal is from its target."""

    family: str
    config: Any
    match: str
    target: int

    @property
    def total(self) -> int:
        return self.config.param_count()

    @property
    def active(self) -> int:
        return self.config.active_count()

    @property
    def flops(self) -> int:
        return self.config.flops_per_row()

    @property
    def off(self) -> float:
        """As a share of the target; negative where it stays below."""
        return getattr(self, self.match) / self.target - 1

    @property
    def shape(self) -> dict[str, int]:
        """The fields that were solved for, those of a member."""
        alone = self.config.member if isinstance(self.config, EnsembleConfig) else self.config
        return {name: getattr(alone, name) for name in SHAPES[self.family.split("-")[0]]}

    def note(self) -> str:
        """A sentence where the target was missed by more than a percent."""
        if abs(self.off) <= NEAR:
            return ""
        what = {"total": "parameters", "active": "active parameters", "flops": "FLOPs a row"}[self.match]
        count = getattr(self, self.match)
        return f"{self.family}: {count:,} {what}, the closest possible to {self.target:,} ({self.off:+.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        figures = {"total": self.total, "active": self.active, "flops": self.flops}
        return {**figures, "target": self.target, "off": self.off, "config": asdict(self.config)}


def solve(
    family: Family,
    budget: int,
    match: str,
    inputs: int,
    outputs: int,
    patches: tuple[int, ...] = (),
    *,
    members: int = 1,
    classes: int | None = None,
) -> Solved:
    """The family's configuration at `budget` parameters, or at what a dense model of so many has of `match`. `patches`
    are the widths of the table's columns, for a router that reads them. All `members` together have the budget; the
    first `classes` of the outputs, without a number all of them, are logits."""
    if match not in MATCHES:
        raise ValueError(f"match = {match!r} must be one of {', '.join(MATCHES)}")
    if budget < 1:
        raise ValueError(f"budget = {budget}: a model has at least one parameter")
    with _named(budget, members):
        yardstick = DenseConfig.matching(max(1, budget // members), inputs, outputs)
    flops = match == "flops"
    target = members * yardstick.flops_per_row() if flops else budget

    def solved(config: Any) -> Solved:
        together = EnsembleConfig(config, members, outputs if classes is None else classes)
        return Solved(family.name, config if members == 1 else together, match, target)

    if family.model == "dense":
        return solved(yardstick)
    measure = {"total": MoEConfig.param_count, "active": MoEConfig.active_count, "flops": MoEConfig.flops_per_row}
    base = model_config(TrainConfig(**family.train_options()), inputs, outputs, patches)
    fixed = {field.name: getattr(base, field.name) for field in fields(base)}
    for solved_for in ("inputs", "outputs", *SHAPES["moe"]):
        del fixed[solved_for]
    share = yardstick.flops_per_row() if flops else max(1, budget // members)
    with _named(budget, members):
        return solved(MoEConfig.matching(share, inputs, outputs, measure=measure[match], **fixed))


@contextmanager
def _named(budget: int, members: int) -> Iterator[None]:
    """A budget that no model is small enough for, as it was given: a member has only a part of it."""
    try:
        yield
    except ValueError as error:
        part = f" (one of {members} members)" if members > 1 else ""
        raise ValueError(f"budget = {budget:,}: {error}{part}; give a larger --budget") from None
