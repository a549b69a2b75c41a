"""Parts: a step op by op: the gradients of each micro-batch, accumulated, then the end of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.variants import Kernels
from gradproof.ops.route import Whole
from gradproof.train.step_plan import MicroBatch, StepResult
from gradproof.train.training import Training


class Backed(NamedTuple):
    """What the backward of a batch leaves beside `grad_P`."""

    loss: Tensor
    gates: Tensor
    load: Tensor
    entropy: Tensor  # of a micro-batch the sum over its rows, of a batch the mean; so is the energy
    energy: Tensor | None

    def per_row(self, rows: int) -> Backed:
        """Sums over rows as means."""
        return self._replace(entropy=self.entropy / rows, energy=None if self.energy is None else self.energy / rows)


def added_up(parts: Sequence[Backed]) -> Backed:
    """Micro-batches as one."""
    if len(parts) == 1:
        return parts[0]
    energies = [part.energy for part in parts if part.energy is not None]
    return Backed(
        torch.stack([part.loss for part in parts]).sum(),
        torch.cat([part.gates for part in parts]),
        torch.stack([part.load for part in parts]).sum(0),
        sum((part.entropy for part in parts[1:]), parts[0].entropy),
        sum(energies[1:], energies[0]) if energies else None,
    )


class Parts:
    """`gradients` and `Training.end`, one after the other; whoever shares gradients with others comes in between."""

    def __init__(self, training: Training, kernels: Kernels):
        self.training, self.kernels = training, kernels

    def take(self, batches: Sequence[MicroBatch]) -> StepResult:
        backed = self.gradients(batches)
        scale = self.training.scale.clone()
        norm, skipped = self.training.end(backed.loss, backed.load, self.kernels)
        energy = backed.loss.new_zeros(()) if backed.energy is None else backed.energy
        return StepResult(backed.loss, backed.gates, norm, backed.load, backed.entropy, skipped, scale, energy)

    def gradients(self, batches: Sequence[MicroBatch]) -> Backed:
        """Writes the gradient of the whole batch, times the loss scale, to `grad_P`."""
        total = self.training.loss.total([target for _, target in batches])
        whole = self._whole(batches)
        backed = [self._one(batch, total, whole, accumulate=i > 0) for i, batch in enumerate(batches)]
        return added_up(backed).per_row(sum(len(x_TI) for x_TI, _ in batches))

    def _whole(self, batches: Sequence[MicroBatch]) -> Whole | None:
        """The load of the whole batch, which the balance term of each part needs before its own backward."""
        if len(batches) == 1:
            return None
        training = self.training
        load_E = torch.stack([training.model.load(training.weights, x_TI) for x_TI, _ in batches]).sum(0)
        return Whole(sum(x_TI.shape[0] for x_TI, _ in batches), load_E)

    def _one(self, batch: MicroBatch, total: Mapping[str, Any], whole: Whole | None, accumulate: bool) -> Backed:
        """Writes or adds the gradients of one micro-batch, times the loss scale."""
        (x_TI, target), kernels, scale = batch, self.kernels, self.training.scale
        model, weights, criterion = self.training.model, self.training.weights, self.training.loss
        output, saved = model.apply(weights, x_TI, whole, kernels)
        loss, kept = criterion.forward(output.logits_TO, target, total, kernels)
        d_logits_TO = criterion.backward(scale, kept, output.logits_TO, target, kernels)
        p_TE, load_E = model.routed(saved)
        energy_T = model.energy(saved)
        dy, grad_P = (d_logits_TO, scale), model.params.grad_P
        model.pull_back(weights, grad_P, dy, x_TI, saved, accumulate=accumulate, want_dx=False, kernels=kernels)
        energy = None if energy_T is None else energy_T.sum()
        return Backed(loss + output.aux, output.gates_TE, load_E, torch.special.entr(p_TE).sum(), energy)
