"""An ensemble: members of the same shape with their own parameters, whose predictions are averaged.

    z_m = member_m(x);   y = vote(z_1 … z_M), or of a number, pool_gaussians(z_1 … z_M)

All parameters stand in one flat buffer, one member after the other, and each member is a model on its part of it. A
training step moves every member by rows of its own (`train/ensemble_step.py`); here all of them see the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, equivariant
from gradproof.kernels.shapes import Shape
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.model import Model, MoEOutput, draw_rows
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ops import pool_gaussians, vote
from gradproof.ops.route import Whole
from gradproof.params import Entry, Weights


@dataclass(frozen=True)
class EnsembleConfig:
    """An ensemble of `members` with the same shape; the first `classes` of their outputs are logits, the others
    numbers. Without classes, the two outputs are mean and log spread."""

    member: MoEConfig | DenseConfig
    members: int = 8
    classes: int = 2

    def __post_init__(self):
        if self.members < 1:
            raise ValueError(f"members = {self.members} must be at least 1")
        if not 0 <= self.classes <= self.outputs or (not self.classes and self.outputs != 2):
            raise ValueError(
                f"classes = {self.classes} must be from 1 to the member's {self.outputs} outputs, or 0 where these are "
                "two, a mean and a log spread"
            )

    @property
    def inputs(self) -> int:
        return self.member.inputs

    @property
    def outputs(self) -> int:
        return self.member.outputs

    def spec(self) -> list[Entry]:
        """The parameters, member by member."""
        own = self.member.spec()
        return [entry._replace(name=prefix(m) + entry.name) for m in range(self.members) for entry in own]

    def param_count(self) -> int:
        """The number of parameters of all members."""
        return self.members * self.member.param_count()

    def active_count(self) -> int:
        """The number of parameters active per row, over all members."""
        return self.members * self.member.active_count()

    def flops_per_row(self) -> int:
        """FLOPs of a training step in which every member sees the row."""
        return self.members * self.member.flops_per_row()

    def saved_per_row(self) -> int:
        """The number of values that a tape keeps per input row."""
        return self.members * (self.member.saved_per_row() + 2 * self.outputs)

    def working_per_row(self, device: str) -> int:
        """The number of additional values per row in the backward, which runs one member at a time."""
        return self.member.working_per_row(device)

    def shared_by_threads(self) -> int:
        return self.member.shared_by_threads()


def prefix(m: int) -> str:
    """The prefix of the names of member m's parameters."""
    return f"members.{m}."


class MemberWeights(NamedTuple):
    """The weights of one member, as a view of those of all."""

    weights: Weights
    prefix: str

    def __getitem__(self, name: str) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.weights[self.prefix + name]

    def operand(self, name: str) -> Tensor:
        return self.weights.operand(self.prefix + name)

    def shards(self, prefix: str, copies: int) -> tuple[Tensor, Tensor | None]:
        return self.weights.shards(self.prefix + prefix, copies)


class Saved(NamedTuple):
    members: list[Any]
    z_MTO: Tensor
    together: Any  # by the vote, or by the pooled Gaussians


