"""A running average of the weights, which is validated, saved and used; training continues with the weights themselves.

    mean ← mean + w·(p − mean),  w = max(1 − decay, 9/(s + 9)) after step s = 1, 2, …

The last steps of a noisy descent lie around a better point than any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from gradproof.params import ParamSpace

EARLY = 9  # steps: the first ones are soon forgotten
MOVING = "moving"


class WeightAverage:
    """`mean_P` is the average; while it is `shown`, model and average have changed places."""

    def __init__(self, params: ParamSpace, decay: float):
        self.params, self.decay = params, decay
        self.mean_P = params.flat_P.clone()

    def add(self, steps: int) -> None:
        """The weights after so many steps."""
        self.mean_P.lerp_(self.params.flat_P, max(1 - self.decay, EARLY / (steps + EARLY)))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The model has the average for weights."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        moving_P = self.params.flat_P.clone()
        self.params.flat_P.copy_(self.mean_P)
        self.mean_P.copy_(moving_P)
        self.params.touch()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside the model, while the average is shown: the weights that the step moves."""
        return {MOVING: self.mean_P}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """After a model has been restored, which is the average."""
        self.mean_P.copy_(state[MOVING])
        self.swap()
