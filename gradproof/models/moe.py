"""Sparse Mixture-of-Experts.

    z = x Wᵣᵀ + bᵣ, or z, energy = sheaf(x);  gates, aux = route(z);  y_t = Σ_{e∈S_t} gates_te·f_e(x_t)
    with the sheaf router γ·mean_T(energy) is added to aux, T being the rows of the whole batch
    f_e: (Linear → LayerNorm → GELU) × (1 + depth), then Linear to O

Only routed rows are computed: sorted by expert, worked on in contiguous slices, combined in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.kernels.shapes import ROW_FUSED, Shape
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.models.expert_ranks import ExpertRanks
from gradproof.models.expert_turns import ExpertsInTurn
from gradproof.models.model import Model, MoEOutput, draw_rows, spec_count
from gradproof.ops import experts, linear, mixture, route, sheaf
from gradproof.ops.experts import Chain
from gradproof.ops.mixture import Experts, Mixture, MixtureOps, Parameters
from gradproof.ops.sheaf import Cover
from gradproof.params import Entry, Weights


@dataclass(frozen=True)
class MoEConfig:
    """Shape and routing of a mixture of experts. `correction` > 0 balances the load with a selection bias that moves by
    this amount per step.

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
            raise ValueError(
                f"k = {self.k} experts per row cannot be chosen from {self.experts}; k must be at most experts"
            )
        if not 0 <= self.correction < float("inf"):
            raise ValueError(
                f"correction = {self.correction} must be finite and at least 0: it is the step of the selection bias"
            )
        if not 0 <= self.gluing < float("inf"):
            raise ValueError(f"gluing = {self.gluing} must be finite and at least 0: it is a weight of the loss")
        if self.router not in ("softmax", "sheaf"):
            raise ValueError(f"router = {self.router!r} must be softmax or sheaf")
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

    @cached_property
    def mixture(self) -> Mixture:
        """The options of the op `mixture`."""
        return Mixture(self.experts, self.chain, self.routing)

    @classmethod
    def sized(cls, name: str, **overrides: Any) -> MoEConfig:
        """nano, tiny, medium or full; a number is the count to match, for the `inputs` and `outputs` given."""
        shapes = {"nano": (128, 2), "tiny": (2048, 5), "medium": (4096, 5), "full": (4096, 12)}
        if name.isdecimal():
            ends = {end: overrides.pop(end) for end in ("inputs", "outputs") if end in overrides}
            return replace(cls.matching(int(name), **ends), **overrides)
        if name not in shapes:
            raise ValueError(f"there is no MoE size {name!r}; the sizes are {', '.join(shapes)}, or a count")
        hidden, depth = shapes[name]
        return replace(cls(hidden=hidden, depth=depth), **overrides)

    @classmethod
    def matching(
        cls,
        budget: int,
        inputs: int = 96,
        outputs: int = 20,
        *,
        measure: Measure | None = None,
        **fixed: Any,
    ) -> MoEConfig:
        """The config whose `measure`, by default its parameter count, is nearest to `budget`, of the least depth that
        comes within a percent: narrow experts learn better when they are not deep. Where none does, whichever depth up
        to 5 comes nearest. `fixed` are other fields: the router, the experts, …"""
        of: Measure = measure or (lambda config: config.param_count())
        nearest = [_widest(cls(inputs, outputs, **{**fixed, "depth": depth}), budget, of) for depth in range(1, 6)]
        error = {config: abs(of(config) - budget) for config in nearest}
        near = [config for config in nearest if error[config] <= 0.01 * budget]
        best = near[0] if near else min(nearest, key=lambda config: error[config])
        if best.hidden == 1 and of(best) > 2 * budget:
            raise ValueError(f"no MoE of {inputs} inputs and {outputs} outputs has as few as {budget:,} parameters")
        return best

    def spec(self) -> list[Entry]:
        """The parameters: the router, then the experts, each layer by layer."""
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

    def active_count(self) -> int:
        """The number of parameters active per row: those of the router and of K experts."""
        return self.param_count() - (self.experts - self.k) * spec_count(experts.entries("", self.chain.widths))

    def flops_per_row(self) -> int:
        """FLOPs of the products of a training step per row, forward and backward: 6 per active weight."""
        router = self.cover.products if self.cover else self.inputs * self.experts
        return 6 * (self.k * self.chain.products + router)

    def saved_per_row(self) -> int:
        """The number of values that a tape keeps per input row (without indices)."""
        routed = self.inputs + experts.saved_per_row(self.chain) + self.outputs
        glued = self.cover.saved_per_row() if self.cover else 0
        return self.k * routed + 3 * self.experts + glued

    def working_per_row(self, device: str) -> int:
        """The number of additional values per row at the peak of the backward."""
        if device == "cpu":  # a norm's mean and deviation, three indices of 8 bytes; nobody asks for dx
            return self.inputs + 3 * self.outputs + self.k * (self.outputs + 2 * self.chain.layers + 6)
        routed = self.k * (self.inputs + 2 * self.outputs + experts.WORKING[device] * self.hidden)
        return self.inputs + self.outputs + routed

    def shared_by_threads(self) -> int:
        """The number of values that each further CPU thread holds: the gradients of an expert with shared rows."""
        return self.chain.length


