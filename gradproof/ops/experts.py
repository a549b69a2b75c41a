"""Experts: applies the layers of each expert to its own rows.

    rows of expert e:  (Linear → LayerNorm → GELU if active) × layers, then Linear

`theta_EP` holds one expert per row: the parameters of its layers in order, each aligned. A dense model is one expert
with all rows. The backward keeps only h, the products of the layers, and recomputes the layers' inputs from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs
from gradproof.ops import dispatch, linear, norm_gelu, wide
from gradproof.ops.dispatch import DispatchPlan
from gradproof.params import Entry, offsets


@dataclass(frozen=True)
class Chain:
    """The layers of one expert: the widths from input to output, and which layers have a GELU."""

    widths: tuple[int, ...]
    active: tuple[bool, ...]

    @property
    def layers(self) -> int:
        """The number of layers with a norm; the last linear layer does not count."""
        return len(self.active)

    @property
    def products(self) -> int:
        """The number of matrix weights: multiplications per row."""
        return sum(i * o for i, o in pairwise(self.widths))

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The start of each parameter in an expert's row of theta."""
        starts, end = offsets(entries("", self.widths))
        return {**starts, "": end}

    @property
    def length(self) -> int:
        """P: the length of an expert's parameters with padding."""
        return self.offsets[""]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        return {name: shape for name, shape, _ in entries("", self.widths)}

    def views(self, theta_P: Tensor) -> dict[str, Tensor]:
        """One expert's parameters by name."""
        return {name: self.view(theta_P, name) for name in self.shapes}

    def view(self, theta_P: Tensor, name: str) -> Tensor:
        """One parameter of one expert."""
        start, shape = self.offsets[name], self.shapes[name]
        return theta_P[start : start + math.prod(shape)].view(shape)

    def matrices(self, theta_EP: Tensor, i: int) -> Tensor:
        """w_EOI: the matrix of linear i in every expert."""
        out, into = self.widths[i + 1], self.widths[i]
        start = theta_EP.storage_offset() + self.offsets[f"linear.{i}.weight"]
        return theta_EP.as_strided((theta_EP.shape[0], out, into), (theta_EP.stride(0), into, 1), start)

    def biases(self, theta_EP: Tensor, i: int) -> Tensor:
        """b_EO of linear i."""
        return self._vector(theta_EP, f"linear.{i}.bias", i)

    def vectors(self, theta_EP: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """b, γ, β of layer i, [E, H] each."""
        gamma_EH, beta_EH = (self._vector(theta_EP, f"norm.{i}.{name}", i) for name in ("weight", "bias"))
        return self.biases(theta_EP, i), gamma_EH, beta_EH

    def _vector(self, theta_EP: Tensor, name: str, i: int) -> Tensor:
        return theta_EP[:, self.offsets[name] : self.offsets[name] + self.widths[i + 1]]


def linear_entries(name: str, inputs: int, outputs: int) -> list[Entry]:
    """The parameters of a linear layer, weight first."""
    return [Entry(f"{name}.weight", (outputs, inputs), "matrix"), Entry(f"{name}.bias", (outputs,), "bias")]


def entries(prefix: str, widths: tuple[int, ...]) -> list[Entry]:
    """The parameters of a chain with these `widths`: input, output of each layer, output."""
    spec: list[Entry] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths[:-1])):
        spec += linear_entries(f"{prefix}linear.{i}", inputs, outputs)
        spec.append(Entry(f"{prefix}norm.{i}.weight", (outputs,), "gamma"))
        spec.append(Entry(f"{prefix}norm.{i}.bias", (outputs,), "beta"))
    return spec + linear_entries(f"{prefix}linear.{len(widths) - 2}", widths[-2], widths[-1])


class Saved(NamedTuple):
    bounds: list[int]
    h: list[list[Tensor]]  # h_nH of each layer, for each expert


def forward(
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: DispatchPlan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    workspace: object | None = None,
) -> tuple[Tensor, Saved]:
    """y_NO. If `narrow_EP` holds a bf16 or fp16 copy of theta, products read it and h is stored in its dtype. Kernels
    may keep buffers in `workspace`; this reference allocates.
    """
    bounds = plan.bounds()
    outputs, kept = [], []
    for e, (start, end) in enumerate(pairwise(bounds)):
        y_nO, h = _forward(x_NI[start:end], *_parameters(theta_EP, narrow_EP, chain, e), chain)
        outputs.append(y_nO)
        kept.append(h)
    return torch.cat(outputs), Saved(bounds, kept)


