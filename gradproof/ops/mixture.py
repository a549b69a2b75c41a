"""Mixture: router and experts as one op, with the parameters in one flat buffer.

    z = x Wᵣᵀ + bᵣ;   gates, aux = route(z);   y_t = Σ_{e∈S_t} gates_te·f_e(x_t)
    dz by route's backward from dgates_te = ⟨dy_t, f_e(x_t)⟩ + the gates' own cotangent
    dWᵣ = dzᵀ x,  dbᵣ = Σ_T dz,  dx = dz Wᵣ + the experts' dx

Only routed rows are computed: sorted by expert, processed in contiguous slices, combined in a fixed order. `theta_P`
holds the router's weight and bias, then the experts in order. Each entry is aligned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.ops import combine, dispatch, experts, linear, route
from gradproof.ops.experts import Chain
from gradproof.ops.route import Routing, Whole
from gradproof.params import padded


class Experts(NamedTuple):
    """Parameters of the experts, or their gradients; `narrow_EP` is a bf16 or fp16 copy for products, if any."""

    theta_EP: Tensor
    narrow_EP: Tensor | None = None


class Parameters(NamedTuple):
    """Parameters of router and experts, or their gradients."""

    w_EI: Tensor
    b_E: Tensor
    theta_EP: Tensor
    narrow_EP: Tensor | None = None


@dataclass(frozen=True)
class Mixture:
    """The structure of a mixture: number of experts, layers of an expert, routing."""

    experts: int
    chain: Chain
    routing: Routing

    @property
    def offsets(self) -> tuple[int, int, int]:
        """The start of the router's bias and of the first expert in theta, and the end of theta."""
        bias = padded(self.experts * self.chain.widths[0])
        first = bias + padded(self.experts)
        return bias, first, first + self.experts * self.chain.length

    def views(self, theta_P: Tensor) -> Parameters:
        """The parameters in a flat buffer."""
        (bias, first, end), E, I = self.offsets, self.experts, self.chain.widths[0]
        return Parameters(
            theta_P[: E * I].view(E, I), theta_P[bias : bias + E], theta_P[first:end].view(E, self.chain.length)
        )

    def by_name(self, theta_P: Tensor) -> dict[str, Tensor]:
        """Each parameter by name, with the experts' copies stacked."""
        of = self.views(theta_P)
        return {"router.weight": of.w_EI, "router.bias": of.b_E, **experts.by_name(of.theta_EP, self.chain)}


class MixtureOps(NamedTuple):
    """The modules that run the parts."""

    route: ModuleType = route
    dispatch: ModuleType = dispatch
    experts: ModuleType = experts
    combine: ModuleType = combine


class Mixed(NamedTuple):
    y_TO: Tensor
    gates_TE: Tensor  # exactly 0 off S
    aux: Tensor


class Saved(NamedTuple):
    routed: route.Saved
    plan: dispatch.DispatchPlan
    rows_NI: Tensor
    experts: Any
    rows_NO: Tensor

    @property
    def q_TE(self) -> Tensor:
        """The router's distribution over the experts."""
        return self.routed.q_TE

    @property
    def load_E(self) -> Tensor:
        """How many rows each expert received."""
        return self.plan.offset_F[1:] - self.plan.offset_F[:-1]


def compose(
    x_TI: Tensor,
    of: Parameters,
    c_E: Tensor | None,
    mixture: Mixture,
    whole: Whole | None = None,
    workspace: object | None = None,
    parts: MixtureOps | None = None,
) -> tuple[Mixed, Saved]:
    """The forward, composed of its parts."""
    z_TE, _ = linear.forward(x_TI, of.w_EI, of.b_E)
    return of_logits(x_TI, z_TE, of, c_E, mixture, whole, workspace, parts)


def of_logits(
    x_TI: Tensor,
    z_TE: Tensor,
    of: Experts | Parameters,
    c_E: Tensor | None,
    mixture: Mixture,
    whole: Whole | None = None,
    workspace: object | None = None,
    parts: MixtureOps | None = None,
) -> tuple[Mixed, Saved]:
    """The part of the forward after the logits, for any router."""
    parts = parts or MixtureOps()
    routed, saved = parts.route.forward(z_TE, c_E, mixture.routing, whole)
    plan = parts.dispatch.plan(saved.index_TK, mixture.experts)
    rows_NI, _ = parts.dispatch.forward(x_TI, plan)
    rows_NO, kept = parts.experts.forward(rows_NI, of.theta_EP, plan, mixture.chain, of.narrow_EP, workspace=workspace)
    y_TO, _ = parts.combine.forward(rows_NO, routed.gates_TE, plan)
    # The caller owns the output; the tape keeps its own gates.
    return Mixed(y_TO, routed.gates_TE.clone(), routed.aux), Saved(saved, plan, rows_NI, kept, rows_NO)


