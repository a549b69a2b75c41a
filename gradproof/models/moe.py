"""Sparse Mixture-of-Experts.

    z = x Wᵣᵀ + bᵣ;  gates, aux = route(z);  y_t = Σ_{e∈S_t} gates_te·f_e(x_t)
    f_e: (Linear → LayerNorm → GELU) × (1 + depth), then Linear to O

Only routed rows are computed: sorted by expert, worked on in contiguous slices, combined in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.kernels.registry import REFERENCE, Kernels, Shape
from gradproof.models.model import Model, MoEOutput, draw_rows, spec_count
from gradproof.ops import dispatch, experts, linear, route
from gradproof.ops.experts import Chain
from gradproof.params import Entry, Weights


@dataclass(frozen=True)
class MoEConfig:
    """Shape and routing. `correction` > 0 balances the load by a selection bias that moves by that much a step."""

    inputs: int = 96
    outputs: int = 20
    experts: int = 4
    hidden: int = 128
    depth: int = 2
    k: int = 2
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = False
    balance: float = 0.0
    z_loss: float = 0.0
    correction: float = 0.0

    def __post_init__(self):
        if min(self.inputs, self.outputs, self.experts, self.hidden) < 1 or self.depth < 0:
            raise ValueError("inputs, outputs, experts and hidden must be at least 1, depth at least 0")
        if self.k > self.experts:
            raise ValueError(f"k = {self.k} experts a row cannot be chosen from {self.experts}; k must be at most E")
        if not 0 <= self.correction < float("inf"):
            raise ValueError(f"correction = {self.correction}: a step of the selection bias is at least 0, and finite")
        _ = self.routing

    @cached_property
    def routing(self) -> route.Routing:
        return route.Routing(self.k, self.scores, self.renormalise, self.balance, self.z_loss)

    @cached_property
    def chain(self) -> Chain:
        """The shape of one expert."""
        layers = 1 + self.depth
        return Chain((self.inputs, *[self.hidden] * layers, self.outputs), (True,) * layers)

    @classmethod
    def sized(cls, name: str, **overrides: Any) -> MoEConfig:
        """nano, tiny, medium or full."""
        shapes = {"nano": (128, 2), "tiny": (2048, 5), "medium": (4096, 5), "full": (4096, 12)}
        if name not in shapes:
            raise ValueError(f"there is no MoE size {name!r}; the sizes are {', '.join(shapes)}")
        hidden, depth = shapes[name]
        return replace(cls(hidden=hidden, depth=depth), **overrides)

    @classmethod
    def matching(cls, budget: int, inputs: int = 96, outputs: int = 20) -> MoEConfig:
        """The config whose parameter count is nearest to `budget`: depth 2 where that comes within half a percent,
        otherwise whichever depth up to 5 comes nearest."""
        nearest = [cls(inputs, outputs, hidden=_hidden(cls, budget, inputs, outputs, d), depth=d) for d in range(1, 6)]
        error = {config: abs(config.param_count() - budget) for config in nearest}
        best = nearest[1] if error[nearest[1]] <= 0.005 * budget else min(nearest, key=lambda config: error[config])
        if best.hidden == 1 and best.param_count() > 2 * budget:
            raise ValueError(f"no MoE of {inputs} inputs and {outputs} outputs has as few as {budget:,} parameters")
        return best

    def spec(self) -> list[Entry]:
        """Router first, then the experts, each in the order of its layers."""
        spec = experts.linear_entries("router", self.inputs, self.experts)
        for e in range(self.experts):
            spec += experts.entries(f"experts.{e}.", self.chain.widths)
        return spec

    def param_count(self) -> int:
        """The exact number of parameters, without allocating one."""
        expert = spec_count(experts.entries("", self.chain.widths))
        return self.experts * expert + spec_count(experts.linear_entries("router", self.inputs, self.experts))

    def saved_per_row(self) -> int:
        """How many numbers a tape keeps for each input row (indices not counted)."""
        routed = self.inputs + experts.saved_per_row(self.chain) + self.outputs
        return self.k * routed + 3 * self.experts

    def working_per_row(self, device: str) -> int:
        """How many numbers more a step holds for each row, at the worst moment of its backward."""
        routed = self.k * (self.inputs + 2 * self.outputs + experts.WORKING[device] * self.hidden)
        return self.inputs + self.outputs + routed


def _hidden(cls: type[MoEConfig], budget: int, inputs: int, outputs: int, depth: int) -> int:
    """The hidden width whose count is nearest to the budget; the count rises with the width."""
    low, high = 1, 2
    base = cls(inputs, outputs, depth=depth)

    def count(hidden: int) -> int:
        return replace(base, hidden=hidden).param_count()

    while count(high) < budget:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= budget else (low, middle)
    return min((low, high), key=lambda hidden: abs(count(hidden) - budget))


class Saved(NamedTuple):
    routed: route.Saved
    plan: dispatch.Plan
    rows_NI: Tensor
    experts: Any
    rows_NO: Tensor


class MoE(Model):
    """A sparse Mixture-of-Experts with an explicit backward."""

    Config = MoEConfig
    config: MoEConfig

    def __init__(self, config: MoEConfig, **options: Any):
        super().__init__(config, **options)
        if config.correction:
            self.buffers["router.correction"] = self.params.flat_P.new_zeros(config.experts)

    @classmethod
    def sized(cls, name: str, **options: Any) -> MoE:
        """`MoE.sized("nano", seed=0, device="cpu")`."""
        return cls(MoEConfig.sized(name), **options)

    def shape(self, rows: int, dtype: torch.dtype) -> Shape:
        c = self.config
        return Shape(self.params.flat_P.device.type, str(dtype)[6:], rows, c.experts, c.k, c.chain, c.routing)

    def rebalance(self, load_E: Tensor) -> None:
        """Moves the selection bias towards equal load; `load_E` counts the rows of the whole batch."""
        if not self.buffers:
            super().rebalance(load_E)
        c_E = self.buffers["router.correction"]
        c_E.copy_(route.rebalance(c_E, load_E, self.config.correction))

    def load(self, weights: Weights, x_TI: Tensor) -> Tensor:
        _, saved = self._route(weights, x_TI, None, REFERENCE)
        return route.load(saved.index_TK, self.config.experts)

    def routed(self, saved: Saved) -> tuple[Tensor, Tensor]:
        return saved.routed.q_TE, saved.plan.offset_F[1:] - saved.plan.offset_F[:-1]

    def apply(
        self, weights: Weights, x_TI: Tensor, whole: route.Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Saved]:
        routed, saved = self._route(weights, x_TI, whole, kernels)
        plan = kernels.dispatch.plan(saved.index_TK, self.config.experts)
        rows_NI, _ = kernels.dispatch.forward(x_TI, plan)
        theta_EP, narrow_EP = weights.shards("experts.", self.config.experts)
        rows_NO, kept = kernels.experts.forward(
            rows_NI, theta_EP, plan, self.config.chain, narrow_EP, workspace=kernels.workspace
        )
        y_TO, _ = kernels.combine.forward(rows_NO, routed.gates_TE, plan)
        # The caller owns the output, the tape keeps its own gates.
        output = MoEOutput(y_TO, routed.gates_TE.clone(), routed.aux)
        return output, Saved(saved, plan, rows_NI, kept, rows_NO)

    def _route(
        self, weights: Weights, x_TI: Tensor, whole: route.Whole | None, kernels: Kernels
    ) -> tuple[route.Routed, route.Saved]:
        z_TE, _ = linear.forward(x_TI, weights["router.weight"], weights["router.bias"])
        return kernels.route.forward(z_TE, self.buffers.get("router.correction"), self.config.routing, whole)

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
        dy_TO, d_aux = dy
        plan = saved.plan
        drows_NO, dgates_TE = kernels.combine.backward(dy_TO, None, saved.rows_NO, saved.routed.gates_TE, plan)
        theta_EP, narrow_EP = weights.shards("experts.", self.config.experts)
        out_EP = self.params.shards_of(grad_P, "experts.", self.config.experts)
        drows_NI, _ = kernels.experts.backward(
            drows_NO,
            saved.experts,
            saved.rows_NI,
            theta_EP,
            plan,
            self.config.chain,
            narrow_EP=narrow_EP,
            out_EP=out_EP,
            accumulate=accumulate,
            want_dx=want_dx,
            workspace=kernels.workspace,
        )
        dz_TE = kernels.route.backward(route.Routed(dgates_TE, d_aux), saved.routed, self.config.routing)
        self._router_backward(grad_P, dz_TE, x_TI, accumulate)
        if not want_dx:
            return None
        return linear.input_gradient(dz_TE, weights["router.weight"]) + kernels.dispatch.backward(drows_NI, None, plan)

    def _router_backward(self, grad_P: Tensor, dz_TE: Tensor, x_TI: Tensor, accumulate: bool) -> None:
        """The router's two gradients, written or added under their names."""
        found = linear.parameter_gradients(dz_TE, x_TI)
        for name, grad in zip(("router.weight", "router.bias"), found, strict=True):
            own = self.params.views_of(grad_P)[name]
            own.add_(grad) if accumulate else own.copy_(grad)


