"""The dense baseline: no residuals, no attention.

Linear(I,H) → LayerNorm;  n × [Linear(H,F) → LayerNorm → GELU → Linear(F,H) → LayerNorm → GELU];  Linear(H,O)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, equivariant
from gradproof.kernels.shapes import Shape
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.models.model import SIZES, Model, MoEOutput, draw_rows, spec_count
from gradproof.ops import dispatch, experts
from gradproof.ops.experts import Chain
from gradproof.ops.route import Whole
from gradproof.params import Entry, Weights

MATCHED_BLOCKS = 2  # deep stacks without residuals barely learn, so a matched dense model is wide


@dataclass(frozen=True)
class DenseConfig:
    """The shape of a dense model; `feedforward` is F."""

    inputs: int = 96
    outputs: int = 20
    hidden: int = 128
    feedforward: int = 512
    blocks: int = 2

    def __post_init__(self):
        if min(self.inputs, self.outputs, self.hidden, self.feedforward) < 1 or self.blocks < 0:
            raise ValueError("inputs, outputs, hidden and feedforward must be at least 1, blocks at least 0")

    @cached_property
    def chain(self) -> Chain:
        """The first layer has no GELU."""
        widths = (self.inputs, self.hidden, *[self.feedforward, self.hidden] * self.blocks, self.outputs)
        return Chain(widths, (False, *[True] * (2 * self.blocks)))

    @classmethod
    def sized(cls, name: str, **overrides: Any) -> DenseConfig:
        """0.7b, a deep stack for speed and memory; nano, tiny, medium, full match the MoE's count and a number matches
        itself, for the `inputs` and `outputs` given."""
        if name == "0.7b":
            return replace(cls(hidden=1024, feedforward=4096, blocks=84), **overrides)
        if name not in SIZES and not name.isdecimal():
            raise ValueError(f"there is no dense size {name!r}; the sizes are {', '.join(SIZES)} and 0.7b, or a count")
        ends = {end: overrides.pop(end) for end in ("inputs", "outputs") if end in overrides}
        return replace(cls.matching(SIZES.get(name) or int(name), **ends), **overrides)

    @classmethod
    def matching(cls, budget: int, inputs: int = 96, outputs: int = 20) -> DenseConfig:
        """The config whose parameter count is closest to `budget`: two wide blocks, F about 4H; F absorbs the rest."""

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
        """The parameters, layer by layer."""
        return experts.entries("", self.chain.widths)

    def param_count(self) -> int:
        """The exact number of parameters, without allocating one."""
        return spec_count(self.spec())

    def active_count(self) -> int:
        """The number of parameters active per row: all of them."""
        return self.param_count()

    def flops_per_row(self) -> int:
        """FLOPs of the products of a training step per row, forward and backward: 6 per weight."""
        return 6 * self.chain.products

    def saved_per_row(self) -> int:
        """The number of values that a tape keeps per input row."""
        return experts.saved_per_row(self.chain)

    def working_per_row(self, device: str) -> int:
        """The number of additional values per row at the peak of the backward."""
        return self.inputs + self.outputs + experts.WORKING[device] * max(self.chain.widths[1:-1])

    def shared_by_threads(self) -> int:
        """The number of values that each further CPU thread holds: the gradients of an expert with shared rows."""
        return self.chain.length


class Dense(Model):
    """The plain baseline with an explicit backward. Its one gate is 1, so that every metric has one form."""

    Config = DenseConfig
    config: DenseConfig

    @classmethod
    def sized(cls, name: str, **options: Any) -> Dense:
        """`Dense.sized("nano", seed=0, device="cpu")`."""
        return cls(DenseConfig.sized(name), **options)

    def apply(
        self, weights: Weights, x_TI: Tensor, whole: Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Any]:
        theta_EP, narrow_EP = weights.shards("", 1)
        plan = dispatch.all_rows(x_TI.shape[0], x_TI.device)
        y_TO, saved = kernels.experts.forward(
            x_TI, theta_EP, plan, self.config.chain, narrow_EP, workspace=kernels.workspace
        )
        return MoEOutput(y_TO, x_TI.new_ones(x_TI.shape[0], 1), x_TI.new_zeros(())), (plan, saved)

    def shape(self, rows: int, dtype: torch.dtype) -> Shape:
        return Shape(
            self.params.flat_P.device.type,
            str(dtype)[6:],
            rows,
            1,
            1,
            self.config.chain,
            parameters=self.params.flat_P.numel(),
        )

    def routed(self, saved: Any) -> tuple[Tensor, Tensor]:
        plan, _ = saved
        return torch.ones_like(plan.index_TK, dtype=torch.float32), plan.offset_F[1:]

    def pull_back(
        self,
        weights: Weights,
        grad_P: Tensor,
        dy: tuple[Tensor, Tensor],
        x_TI: Tensor,
        saved: Any,
        *,
        accumulate: bool = False,
        want_dx: bool = True,
        kernels: Kernels = REFERENCE,
    ) -> Tensor | None:
        theta_EP, narrow_EP = weights.shards("", 1)
        plan, kept = saved
        return kernels.experts.backward(
            dy[0],
            kept,
            x_TI,
            theta_EP,
            plan,
            self.config.chain,
            narrow_EP=narrow_EP,
            out_EP=grad_P.view(1, -1),
            accumulate=accumulate,
            want_dx=want_dx,
            workspace=kernels.workspace,
        )[0]


CONTRACT = Contract(
    shapes="x[T,I] -> logits[T,O] aux[]",
    sizes=dict(T=(1, 7)),
    grads=("x",),
    draw=draw_rows,
    options=(
        dict(label="small", config=DenseConfig(5, 3, hidden=6, feedforward=9, blocks=1)),
        dict(label="two blocks", config=DenseConfig(4, 1, hidden=5, feedforward=8, blocks=2)),
        dict(label="no blocks", config=DenseConfig(5, 3, hidden=6, feedforward=9, blocks=0)),
        dict(label="nano", config=DenseConfig.sized("nano"), sizes=dict(T=(32,)), by_name=True),
    ),
    claims=(*EVERY_OP, equivariant("T")),
)
