"""Sparse Mixture-of-Experts.

    z = x Wᵣᵀ + bᵣ, or z, energy = sheaf(x);  gates, aux = route(z);  y_t = Σ_{e∈S_t} gates_te·f_e(x_t)
    with the sheaf router γ·mean_T(energy) is added to aux, T being the rows of the whole batch
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
from gradproof.ops import dispatch, experts, linear, route, sheaf
from gradproof.ops.experts import Chain
from gradproof.ops.sheaf import Cover
from gradproof.params import Entry, Weights


@dataclass(frozen=True)
class MoEConfig:
    """Shape and routing. `correction` > 0 balances the load by a selection bias that moves by that much a step.

    The sheaf router reads the inputs in `patches`, the widths of neighbouring blocks of them, from the first input to
    the last; none is one block. `gluing` weighs its energy in the auxiliary loss."""

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
    router: Literal["softmax", "sheaf"] = "softmax"
    patches: tuple[int, ...] = ()
    gluing: float = 0.01

    def __post_init__(self):
        if min(self.inputs, self.outputs, self.experts, self.hidden) < 1 or self.depth < 0:
            raise ValueError("inputs, outputs, experts and hidden must be at least 1, depth at least 0")
        if self.k > self.experts:
            raise ValueError(f"k = {self.k} experts a row cannot be chosen from {self.experts}; k must be at most E")
        if not 0 <= self.correction < float("inf"):
            raise ValueError(f"correction = {self.correction}: a step of the selection bias is at least 0, and finite")
        if not 0 <= self.gluing < float("inf"):
            raise ValueError(f"gluing = {self.gluing}: a weight of the loss is at least 0, and finite")
        if self.router not in ("softmax", "sheaf"):
            raise ValueError(f"router = {self.router!r}: it is one of softmax, sheaf")
        if self.patches and (min(self.patches) < 1 or sum(self.patches) != self.inputs):
            raise ValueError(f"patches = {self.patches}: widths of at least 1 that add up to the {self.inputs} inputs")
        _ = self.routing

    @cached_property
    def routing(self) -> route.Routing:
        return route.Routing(self.k, self.scores, self.renormalise, self.balance, self.z_loss)

    @cached_property
    def cover(self) -> Cover | None:
        """The patches of the sheaf router."""
        return Cover(self.patches or (self.inputs,), self.experts) if self.router == "sheaf" else None

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
    def matching(cls, budget: int, inputs: int = 96, outputs: int = 20, **fixed: Any) -> MoEConfig:
        """The config whose parameter count is nearest to `budget`: depth 2 where that comes within half a percent,
        otherwise whichever depth up to 5 comes nearest. `fixed` are other fields: the router, the experts, …"""
        nearest = [_widest(cls(inputs, outputs, **{**fixed, "depth": depth}), budget) for depth in range(1, 6)]
        error = {config: abs(config.param_count() - budget) for config in nearest}
        best = nearest[1] if error[nearest[1]] <= 0.005 * budget else min(nearest, key=lambda config: error[config])
        if best.hidden == 1 and best.param_count() > 2 * budget:
            raise ValueError(f"no MoE of {inputs} inputs and {outputs} outputs has as few as {budget:,} parameters")
        return best

    def spec(self) -> list[Entry]:
        """Router first, then the experts, each in the order of its layers."""
        spec = self._router_spec()
        for e in range(self.experts):
            spec += experts.entries(f"experts.{e}.", self.chain.widths)
        return spec

    def _router_spec(self) -> list[Entry]:
        if self.cover is None:
            return experts.linear_entries("router", self.inputs, self.experts)
        return [entry._replace(name=f"router.{entry.name}") for entry in self.cover.spec]

    def param_count(self) -> int:
        """The exact number of parameters, without allocating one."""
        expert = spec_count(experts.entries("", self.chain.widths))
        return self.experts * expert + spec_count(self._router_spec())

    def saved_per_row(self) -> int:
        """How many numbers a tape keeps for each input row (indices not counted)."""
        routed = self.inputs + experts.saved_per_row(self.chain) + self.outputs
        glued = self.cover.saved_per_row() if self.cover else 0
        return self.k * routed + 3 * self.experts + glued

    def working_per_row(self, device: str) -> int:
        """How many numbers more a step holds for each row, at the worst moment of its backward."""
        routed = self.k * (self.inputs + 2 * self.outputs + experts.WORKING[device] * self.hidden)
        return self.inputs + self.outputs + routed


def _widest(base: MoEConfig, budget: int) -> MoEConfig:
    """`base` with the hidden width whose count is nearest to the budget; the count rises with the width."""
    low, high = 1, 2

    def count(hidden: int) -> int:
        return replace(base, hidden=hidden).param_count()

    while count(high) < budget:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= budget else (low, middle)
    return replace(base, hidden=min((low, high), key=lambda hidden: abs(count(hidden) - budget)))


class Saved(NamedTuple):
    glued: tuple[Tensor, sheaf.Saved | None] | None  # energy_T of the sheaf router, and what it saved
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
        z_TE, _ = self._logits(weights, x_TI)
        _, saved = self._route(z_TE, None, REFERENCE)
        return route.load(saved.index_TK, self.config.experts)

    def routed(self, saved: Saved) -> tuple[Tensor, Tensor]:
        return saved.routed.q_TE, saved.plan.offset_F[1:] - saved.plan.offset_F[:-1]

    def energy(self, saved: Saved) -> Tensor | None:
        return saved.glued[0] if saved.glued else None

    def apply(
        self, weights: Weights, x_TI: Tensor, whole: route.Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Saved]:
        z_TE, glued = self._logits(weights, x_TI)
        routed, saved = self._route(z_TE, whole, kernels)
        plan = kernels.dispatch.plan(saved.index_TK, self.config.experts)
        rows_NI, _ = kernels.dispatch.forward(x_TI, plan)
        theta_EP, narrow_EP = weights.shards("experts.", self.config.experts)
        rows_NO, kept = kernels.experts.forward(
            rows_NI, theta_EP, plan, self.config.chain, narrow_EP, workspace=kernels.workspace
        )
        y_TO, _ = kernels.combine.forward(rows_NO, routed.gates_TE, plan)
        # The caller owns the output, the tape keeps its own gates.
        aux = routed.aux if glued is None else routed.aux + self.config.gluing / saved.rows * glued[0].sum()
        output = MoEOutput(y_TO, routed.gates_TE.clone(), aux)
        return output, Saved(glued, saved, plan, rows_NI, kept, rows_NO)

    def _logits(self, weights: Weights, x_TI: Tensor) -> tuple[Tensor, tuple[Tensor, sheaf.Saved | None] | None]:
        """z_TE, and of the sheaf router energy_T with what it saved. From the masters: a router is never narrow."""
        if self.config.cover is None:
            return linear.forward(x_TI, weights["router.weight"], weights["router.bias"])[0], None
        theta_1P, _ = weights.shards("router.", 1)
        (z_TE, energy_T), saved = sheaf.forward(x_TI, theta_1P[0], self.config.cover)
        return z_TE, (energy_T, saved)

    def _route(self, z_TE: Tensor, whole: route.Whole | None, kernels: Kernels) -> tuple[route.Routed, route.Saved]:
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
        pulled = self._linear_backward if self.config.cover is None else self._sheaf_backward
        dx_TI, found = pulled(weights, dz_TE, d_aux, x_TI, saved, want_dx)
        for own, grad in zip(self._router_views(grad_P), found, strict=True):
            own.add_(grad) if accumulate else own.copy_(grad)
        return None if dx_TI is None else dx_TI + kernels.dispatch.backward(drows_NI, None, plan)

    def _router_views(self, grad_P: Tensor) -> tuple[Tensor, ...]:
        """The router's gradients: two, or those of the sheaf router in one."""
        if self.config.cover is not None:
            return (self.params.shards_of(grad_P, "router.", 1)[0],)
        views = self.params.views_of(grad_P)
        return views["router.weight"], views["router.bias"]

    def _linear_backward(
        self, weights: Weights, dz_TE: Tensor, d_aux: Tensor, x_TI: Tensor, saved: Saved, want_dx: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """What the router sends to x, and its own gradients."""
        dx_TI = linear.input_gradient(dz_TE, weights["router.weight"]) if want_dx else None
        return dx_TI, linear.parameter_gradients(dz_TE, x_TI)

    def _sheaf_backward(
        self, weights: Weights, dz_TE: Tensor, d_aux: Tensor, x_TI: Tensor, saved: Saved, want_dx: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """The same, the energy's share in the auxiliary loss included."""
        assert saved.glued is not None and self.config.cover is not None
        energy_T, kept = saved.glued
        denergy_T = (d_aux * (self.config.gluing / saved.routed.rows)).expand_as(energy_T)
        theta_1P, _ = weights.shards("router.", 1)
        glued = sheaf.Glued(dz_TE, denergy_T)
        dx_TI, dtheta_P = sheaf.backward(glued, kept, x_TI, theta_1P[0], self.config.cover, want_dx)
        return dx_TI, (dtheta_P,)


def _small(**options: Any) -> MoEConfig:
    return MoEConfig(**{**dict(inputs=5, outputs=3, experts=4, hidden=6, depth=1), **options})


def _glued(**options: Any) -> MoEConfig:
    return _small(router="sheaf", patches=(2, 1, 2), gluing=0.3, **options)


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
        dict(label="sheaf", config=_glued()),
        dict(label="sheaf, one patch", config=_small(router="sheaf", balance=0.1)),
        dict(label="sheaf, K = 1", config=_glued(k=1, correction=0.01)),
        dict(label="sheaf, part of a batch", config=_glued(balance=0.1, z_loss=0.01), whole=_WHOLE),
        dict(label="sheaf, everything", config=_glued(scores="sigmoid", renormalise=True, balance=0.1, z_loss=0.01)),
        dict(label="nano", config=MoEConfig.sized("nano")),
    ),
    claims=(*EVERY_OP, equivariant("T"), Claim("zero_rows_safe", check=_starved_gradients)),
    edges=(_starved, _ties),
)