def _widest(base: MoEConfig, budget: int, measure: Measure) -> MoEConfig:
    """`base` with the hidden width whose measure is nearest to the budget; the measure rises with the width."""
    low, high = 1, 2

    def count(hidden: int) -> int:
        return measure(replace(base, hidden=hidden))

    while count(high) < budget:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= budget else (low, middle)
    return replace(base, hidden=min((low, high), key=lambda hidden: abs(count(hidden) - budget)))


Measure = Callable[[MoEConfig], int]


class GluedSaved(NamedTuple):
    """What a forward with the sheaf router saves."""

    energy_T: Tensor
    router: sheaf.Saved | None
    rest: mixture.Saved

    @property
    def q_TE(self) -> Tensor:
        return self.rest.q_TE

    @property
    def load_E(self) -> Tensor:
        return self.rest.load_E


class MoE(Model):
    """A sparse Mixture-of-Experts with an explicit backward."""

    Config = MoEConfig
    config: MoEConfig
    ranks: ExpertRanks | None = None

    def __init__(self, config: MoEConfig, *, ranks: ExpertRanks | None = None, **options: Any):
        """`ranks` spreads the experts over ranks: this model then holds its share of them."""
        self.ranks = ranks
        super().__init__(config, **options)
        if config.correction:
            self.buffers["router.correction"] = self.params.flat_P.new_zeros(config.experts)

    def _entries(self, config: MoEConfig) -> list[Entry]:
        return config.spec() if self.ranks is None else self.ranks.spec(config.spec())

    @property
    def held(self) -> int:
        """The number of experts that this model holds."""
        return self.config.experts if self.ranks is None else self.ranks.held

    def _parts(self, kernels: Kernels) -> MixtureOps:
        if self.ranks is not None:
            return self.ranks.parts(kernels)
        if kernels.in_turns and self.params.flat_P.is_cpu:
            return kernels.parts._replace(experts=ExpertsInTurn(kernels))  # type: ignore[arg-type]
        return kernels.parts

    @classmethod
    def sized(cls, name: str, **options: Any) -> MoE:
        """`MoE.sized("nano", seed=0, device="cpu")`."""
        return cls(MoEConfig.sized(name), **options)

    def shape(self, rows: int, dtype: torch.dtype) -> Shape:
        c, flat_P = self.config, self.params.flat_P
        whole = c.cover is None and self.ranks is None  # what the fused ops compute: the linear router, all experts
        fused = ROW_FUSED if whole else ("update",)
        of = (rows, c.experts, c.k, c.chain, c.routing)
        return Shape(flat_P.device.type, str(dtype)[6:], *of, fused=fused, parameters=flat_P.numel())

    @property
    def lesson(self) -> tuple[Tensor | None, Mixture]:
        return self.buffers.get("router.correction"), self.config.mixture

    @property
    def experts(self) -> int:
        return self.config.experts

    @property
    def has_energy(self) -> bool:
        return self.config.cover is not None

    def rebalance(self, load_E: Tensor) -> None:
        """Moves the selection bias towards equal load; `load_E` counts the rows of the whole batch."""
        if not self.buffers:
            super().rebalance(load_E)
        c_E = self.buffers["router.correction"]
        c_E.copy_(route.rebalance(c_E, load_E, self.config.correction))

    def _logits(self, weights: Weights, x_TI: Tensor) -> Tensor:
        """z_TE of the router."""
        if self.config.cover is None:
            return linear.forward(x_TI, weights["router.weight"], weights["router.bias"])[0]
        return sheaf.forward(x_TI, self._sheaf(weights), self.config.cover)[0].z_TE

    def settled(self, weights: Weights, x_TI: Tensor, /) -> Tensor:
        return x_TI[route.firm(self.margin(weights, x_TI))]

    def margin(self, weights: Weights, x_TI: Tensor) -> Tensor:
        return route.margin(self._logits(weights, x_TI), self.buffers.get("router.correction"), self.config.routing)

    def favouring(self, weights: Weights, x_TI: Tensor, rows: int) -> Tensor:
        first_T = self._logits(weights, x_TI).argmax(1)
        busiest = route.load(first_T, self.config.experts).argmax()
        return x_TI[(first_T != busiest).int().argsort(stable=True)[:rows]]

    @property
    def balanced(self) -> bool:
        return self.config.balance > 0

    @property
    def held_alike(self) -> int:
        return next(start for name, start in self.params.offsets.items() if name.startswith("experts."))

    def load(self, weights: Weights, x_TI: Tensor, kernels: Kernels = REFERENCE) -> Tensor:
        if not x_TI.shape[0]:
            return x_TI.new_zeros(self.config.experts, dtype=torch.int64)
        z_TE = self._logits(weights, x_TI)
        _, saved = kernels.route.forward(z_TE, self.buffers.get("router.correction"), self.config.routing)
        return route.load(saved.index_TK, self.config.experts)

    def chosen(self, weights: Weights, x_TI: Tensor) -> Tensor:
        z_TE = self._logits(weights, x_TI)
        _, saved = route.forward(z_TE, self.buffers.get("router.correction"), self.config.routing)
        return torch.zeros_like(z_TE, dtype=torch.bool).scatter(1, saved.index_TK, True)

    def pull_router(self, weights: Weights, dz_TE: Tensor, x_TI: Tensor) -> Tensor:
        if self.config.cover is None:
            return dz_TE @ weights["router.weight"]
        theta_P = self._sheaf(weights)
        glued, saved = sheaf.forward(x_TI, theta_P, self.config.cover)
        dy = sheaf.Glued(dz_TE, torch.zeros_like(glued.energy_T))
        dx_TI, _ = sheaf.backward(dy, saved, x_TI, theta_P, self.config.cover, True)
        assert dx_TI is not None
        return dx_TI

    def routed(self, saved: Any) -> tuple[Tensor, Tensor]:
        return saved.q_TE, saved.load_E

    def energy(self, saved: Any) -> Tensor | None:
        return saved.energy_T if isinstance(saved, GluedSaved) else None

    def apply(
        self, weights: Weights, x_TI: Tensor, whole: route.Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Any]:
        given = (self.buffers.get("router.correction"), self.config.mixture, whole, kernels.workspace)
        if self.config.cover is not None:
            return self._apply_glued(weights, x_TI, self.config.cover, given, kernels)
        if self._fused(weights, kernels):
            mixed, saved = kernels.mixture.forward(x_TI, self.params.flat_P, *given)  # pyright: ignore[reportOptionalMemberAccess]
        else:
            mixed, saved = mixture.compose(x_TI, self._parameters(weights), *given, self._parts(kernels))
        return MoEOutput(*mixed), saved

    def _apply_glued(
        self,
        weights: Weights,
        x_TI: Tensor,
        cover: Cover,
        given: tuple[Tensor | None, Mixture, route.Whole | None, Any],
        kernels: Kernels,
    ) -> tuple[MoEOutput, GluedSaved]:
        """With the sheaf router, whose energy joins the auxiliary loss."""
        (z_TE, energy_T), router = sheaf.forward(x_TI, self._sheaf(weights), cover)
        (y_TO, gates_TE, aux), rest = mixture.of_logits(
            x_TI, z_TE, self._experts(weights), *given, self._parts(kernels)
        )
        aux = aux + self.config.gluing / rest.routed.rows * energy_T.sum()
        return MoEOutput(y_TO, gates_TE, aux), GluedSaved(energy_T, router, rest)

    def _denergy(self, d_aux: Tensor, energy_T: Tensor, rows: int) -> Tensor:
        """What the auxiliary loss of a batch of so many rows asks of each row's energy."""
        return (d_aux * (self.config.gluing / rows)).expand_as(energy_T)

    def _fused(self, weights: Weights, kernels: Kernels) -> bool:
        """The fused kernel reads one flat buffer, in the dtype of the products."""
        whole = self.ranks is None and not kernels.in_turns
        return kernels.mixture is not None and weights is self.params and whole

    def _parameters(self, weights: Weights) -> Parameters:
        return Parameters(weights["router.weight"], weights["router.bias"], *self._experts(weights))

    def _experts(self, weights: Weights) -> Experts:
        return Experts(*weights.shards("experts.", self.held))

    def _sheaf(self, weights: Weights) -> Tensor:
        """theta_P of the sheaf router. From the masters: a router is never narrow."""
        return weights.shards("router.", 1)[0][0]

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
        how, cotangents = (accumulate, want_dx, kernels.workspace), (dy[0], None, dy[1])
        if isinstance(saved, GluedSaved):
            return self._pull_back_glued(weights, grad_P, cotangents, x_TI, saved, how, kernels)
        if self._fused(weights, kernels):
            flat = (x_TI, self.params.flat_P, self.config.mixture, grad_P)
            return kernels.mixture.backward(cotangents, saved, *flat, *how)[0]  # pyright: ignore[reportOptionalMemberAccess]
        views, shards_EP = self.params.views_of(grad_P), self.params.shards_of(grad_P, "experts.", self.held)
        out = Parameters(views["router.weight"], views["router.bias"], shards_EP)
        of = self._parameters(weights)
        return mixture.pull_back(*cotangents, saved, x_TI, of, out, self.config.mixture, *how, self._parts(kernels))

    def _pull_back_glued(
        self,
        weights: Weights,
        grad_P: Tensor,
        cotangents: tuple[Tensor, None, Tensor],
        x_TI: Tensor,
        saved: GluedSaved,
        how: tuple[bool, bool, Any],
        kernels: Kernels,
    ) -> Tensor | None:
        """The same through the sheaf router, the energy's share in the auxiliary loss included."""
        (accumulate, want_dx, _), cover = how, self.config.cover
        assert cover is not None
        out = Experts(self.params.shards_of(grad_P, "experts.", self.held))
        dz_TE, dx_TI = mixture.to_logits(
            *cotangents, saved.rest, self._experts(weights), out, self.config.mixture, *how, self._parts(kernels)
        )
        denergy_T = self._denergy(cotangents[2], saved.energy_T, saved.rest.routed.rows)
        glued, theta_P = sheaf.Glued(dz_TE, denergy_T), self._sheaf(weights)
        more_TI, dtheta_P = sheaf.backward(glued, saved.router, x_TI, theta_P, cover, want_dx)
        own_P = self.params.shards_of(grad_P, "router.", 1)[0]
        own_P.add_(dtheta_P) if accumulate else own_P.copy_(dtheta_P)
        return dx_TI + more_TI if dx_TI is not None and more_TI is not None else None