def pull_back(
    dy_TO: Tensor,
    dgates_TE: Tensor | None,
    daux: Tensor,
    saved: Saved,
    x_TI: Tensor,
    of: Parameters,
    out: Parameters,
    mixture: Mixture,
    accumulate: bool = False,
    want_dx: bool = True,
    workspace: object | None = None,
    parts: MixtureOps | None = None,
) -> Tensor | None:
    """The backward, composed of its parts. Writes or adds the gradients to `out`, and returns dx_TI if `want_dx`."""
    how = (mixture, accumulate, want_dx, workspace, parts)
    dz_TE, dx_TI = to_logits(dy_TO, dgates_TE, daux, saved, of, out, *how)
    for own, grad in zip((out.w_EI, out.b_E), linear.parameter_gradients(dz_TE, x_TI), strict=True):
        own.add_(grad) if accumulate else own.copy_(grad)
    return None if dx_TI is None else linear.input_gradient(dz_TE, of.w_EI) + dx_TI


def to_logits(
    dy_TO: Tensor,
    dgates_TE: Tensor | None,
    daux: Tensor,
    saved: Saved,
    of: Experts | Parameters,
    out: Experts | Parameters,
    mixture: Mixture,
    accumulate: bool = False,
    want_dx: bool = True,
    workspace: object | None = None,
    parts: MixtureOps | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The backward of `of_logits`. Returns dz_TE and, if `want_dx`, the experts' dx. Writes or adds the experts'
    gradients to `out`.
    """
    parts, plan = parts or MixtureOps(), saved.plan
    drows_NO, dcombined_TE = parts.combine.backward(dy_TO, None, saved.rows_NO, saved.routed.gates_TE, plan)
    drows_NI, _ = parts.experts.backward(
        drows_NO,
        saved.experts,
        saved.rows_NI,
        of.theta_EP,
        plan,
        mixture.chain,
        narrow_EP=of.narrow_EP,
        out_EP=out.theta_EP,
        accumulate=accumulate,
        want_dx=want_dx,
        workspace=workspace,
    )
    if dgates_TE is not None:
        dcombined_TE = dcombined_TE + dgates_TE
    dz_TE = parts.route.backward(route.Routed(dcombined_TE, daux), saved.routed, mixture.routing)
    return dz_TE, parts.dispatch.backward(drows_NI, None, plan) if want_dx else None


def forward(
    x_TI: Tensor,
    theta_P: Tensor,
    c_E: Tensor | None,
    mixture: Mixture,
    whole: Whole | None = None,
    workspace: object | None = None,
) -> tuple[Mixed, Saved]:
    """y_TO, the gates and the auxiliary loss. Kernels may keep buffers in `workspace`."""
    return compose(x_TI, mixture.views(theta_P), c_E, mixture, whole)


def backward(
    dy: Mixed,
    saved: Saved,
    x_TI: Tensor,
    theta_P: Tensor,
    mixture: Mixture,
    out_P: Tensor | None = None,
    accumulate: bool = False,
    want_dx: bool = True,
    workspace: object | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Returns dx_TI, dtheta_P. `out_P`, if given, receives or accumulates dtheta. dx is None if `want_dx` is false."""
    dtheta_P = torch.zeros_like(theta_P) if out_P is None else out_P
    of, out = mixture.views(theta_P), mixture.views(dtheta_P)
    return pull_back(*dy, saved, x_TI, of, out, mixture, accumulate, want_dx), dtheta_P


def _arguments(rows: int, mixture: Mixture, generator: torch.Generator) -> dict[str, Any]:
    """Parameters of typical size; the padding is zero."""
    theta_P = torch.zeros(mixture.offsets[-1], dtype=torch.float64)
    of, width = mixture.views(theta_P), mixture.chain.widths[0]
    of.w_EI.copy_(torch.randn(of.w_EI.shape, generator=generator) / width**0.5)
    of.b_E.copy_(0.3 * torch.randn(of.b_E.shape, generator=generator))
    of.theta_EP.copy_(experts.draw_theta(mixture.chain, mixture.experts, generator))
    return dict(x=torch.randn(rows, width, generator=generator, dtype=torch.float64), theta=theta_P, c=None)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    return _arguments(sizes["T"], options["mixture"], generator)


_CHAIN = Chain((5, 12, 3), (True,))


def _example(label: str, rows: int, generator: torch.Generator, smooth: bool = True, **routing: Any) -> Example:
    mixture = Mixture(4, _CHAIN, Routing(**routing))
    return Example(label, _arguments(rows, mixture, generator), dict(mixture=mixture), smooth)


def _ties(generator: torch.Generator) -> Example:
    """Every row has four equal scores and takes experts 0 and 1."""
    example = _example("ties", 5, generator, smooth=False)
    of = example.options["mixture"].views(example.arguments["theta"])
    of.w_EI.zero_()
    of.b_E.zero_()
    return example


STARVED = "expert without rows"


def _starved(generator: torch.Generator) -> Example:
    """No row chooses expert 3."""
    example = _example(STARVED, 6, generator, balance=0.1)
    example.options["mixture"].views(example.arguments["theta"]).b_E[3] = -60.0
    return example


def _corrected(generator: torch.Generator) -> Example:
    example = _example("correction", 9, generator, balance=0.1)
    c_E = torch.tensor([0.4, 0.0, -0.4, 0.1]).double()
    return Example(example.label, {**example.arguments, "c": c_E}, example.options)


def _part(generator: torch.Generator) -> Example:
    """Seven rows of a batch of 25."""
    example = _example("part of a batch", 7, generator, balance=0.1, z_loss=0.01)
    whole = Whole(25, torch.tensor([20, 12, 3, 15]))
    return Example(example.label, example.arguments, {**example.options, "whole": whole})


def _starved_gradients(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """An expert without rows has exactly zero gradient. Nothing is NaN."""
    wrong = sum(int((~grad.isfinite()).sum()) for grad in grads.values() if grad is not None)
    if example.label == STARVED and (dtheta_P := grads.get("theta")) is not None:
        wrong += int((example.options["mixture"].views(dtheta_P).theta_EP[3] != 0).sum())
    return float(wrong), 0.0


def _load(module: Any, example: Example) -> Tensor:
    given = dict(zip(("x_TI", "theta_P", "c_E"), example.arguments.values(), strict=True))
    return module.forward(**given, **example.options)[1].load_E


def settled(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces rows whose decision margin is below 0.001 by rows with a larger one."""
    x_TI, mixture = arguments["x"], options["mixture"]
    of = mixture.views(arguments["theta"])
    z_TE, _ = linear.forward(x_TI, of.w_EI, of.b_E)
    return {**arguments, "x": x_TI[route.firm(route.margin(z_TE, arguments["c"], mixture.routing))]}


EDGES = (_ties, _starved, _corrected)

CONTRACT = Contract(
    shapes="x[T,I] theta[P] c[E] -> y[T,O] gates[T,E] aux[]",
    sizes=dict(T=(1, 33)),
    grads=("x", "theta"),
    parameters=("theta",),
    out=("theta",),
    settled=settled,
    draw=_draw,
    options=(
        dict(mixture=Mixture(4, _CHAIN, Routing())),
        dict(mixture=Mixture(5, Chain((19, 16, 11, 3), (True, True)), Routing(k=1))),
        dict(mixture=Mixture(3, Chain((3, 10, 5), (False,)), Routing(k=3, renormalise=True, balance=0.2, z_loss=0.02))),
        dict(mixture=Mixture(1, Chain((4, 2), ()), Routing(k=1))),
        dict(mixture=Mixture(17, _CHAIN, Routing(scores="sigmoid", renormalise=True, balance=0.2, z_loss=0.02))),
    ),
    claims=(*EVERY_OP, equivariant("T"), Claim("zero_rows_safe", check=_starved_gradients)),
    edges=(*EDGES, _part),
    parts={"theta": lambda theta_P, options: options["mixture"].by_name(theta_P)},
    same=_load,
)
