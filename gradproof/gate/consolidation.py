"""Elastic weight consolidation: keeps weights that mattered for earlier calls near their old values.

    penalty = λ·Σ F(θ − θ*)²;   its gradient 2λF(θ − θ*) is added to grad_P before the update
    F = mean over calls of p(1 − p)·(∂z/∂θ)², the Fisher information of one logit;   F ← ρF + (1 − ρ)F_new

λ is `strength` divided by the mean of F, so that it means the same for a sure and an unsure model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradproof.kernels.variants import Kernels
from gradproof.models.model import Model
from gradproof.train.parts import Backed, Parts
from gradproof.train.step import TrainStep
from gradproof.train.step_plan import MicroBatch, StepPlan
from gradproof.train.training import Training

DECAY = 0.9  # ρ
STRENGTH = 0.01


class Consolidation:
    """θ* and F in the layout of a model's parameters."""

    def __init__(self, anchor_P: Tensor, fisher_P: Tensor, strength: float = STRENGTH):
        self.anchor_P, self.fisher_P, self.strength = anchor_P.clone(), fisher_P, strength

    @property
    def rate(self) -> float:
        """λ."""
        mean = float(self.fisher_P.mean())
        return self.strength / mean if mean > 0 else 0.0

    def add_gradient(self, grad_P: Tensor, flat_P: Tensor, scale: Tensor | float = 1.0) -> None:
        """grad_P += scale·2λF(θ − θ*)."""
        grad_P.addcmul_(self.fisher_P, flat_P - self.anchor_P, value=2 * self.rate * float(scale))


def fisher(model: Model, rows: Sequence[Tensor]) -> Tensor:
    """F_P of calls, each given as x_1S. Overwrites the model's gradients."""
    total_P = torch.zeros_like(model.params.flat_P)
    for x_1S in rows:
        output, tape = model.forward(x_1S)
        p = torch.sigmoid(output.logits_TO)
        model.backward(torch.ones_like(p), tape)
        total_P.addcmul_((p * (1 - p) / len(rows)).view(1), model.params.grad_P.square())
    return total_P


def decayed(old_P: Tensor | None, new_P: Tensor) -> Tensor:
    """ρF + (1 − ρ)F_new; the new one alone where there is no old one."""
    return new_P if old_P is None else DECAY * old_P + (1 - DECAY) * new_P


class ConsolidatedParts(Parts):
    """A step by parts, with the penalty's gradient in it."""

    def __init__(self, training: Training, kernels: Kernels, consolidation: Consolidation):
        super().__init__(training, kernels)
        self.consolidation = consolidation

    def gradients(self, batches: Sequence[MicroBatch]) -> Backed:
        backed, params = super().gradients(batches), self.training.model.params
        self.consolidation.add_gradient(params.grad_P, params.flat_P, self.training.scale)
        return backed


class ConsolidatedStep(TrainStep):
    """A training step that holds what `consolidation` says."""

    consolidation: Consolidation | None = None

    def plan(self, batches: Sequence[MicroBatch]) -> StepPlan:
        if self.consolidation is None:
            return super().plan(batches)
        return ConsolidatedParts(self.training, self.kernels, self.consolidation)
