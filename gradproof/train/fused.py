"""Fused: a step in a single kernel, `ops/lesson.py` as a whole: a mixture, plain cross-entropy, AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from gradproof.kernels.workspace import Workspace
from gradproof.train.step_plan import MicroBatch, StepResult
from gradproof.train.training import Training


class Fused:
    """On one batch, whose target is one tensor."""

    def __init__(self, training: Training, kernel: ModuleType, workspace: Workspace | None):
        self.training, self.kernel, self.workspace = training, kernel, workspace

    @staticmethod
    def takes(training: Training, batches: Sequence[MicroBatch]) -> bool:
        """Whether a step on these is what the kernel is for."""
        return training.loss.plain and len(batches) == 1 and isinstance(batches[0][1], Tensor)

    def take(self, batches: Sequence[MicroBatch]) -> StepResult:
        ((x_TI, target_T),) = batches
        assert isinstance(target_T, Tensor)
        training, optimizer, scale = self.training, self.training.optimizer, self.training.scale
        moved, options = (
            (*optimizer.buffers, optimizer.count, training.skipped, optimizer.rate, scale),
            optimizer.options,
        )
        given = (x_TI, target_T.flatten(), *training.model.lesson, training.clip)
        learnt = self.kernel.step(*moved, *given, **options, workspace=self.workspace)
        training.model.params.touch()
        training.settle(learnt.load_E, learnt.skipped)
        return StepResult(*learnt, scale=scale.clone(), energy=scale.new_zeros(()))
