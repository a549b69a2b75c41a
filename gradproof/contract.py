"""Contracts, subjects and evidence: what an operation promises, what is judged, and the record of each check.

A `Contract` belongs to an op or a model. It says which inputs are valid and which claims hold for them. A `Subject` is
anything with named values that runs forward and backward: an op on one example, a model, a user's module. `Evidence` is
one check of one claim. This file only holds data; `gradproof.proof` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Status = Literal["proven", "refuted", "inconclusive", "unused"]
Outputs = tuple[Tensor, ...]
Gradients = dict[str, Tensor | None]


@dataclass(frozen=True)
class Example:
    """One valid call: arguments by name, and keyword options. `smooth` is false on a tie or a kink, where differences
    of the forward do not approximate its derivative.
    """

    label: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    smooth: bool = True


@dataclass(frozen=True)
class Claim:
    """A named property. Ops give their own `check` for properties that only they can state. It maps (example, outputs,
    gradients) to (measured, bound); the claim holds if measured ≤ bound. `axis` is the axis of `equivariant`, `dtype`
    the precision that the claim is about.
    """

    name: str
    axis: str = ""
    dtype: str = "float64"
    check: Callable[[Example, Outputs, Gradients], tuple[float, float]] | None = None


ADJOINT = Claim("adjoint")  # ⟨dy, J v⟩ = ⟨Jᵀdy, v⟩, with J v by forward-mode differentiation
MATCHES_AUTOGRAD = Claim("matches_autograd")  # reverse mode through the forward, in float64
MATCHES_DIFFERENCES = Claim("matches_differences")  # extrapolated differences of the forward, in float64
DETERMINISTIC = Claim("deterministic")  # two runs give the same bits
WRITES_ALL = Claim("writes_all")  # new memory is filled with NaN: every returned entry was written
NO_ALIAS = Claim("no_alias")  # inputs are unchanged
EVERY_OP = (ADJOINT, MATCHES_AUTOGRAD, MATCHES_DIFFERENCES, DETERMINISTIC, WRITES_ALL, NO_ALIAS)


def equivariant(axis: str) -> Claim:
    """Permuting `axis` of the inputs permutes `axis` of outputs and gradients, and changes nothing else."""
    return Claim("equivariant", axis=axis)


@dataclass(frozen=True)
class Contract:
    """Valid calls, and the claims that hold for them.

    shapes   "x[T,I] w[O,I] b[O] -> y[T,O]": arguments in forward's order, then the outputs
    sizes    the values that each axis takes; every value occurs, combinations change with the seed
    grads    the arguments that backward returns gradients for, in its order
    parameters  the learned arguments among `grads`; the others are inputs
    options  keyword options of forward (and backward); all are tried
    draw     (sizes, generator, options) to the arguments that are not N(0,1), such as indices
    edges    examples at the edge of the domain: ties, saturation, constant rows
    parts    splits a gradient that holds many parameters: (tensor, options) to parts by name
    same     (module, example) to integers in which a kernel must match the op exactly
    out      the gradients that `backward` writes or adds to its argument `out`, if given
    functions  the module's functions besides forward and backward, with their arguments; judged like outputs
    edges_at (options, sizes) to edges at these options and, if given, these sizes: for kernels that support only some
    of them
    settled  (arguments, options) to arguments whose decisions are not near-ties
    fused    (arguments and options, cotangents) to extra σ of gradients by name, for values that fused kernels round
    and the op does not
    """

    shapes: str
    sizes: Mapping[str, tuple[int, ...]]
    grads: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = EVERY_OP
    options: tuple[Mapping[str, Any], ...] = ({},)
    draw: Callable[[Mapping[str, int], Any, Mapping[str, Any]], dict[str, Any]] | None = None
    edges: tuple[Callable[[Any], Example], ...] = ()
    parts: Mapping[str, Callable[[Tensor, Mapping[str, Any]], dict[str, Tensor]]] = field(default_factory=dict)
    same: Callable[[Any, Example], Any] | None = None
    out: tuple[str, ...] = ()
    functions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edges_at: Callable[..., tuple[Callable[[Any], Example], ...]] | None = None
    settled: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] | None = None
    fused: Callable[[Mapping[str, Any], Outputs], Mapping[str, Tensor]] | None = None


@dataclass(frozen=True)
class Subject:
    """Something that can be judged.

    values   the differentiated tensors by name; those named in `inputs` are inputs, the rest parameters
    run      (values, cotangents) to (outputs, gradients by name). Without cotangents only the forward runs; for our own
    ops and models autograd can differentiate that forward.
    fixed    boolean masks by name: entries that have no gradient by definition and are not judged
    """

    name: str
    values: Mapping[str, Tensor]
    run: Callable[[Mapping[str, Tensor], Outputs | None], tuple[Outputs, Gradients]]
    inputs: frozenset[str] = frozenset()
    kernel: str = "reference"
    fixed: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """One check. `value` names the judged tensor, if the claim is about one. `resolution` is the smallest relative
    error that this check would have refuted.
    """

    claim: str
    subject: str
    status: Status
    measured: float
    bound: float
    value: str | None = None
    resolution: float | None = None
    example: str = ""
    kernel: str = "reference"
    device: str = "cpu"
    dtype: str = "float64"
    shape: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