class Ensemble(Model):
    """Members with an explicit backward each, and the backward of their pooling."""

    Config = EnsembleConfig
    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig, **options: Any):
        super().__init__(config, **options)
        parts = self.params.flat_P.view(config.members, -1)
        self.members = [_member(config.member, flat_P) for flat_P in parts]
        self.buffers = {
            prefix(m) + name: buffer for m, member in enumerate(self.members) for name, buffer in member.buffers.items()
        }

    def apply(
        self, weights: Weights, x_TI: Tensor, whole: Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Saved]:
        alone = replace(kernels, workspace=None)  # whose buffers hold one member's tape at a time
        applied = [member.apply(self._part(weights, m), x_TI, whole, alone) for m, member in enumerate(self.members)]
        outputs = [output for output, _ in applied]
        z_MTO = torch.stack([output.logits_TO for output in outputs])
        C = self.config.classes
        y_TO, kept = vote.forward(z_MTO, C) if C else pool_gaussians.forward(z_MTO)
        gates_TE = torch.cat([output.gates_TE for output in outputs], 1) / len(outputs)
        aux = torch.stack([output.aux for output in outputs]).mean()
        return MoEOutput(y_TO, gates_TE, aux), Saved([saved for _, saved in applied], z_MTO, kept)

    def pull_back(
        self,
        weights: Weights,
        grad_P: Tensor,
        dy: tuple[Tensor, Tensor],
        x_TI: Tensor,
        saved: Saved,
        *,
        accumulate: bool = False,
        want_dx: bool = True,
        kernels: Kernels = REFERENCE,
    ) -> Tensor | None:
        if self.config.classes:
            dz_MTO = vote.backward(dy[0], saved.together, saved.z_MTO, self.config.classes)
        else:
            dz_MTO = pool_gaussians.backward(dy[0], saved.together, saved.z_MTO)
        d_aux, alone = dy[1] / len(self.members), replace(kernels, workspace=None)
        how: dict[str, Any] = dict(accumulate=accumulate, want_dx=want_dx, kernels=alone)
        dx = [
            member.pull_back(self._part(weights, m), grads_P, (dz_TO, d_aux), x_TI, kept, **how)
            for m, (member, grads_P, dz_TO, kept) in enumerate(
                zip(self.members, grad_P.view(len(self.members), -1), dz_MTO, saved.members, strict=True)
            )
        ]
        return torch.stack([part for part in dx if part is not None]).sum(0) if want_dx else None

    def _part(self, weights: Weights, m: int) -> Weights:
        """A member's own parameters, which a fused kernel reads as one buffer; or its part of any others."""
        return self.members[m].params if weights is self.params else MemberWeights(weights, prefix(m))

    def shape(self, rows: int, dtype: torch.dtype) -> Shape:
        """A member's: they are asked one after the other."""
        return self.members[0].shape(rows, dtype)

    @property
    def experts(self) -> int:
        return sum(member.experts for member in self.members)

    @property
    def has_energy(self) -> bool:
        return self.members[0].has_energy

    def chosen(self, weights: Weights, x_TI: Tensor) -> Tensor:
        return torch.cat([member.chosen(self._part(weights, m), x_TI) for m, member in enumerate(self.members)], 1)

    def margin(self, weights: Weights, x_TI: Tensor) -> Tensor:
        margins = [member.margin(self._part(weights, m), x_TI) for m, member in enumerate(self.members)]
        return torch.stack(margins).amin(0)

    def pull_router(self, weights: Weights, dz_TE: Tensor, x_TI: Tensor) -> Tensor:
        parts = dz_TE.split([member.experts for member in self.members], 1)
        dx = [member.pull_router(self._part(weights, m), parts[m], x_TI) for m, member in enumerate(self.members)]
        return torch.stack(dx).sum(0)

    def routed(self, saved: Saved) -> tuple[Tensor, Tensor]:
        routed = [member.routed(kept) for member, kept in zip(self.members, saved.members, strict=True)]
        return torch.cat([p_TE for p_TE, _ in routed], 1), torch.cat([load_E for _, load_E in routed])

    def energy(self, saved: Saved) -> Tensor | None:
        energies = [member.energy(kept) for member, kept in zip(self.members, saved.members, strict=True)]
        return torch.stack([e_T for e_T in energies if e_T is not None]).mean(0) if self.has_energy else None


def _member(config: MoEConfig | DenseConfig, flat_P: Tensor) -> Model:
    """A model on its part of the buffer."""
    if isinstance(config, MoEConfig):
        return MoE(config, seed=None, flat_P=flat_P)
    return Dense(config, seed=None, flat_P=flat_P)


def _config(member: MoEConfig | DenseConfig, **options: Any) -> EnsembleConfig:
    return EnsembleConfig(member, **{**dict(members=3, classes=3), **options})


_MOE = MoEConfig(inputs=5, outputs=3, experts=3, hidden=6, depth=0)  # few parameters: each is judged by itself

CONTRACT = Contract(
    shapes="x[T,I] -> logits[T,O] aux[]",
    sizes=dict(T=(1, 7)),
    grads=("x",),
    draw=draw_rows,
    options=(
        dict(label="of mixtures", config=_config(_MOE)),
        dict(label="balance", config=_config(replace(_MOE, balance=0.1, z_loss=0.01), members=2)),
        dict(label="one deep member", config=_config(replace(_MOE, depth=1), members=1)),
        dict(label="two classes and a number", config=_config(_MOE, classes=2)),
        dict(label="a mean and a spread", config=_config(replace(_MOE, outputs=2), classes=0)),
        dict(label="of dense models", config=_config(DenseConfig(5, 3, hidden=6, feedforward=9, blocks=1))),
        dict(label="sheaf", config=_config(replace(_MOE, router="sheaf", patches=(2, 1, 2), gluing=0.3), members=2)),
    ),
    claims=(*EVERY_OP, equivariant("T")),
)