def _small(**options: Any) -> MoEConfig:
    return MoEConfig(**{**dict(inputs=5, outputs=3, experts=4, hidden=6, depth=1), **options})


# Rows of a batch of 25.
_WHOLE = route.Whole(25, torch.tensor([20, 12, 3, 15]))


def _starved(generator: torch.Generator) -> Example:
    """Nobody chooses expert 3."""
    arguments = draw_rows(dict(T=6), generator, dict(config=_small()))
    arguments["router.bias"] = torch.tensor([0.0, 0.0, 0.0, -60.0], dtype=torch.float64)
    return Example("expert without rows", arguments, dict(config=_small(balance=0.1)))


def _ties(generator: torch.Generator) -> Example:
    """Every row sees four equal scores and takes experts 0 and 1."""
    arguments = draw_rows(dict(T=5), generator, dict(config=_small()))
    arguments |= {"router.weight": torch.zeros(4, 5).double(), "router.bias": torch.zeros(4).double()}
    return Example("ties", arguments, dict(config=_small()), smooth=False)


def _starved_gradients(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """An expert without rows has a gradient of exactly zero, and nothing is NaN."""
    wrong = sum(int((~grad.isfinite()).sum()) for grad in grads.values() if grad is not None)
    if example.label == "expert without rows":
        wrong += sum(int((g != 0).sum()) for n, g in grads.items() if n.startswith("experts.3.") and g is not None)
    return float(wrong), 0.0


CONTRACT = Contract(
    shapes="x[T,I] -> logits[T,O] aux[]",
    sizes=dict(T=(1, 7)),
    grads=("x",),
    draw=draw_rows,
    options=(
        dict(label="default", config=_small()),
        dict(label="K = 1", config=_small(k=1)),
        dict(label="K = E", config=_small(k=4)),
        dict(label="one expert", config=_small(experts=1, k=1)),
        dict(label="depth 0", config=_small(depth=0)),
        dict(label="renormalise", config=_small(renormalise=True)),
        dict(label="sigmoid", config=_small(scores="sigmoid")),
        dict(label="sigmoid, renormalise", config=_small(scores="sigmoid", renormalise=True, k=3)),
        dict(label="balance", config=_small(balance=0.1)),
        dict(label="z-loss", config=_small(z_loss=0.01)),
        dict(label="correction", config=_small(correction=0.01)),
        dict(label="part of a batch", config=_small(balance=0.1, z_loss=0.01), whole=_WHOLE),
        dict(label="everything", config=_small(scores="sigmoid", renormalise=True, balance=0.1, z_loss=0.01)),
        dict(label="nano", config=MoEConfig.sized("nano"), sizes=dict(T=(32,))),
    ),
    claims=(*EVERY_OP, equivariant("T"), Claim("zero_rows_safe", check=_starved_gradients)),
    edges=(_starved, _ties),
)