def _small(**options: Any) -> MoEConfig:
    return MoEConfig(**{**dict(inputs=5, outputs=3, experts=4, hidden=6, depth=1), **options})


def _glued(**options: Any) -> MoEConfig:
    return _small(router="sheaf", patches=(2, 1, 2), gluing=0.3, **options)


STARVED = "expert without rows"
# Rows of a batch of 25.
_WHOLE = route.Whole(25, torch.tensor([20, 12, 3, 15]))


def _starved(generator: torch.Generator) -> Example:
    """Nobody chooses expert 3."""
    arguments = draw_rows(dict(T=6), generator, dict(config=_small()))
    arguments["router.bias"] = torch.tensor([0.0, 0.0, 0.0, -60.0], dtype=torch.float64)
    return Example(STARVED, arguments, dict(config=_small(balance=0.1)))


def _ties(generator: torch.Generator) -> Example:
    """Every row sees four equal scores and takes experts 0 and 1."""
    arguments = draw_rows(dict(T=5), generator, dict(config=_small()))
    arguments |= {"router.weight": torch.zeros(4, 5).double(), "router.bias": torch.zeros(4).double()}
    return Example("ties", arguments, dict(config=_small()), smooth=False)


def _starved_gradients(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """An expert without rows has a gradient of exactly zero, and nothing is NaN."""
    wrong = sum(int((~grad.isfinite()).sum()) for grad in grads.values() if grad is not None)
    if example.label == STARVED:
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
        dict(label="nano", config=MoEConfig.sized("nano"), sizes=dict(T=(32,)), by_name=True),
    ),
    claims=(*EVERY_OP, equivariant("T"), Claim("zero_rows_safe", check=_starved_gradients)),
    edges=(_starved, _ties),
)
