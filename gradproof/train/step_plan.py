"""StepPlan: one way to take a training step.

`Parts` runs it op by op, `Fused` by one kernel, `Graph` replays the parts as one CUDA graph. They move the same
`Training` and return the same `StepResult`; `TrainStep` chooses one. Whatever changes how a step is taken is a further
plan, or wraps one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from gradproof.train.loss import Target

MicroBatch = tuple[Tensor, Target]  # x_TI and its target


class StepResult(NamedTuple):
    """Copies, on the device: reading one is what waits."""

    loss: Tensor  # of the whole batch, the auxiliary terms included
    gates: Tensor  # gates_TE
    grad_norm: Tensor  # before clipping
    load: Tensor  # load_E: rows that chose each expert
    entropy: Tensor  # mean row entropy of the router's distribution, nats
    skipped: Tensor  # 1 where nothing was updated, because loss or gradient was not finite
    scale: Tensor  # the loss scale that this step was taken with
    energy: Tensor  # mean row energy of a sheaf router; 0 without one


class StepPlan(Protocol):
    """A way to take a step."""

    def take(self, batches: Sequence[MicroBatch]) -> StepResult:
        """One update by all the micro-batches, as if their rows were one batch."""
        ...
