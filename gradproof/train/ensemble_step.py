"""EnsembleStep: a training step of every member of an ensemble, each on its own rows.

Members share nothing but the shape, so their steps run side by side, each on one thread: as fast as the machine has
cores, and with the same bits on any number of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from gradproof.data.feed import Feed
from gradproof.kernels.variants import Kernels
from gradproof.models.ensemble import Ensemble, prefix
from gradproof.models.model import Model
from gradproof.train.loss import Loss
from gradproof.train.step import TrainStep
from gradproof.train.step_plan import StepResult


class EnsembleStep:
    """`step.take(feed, s)` moves each member by its own rows of step s. `member_step` makes a member's step; so many
    `threads` work on them, None for one a core."""

    def __init__(self, model: Ensemble, member_step: Callable[[Model], TrainStep], threads: int | None = None):
        self.model = model
        self.steps = [member_step(member) for member in model.members]
        # Steps of a mesh talk to the other ranks, in the same order on each.
        aside = not model.params.flat_P.is_cpu or self.first.mesh is not None
        beside = 1 if aside else min(len(self.steps), threads or os.cpu_count() or 1)
        self._pool = (
            ThreadPoolExecutor(beside, initializer=torch.set_num_threads, initargs=(1,)) if beside > 1 else None
        )

    @property
    def first(self) -> TrainStep:
        """What holds for every member: kernels, rate, loss."""
        return self.steps[0]

    @property
    def loss(self) -> Loss:
        return self.first.loss

    def take(self, feed: Feed, s: int) -> StepResult:
        """One update of every member."""

        def one(m: int) -> StepResult:
            return self.steps[m](*feed(s, m))

        members = range(len(self.steps))
        results = list(map(one, members) if self._pool is None else self._pool.map(one, members))
        self.model.params.touch()
        return together(results)

    def choose(self, rows: int) -> Kernels:
        """The kernels of a member's step on so many rows, before the steps run side by side."""
        for step in self.steps:
            step.choose(rows)
        return self.first.kernels

    def ask(self, kernels: Mapping[str, str]) -> None:
        for step in self.steps:
            step.ask(kernels)

    def state(self) -> dict[str, Tensor]:
        """Everything but the parameters that the next step depends on, by member."""
        return {prefix(m) + name: own for m, step in enumerate(self.steps) for name, own in step.state().items()}

    def written(self) -> dict[str, Tensor]:
        """The part of `state` that this process writes to a checkpoint."""
        return {prefix(m) + name: own for m, step in enumerate(self.steps) for name, own in step.written().items()}

    def load_state(self, state: Mapping[str, Tensor], steps: int) -> None:
        for m, step in enumerate(self.steps):
            start = prefix(m)
            step.load_state({n[len(start) :]: own for n, own in state.items() if n.startswith(start)}, steps)


def together(results: list[StepResult]) -> StepResult:
    """Means over the members of what is a number; gates and loads one after the other."""

    def mean(name: str) -> Tensor:
        return torch.stack([getattr(result, name) for result in results]).mean()

    return StepResult(
        mean("loss"),
        torch.cat([result.gates for result in results]),
        mean("grad_norm"),
        torch.cat([result.load for result in results]),
        mean("entropy"),
        torch.stack([result.skipped for result in results]).amax(),
        torch.stack([result.scale for result in results]).amin(),
        mean("energy"),
    )