def backward(
    dy_NO: Tensor,
    saved: Saved,
    x_NI: Tensor,
    theta_EP: Tensor,
    plan: DispatchPlan,
    chain: Chain,
    narrow_EP: Tensor | None = None,
    out_EP: Tensor | None = None,
    accumulate: bool = False,
    want_dx: bool = True,
    workspace: object | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Returns dx_NI, dtheta_EP. If `out_EP` is given, dtheta is written or added to it. dx is None if `want_dx` is
    false.
    """
    dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else out_EP
    if not accumulate:
        dtheta_EP.zero_()
    dx = []
    for e, (start, end) in enumerate(pairwise(saved.bounds)):
        vectors, matrices = _parameters(theta_EP, narrow_EP, chain, e)
        grads = chain.views(dtheta_EP[e])
        dx.append(_backward(dy_NO[start:end], saved.h[e], x_NI[start:end], vectors, matrices, grads, chain, want_dx))
    return torch.cat(dx) if want_dx else None, dtheta_EP


def _parameters(
    theta_EP: Tensor, narrow_EP: Tensor | None, chain: Chain, e: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The biases and norms of expert e, and the matrices that its products read."""
    vectors = chain.views(theta_EP[e])
    return vectors, vectors if narrow_EP is None else chain.views(narrow_EP[e])


def _forward(
    x_nI: Tensor, vectors: dict[str, Tensor], matrices: dict[str, Tensor], chain: Chain
) -> tuple[Tensor, list[Tensor]]:
    """The forward of one expert."""
    x_nI = x_nI.to(matrices["linear.0.weight"].dtype)
    kept = []
    for i in range(chain.layers):
        h_nH = x_nI @ matrices[f"linear.{i}.weight"].T
        x_nI = _activation(h_nH, vectors, i, chain)
        kept.append(h_nH)
    last = f"linear.{chain.layers}"
    return wide(x_nI @ matrices[f"{last}.weight"].T) + vectors[f"{last}.bias"], kept


def _activation(h_nH: Tensor, vectors: dict[str, Tensor], i: int, chain: Chain) -> Tensor:
    return norm_gelu.forward(h_nH, *_norm(vectors, i), chain.active[i])[0]


def _norm(vectors: dict[str, Tensor], i: int) -> tuple[Tensor, Tensor, Tensor]:
    """b, γ, β of layer i."""
    return vectors[f"linear.{i}.bias"], vectors[f"norm.{i}.weight"], vectors[f"norm.{i}.bias"]


def _backward(
    dy_nO: Tensor,
    kept: list[Tensor],
    x_nI: Tensor,
    vectors: dict[str, Tensor],
    matrices: dict[str, Tensor],
    grads: dict[str, Tensor],
    chain: Chain,
    want_dx: bool,
) -> Tensor | None:
    """The backward of one expert, last layer first; adds to `grads`."""
    grads[f"linear.{chain.layers}.bias"].add_(dy_nO.sum(0))
    dh_nO = dy_nO.to(matrices["linear.0.weight"].dtype)
    for i in reversed(range(1 + chain.layers)):
        input_nI = _activation(kept[i - 1], vectors, i - 1, chain) if i else x_nI.to(dh_nO.dtype)
        grads[f"linear.{i}.weight"].add_(linear.wide_product(dh_nO.T, input_nI))
        if not i:
            return wide(dh_nO @ matrices["linear.0.weight"]) if want_dx else None
        dx_nH = dh_nO @ matrices[f"linear.{i}.weight"]
        norm_grads = norm_gelu.backward(dx_nH, None, kept[i - 1], *_norm(vectors, i - 1), chain.active[i - 1])
        for name, grad in zip(_NORMED, norm_grads[1:], strict=True):
            grads[name.format(i - 1)].add_(grad)
        dh_nO = norm_grads.dh_TH


_NORMED = ("linear.{}.bias", "norm.{}.weight", "norm.{}.bias")


# Layer-wide arrays of all rows that the kernels' backward holds besides the tape. The CPU kernels work in chunks of
# rows and hold none. The reference holds about 12, for the rows of the busiest expert.
WORKING = {"cpu": 0, "cuda": 2}


def saved_per_row(chain: Chain) -> int:
    """How many numbers a forward keeps per row, without its input."""
    return sum(chain.widths[1:-1])


def draw_theta(chain: Chain, experts: int, generator: torch.Generator) -> Tensor:
    """Parameters of typical size, γ near 1, zero padding."""
    on_cpu = generator.device.type == "cpu"  # large tensors are drawn on the device
    theta_EP = torch.zeros(experts, chain.length, dtype=torch.float64 if on_cpu else torch.float32)
    for theta_P in theta_EP:
        views = chain.views(theta_P)
        for name, shape, kind in entries("", chain.widths):
            scale = 1 / math.sqrt(shape[-1]) if kind == "matrix" else 0.3
            views[name].copy_(scale * torch.randn(shape, generator=generator) + (kind == "gamma"))
    return theta_EP


def _arguments(plan: DispatchPlan, chain: Chain, generator: torch.Generator) -> dict[str, Any]:
    x_NI = torch.randn(plan.slot_N.numel(), chain.widths[0], generator=generator, dtype=torch.float64)
    return dict(x=x_NI, theta=draw_theta(chain, plan.offset_F.numel() - 1, generator), plan=plan)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    plan = dispatch.draw_plan(sizes, generator, options)["plan"]
    return _arguments(plan, options["chain"], generator)


def by_name(theta_EP: Tensor, chain: Chain) -> dict[str, Tensor]:
    """The copies of each parameter in all experts; a vector has one row per expert."""
    by_expert = [chain.views(theta_P) for theta_P in theta_EP]
    return {name: torch.stack([views[name] for views in by_expert]) for name in by_expert[0]}


def narrowed(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A call in bf16 or fp16: the products read a low-precision copy of theta."""
    return {**arguments, "narrow": arguments["theta"].to(dtype)}


def _one_expert(chain: Chain) -> Callable[[torch.Generator], Example]:
    """A dense model: one expert with all rows in order."""

    def example(generator: torch.Generator) -> Example:
        return Example("one expert", _arguments(dispatch.all_rows(9), chain, generator), dict(chain=chain))

    return example


def _starved(chain: Chain, T: int = 3, E: int = 4, K: int = 2) -> Callable[[torch.Generator], Example]:
    """Every second expert has no rows."""
    even = torch.arange(0, E, 2)
    index_TK = torch.stack([even.roll(t)[: min(K, len(even))] for t in range(T)])

    def example(generator: torch.Generator) -> Example:
        plan = dispatch.plan(index_TK, E)
        return Example("experts without rows", _arguments(plan, chain, generator), dict(chain=chain))

    return example


def _no_gradient(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """An expert without rows has exactly zero gradient, and so does the padding. Nothing is NaN."""
    wrong = sum(int((~grad.isfinite()).sum()) for grad in grads.values() if grad is not None)
    dtheta_EP, bounds = grads["theta"], example.arguments["plan"].bounds()
    assert dtheta_EP is not None
    wrong += sum(int((dtheta_EP[e] != 0).sum()) for e, (a, b) in enumerate(pairwise(bounds)) if a == b)
    for grad_P in dtheta_EP.clone():
        for view in example.options["chain"].views(grad_P).values():
            view.zero_()
        wrong += int((grad_P != 0).sum())
    return float(wrong), 0.0


CONTRACT = Contract(
    shapes="x[N,I] theta[E,P] plan -> y[N,O]",
    sizes=dict(T=(1, 2, 7, 33), E=(4, 5), K=(1, 2, 4)),
    grads=("x", "theta"),
    parameters=("theta",),
    out=("theta",),
    edges_at=lambda options, sizes=None: (
        (_one_expert(options["chain"]), _starved(options["chain"]))
        if sizes is None
        else (_starved(options["chain"], sizes["T"], sizes["E"], sizes["K"]),)
    ),
    draw=_draw,
    options=(
        dict(chain=Chain((5, 6, 6, 3), (True, True))),
        dict(chain=Chain((3, 8, 1), (False,))),
        dict(chain=Chain((4, 2), ())),
    ),
    claims=(*EVERY_OP, Claim("zero_rows_safe", check=_no_gradient)),
    edges=(_one_expert(Chain((4, 6, 5, 2), (False, True))), _starved(Chain((5, 6, 3), (True,)))),
    parts={"theta": lambda theta_EP, options: by_name(theta_EP, options["chain"])},
)
