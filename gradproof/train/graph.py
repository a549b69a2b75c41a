"""Graph: replays a step as a CUDA graph, captured once per shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradproof.params import ParamSpace
from gradproof.train.loss import Target
from gradproof.train.step_plan import MicroBatch, StepPlan, StepResult

MOST_GRAPHS = 4  # shapes; each holds its own memory


class Capture:
    """`work(x, target)` on memory of its own. What it returns are copies: the next replay writes over the originals."""

    def __init__(self, work: Callable[[Tensor, Any], Sequence[Tensor]], x_TI: Tensor, target: Target):
        self.given = [tensor.clone() for tensor in _flat(x_TI, target)]
        own = tuple(self.given[1:]) if isinstance(target, tuple) else self.given[1]
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            results = work(self.given[0], own)
            # Numbers lie side by side, so that they are copied at once.
            self.numbers = torch.stack([result.float() for result in results if not result.dim()])
        self.results = [result if result.dim() else None for result in results]

    def __call__(self, x_TI: Tensor, target: Target) -> list[Tensor]:
        """Replays it."""
        for own, given in zip(self.given, _flat(x_TI, target), strict=True):
            own.copy_(given)
        self.graph.replay()
        numbers = iter(self.numbers.clone().unbind(0))
        return [next(numbers) if result is None else result.clone() for result in self.results]


class Captures(dict[Any, Capture | None]):
    """The graphs of a training by the shapes of a batch; None where a shape was met once, and not captured yet."""

    def keep(self, key: Any, capture: Capture) -> None:
        """Adds one; beyond `MOST_GRAPHS`, the oldest goes."""
        while sum(kept is not None for kept in self.values()) >= MOST_GRAPHS:
            self.pop(next(key for key, kept in self.items() if kept is not None))
        self[key] = capture


class Graph:
    """On one batch: the first step of a shape is taken by a plan as it is, the second is captured, the others replay
    it. `plan` makes one on a workspace of its own, for a graph's memory is used by nobody else."""

    def __init__(self, plan: Callable[[], StepPlan], params: ParamSpace, captures: Captures):
        self.plan, self.params, self.captures = plan, params, captures

    def take(self, batches: Sequence[MicroBatch]) -> StepResult:
        ((x_TI, target),) = batches
        key = tuple((tensor.shape, tensor.dtype) for tensor in _flat(x_TI, target))
        if key not in self.captures:
            self.captures[key] = None
            return self.plan().take(batches)
        capture = self.captures[key]
        if capture is None:
            plan = self.plan()
            capture = Capture(lambda x_TI, target: plan.take([(x_TI, target)]), x_TI, target)
            self.captures.keep(key, capture)
        self.params.touch()
        return StepResult(*capture(x_TI, target))


def _flat(x_TI: Tensor, target: Target) -> list[Tensor]:
    return [x_TI, *(target if isinstance(target, tuple) else (target,))]
