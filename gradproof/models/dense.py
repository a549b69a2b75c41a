"""The dense baseline: no residuals, no attention.

Linear(I,H) → LayerNorm;  n × [Linear(H,F) → LayerNorm → GELU → Linear(F,H) → LayerNorm → GELU];  Linear(H,O)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, equivariant
from gradproof.models import chain
from gradproof.models.model import SIZES, Model, MoEOutput, draw_rows, spec_count
from gradproof.ops import wide
from gradproof.ops.route import Whole
from gradproof.params import Entry

MATCHED_BLOCKS = 2  # deep stacks without residuals barely learn, so a matched dense model is wide


@dataclass(frozen=True)
class DenseConfig:
    """Shape: `feedforward` is F."""

    inputs: int = 96
    outputs: int = 20
    hidden: int = 128
    feedforward: int = 512
    blocks: int = 2

    def __post_init__(self):
        if min(self.inputs, self.outputs, self.hidden, self.feedforward) < 1 or self.blocks < 0:
            raise ValueError("inputs, outputs, hidden and feedforward must be at least 1, blocks at least 0")

    @property
    def widths(self) -> list[int]:
        return [self.inputs, self.hidden, *[self.feedforward, self.hidden] * self.blocks, self.outputs]

    @property
    def active(self) -> list[bool]:
        """The first layer has no GELU."""
        return [False, *[True] * (2 * self.blocks)]

    @classmethod
    def sized(cls, name: str, **overrides: Any) -> DenseConfig:
        """0.7b, a deep stack for speed and memory; nano, tiny, medium, full match the MoE's count, for the `inputs` and
        `outputs` given."""
        if name == "0.7b":
            return replace(cls(hidden=1024, feedforward=4096, blocks=84), **overrides)
        if name not in SIZES:
            raise ValueError(f"there is no dense size {name!r}; the sizes are {', '.join(SIZES)} and 0.7b")
        return cls.matching(SIZES[name], **overrides)

    @classmethod
    def matching(cls, budget: int, inputs: int = 96, outputs: int = 20) -> DenseConfig:
        """The config whose parameter count is nearest to `budget`: two wide blocks, F about 4H, F takes the rest."""

        def count(hidden: int, feedforward: int) -> int:
            return cls(inputs, outputs, hidden, feedforward, MATCHED_BLOCKS).param_count()

        hidden = 1
        while count(2 * hidden, 8 * hidden) <= budget:
            hidden *= 2
        step = hidden
        while step := step // 2:
            if count(hidden + step, 4 * (hidden + step)) <= budget:
                hidden += step
        fixed = count(hidden, 1)
        per_unit = count(hidden, 2) - fixed
        feedforward = max(1, 1 + round((budget - fixed) / per_unit))
        if count(hidden, feedforward) > 2 * budget:
            raise ValueError(
                f"no dense model of {inputs} inputs and {outputs} outputs has as few as {budget:,} parameters"
            )
        return cls(inputs, outputs, hidden, feedforward, MATCHED_BLOCKS)

    def spec(self) -> list[Entry]:
        """Layers in order."""
        return chain.entries("", self.widths)

    def param_count(self) -> int:
        """The exact number of parameters, without allocating one."""
        return spec_count(self.spec())

    def saved_per_row(self) -> int:
        """How many numbers a tape keeps for each input row."""
        return chain.saved_per_row(self.widths, self.active)

    def working_per_row(self) -> int:
        """How many numbers more a step holds for each row, at the worst moment of its backward."""
        return self.inputs + self.outputs + chain.WORKING * max(self.widths[1:-1])


class Dense(Model):
    """The plain baseline with an explicit backward. Its one gate is 1, so that every metric has one form."""

    Config = DenseConfig
    config: DenseConfig

    @classmethod
    def sized(cls, name: str, **options: Any) -> Dense:
        """`Dense.sized("nano", seed=0, device="cpu")`."""
        return cls(DenseConfig.sized(name), **options)

    def apply(
        self, params: Mapping[str, Tensor], x_TI: Tensor, whole: Whole | None = None
    ) -> tuple[MoEOutput, chain.Saved]:
        y_TO, saved = chain.forward(params, "", x_TI, self.config.active)
        return MoEOutput(wide(y_TO), x_TI.new_ones(x_TI.shape[0], 1), x_TI.new_zeros(())), saved

    def routed(self, saved: chain.Saved) -> tuple[Tensor, Tensor]:
        T, device = saved.last_TH.shape[0], saved.last_TH.device
        return torch.ones(T, 1, device=device), torch.full((1,), T, device=device)

    def pull_back(
        self,
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        dy: tuple[Tensor, Tensor],
        x_TI: Tensor,
        saved: chain.Saved,
    ) -> Tensor:
        return chain.backward(params, grads, "", dy[0], saved, self.config.active)


CONTRACT = Contract(
    shapes="x[T,I] -> logits[T,O] aux[]",
    sizes=dict(T=(1, 7)),
    grads=("x",),
    draw=draw_rows,
    options=(
        dict(label="small", config=DenseConfig(5, 3, hidden=6, feedforward=9, blocks=1)),
        dict(label="two blocks", config=DenseConfig(4, 1, hidden=5, feedforward=8, blocks=2)),
        dict(label="no blocks", config=DenseConfig(5, 3, hidden=6, feedforward=9, blocks=0)),
        dict(label="nano", config=DenseConfig.sized("nano")),
    ),
    claims=(*EVERY_OP, equivariant("T")),
)
