"""Learning-rate schedules: a factor of the peak rate for each step, from 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["constant", "warmup-cosine", "warmup-stable-decay"]


@dataclass(frozen=True)
class Schedule:
    """`warmup` and `decay` are shares of `steps`; the rate ends at `floor` of its peak.

    constant             1
    warmup-cosine        linear up, then floor + (1 − floor)·½(1 + cos πu), u from 0 to 1 over the rest
    warmup-stable-decay  linear up, 1, then linear down to the floor
    """

    steps: int
    shape: ScheduleName = "warmup-cosine"
    warmup: float = 0.05
    decay: float = 0.2
    floor: float = 0.0

    def __post_init__(self):
        if self.shape not in ("constant", "warmup-cosine", "warmup-stable-decay"):
            raise ValueError(
                f"schedule = {self.shape!r}: the schedules are constant, warmup-cosine and warmup-stable-decay"
            )
        if self.steps < 1 or not 0 <= self.floor <= 1 or not (self.warmup >= 0 and self.decay >= 0):
            raise ValueError("a schedule needs steps ≥ 1, warmup and decay ≥ 0, and a floor between 0 and 1")
        if self.warmup + self.decay * (self.shape == "warmup-stable-decay") > 1:
            raise ValueError(f"warmup {self.warmup} and decay {self.decay} are shares of the steps, at most 1 together")

    def factor(self, step: int) -> float:
        """The factor for the update after `step` updates."""
        if self.shape == "constant":
            return 1.0
        warm = round(self.warmup * self.steps)
        if step < warm:
            return (step + 1) / warm
        if self.shape == "warmup-cosine":
            u = min(1.0, (step - warm) / max(1, self.steps - warm))
            return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * u))
        falling = max(1, round(self.decay * self.steps))
        return max(self.floor, min(1.0, self.floor + (1 - self.floor) * (self.steps - step) / falling))
