"""How each claim is checked. Every check returns Evidence, one record for each tensor or output it is about."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.contract import Claim, Contract, Evidence, Example, Outputs, Status, Subject
from gradproof.proof import differences, witnesses
from gradproof.proof.examples import parse_shapes
from gradproof.proof.verdict import versions
from gradproof.streams import seeded

U = torch.finfo(torch.float64).eps / 2
Build = Callable[[Example, torch.dtype], Subject]


@dataclass
class Trial:
    """One example under judgement: what was run, and the witnesses' answers, each computed once."""

    name: str
    contract: Contract
    example: Example
    build: Build
    seed: int
    device: str = "cpu"
    jointly: bool = True  # differences of all tensors together, or of each by name as well
    forwards: int = 0  # spent on differences

    @cached_property
    def placed(self) -> Example:
        """The example on the device that is judged."""
        to = functools.partial(_to, device=self.device)
        arguments, options = tree_map(to, (dict(self.example.arguments), dict(self.example.options)))
        return replace(self.example, arguments=arguments, options=options)

    @cached_property
    def subject(self) -> Subject:
        return self.build(self.placed, torch.float64)

    @cached_property
    def cotangents(self) -> Outputs:
        outputs, _ = self.subject.run(self.subject.values, None)
        generator = seeded(self.seed, self.name, self.example.label, "cotangent")
        return tuple(torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.device) for y in outputs)

    @cached_property
    def accused(self) -> tuple[Outputs, dict[str, Tensor]]:
        return self.run(self.subject, self.cotangents)

    def run(self, subject: Subject, cotangents: Outputs) -> tuple[Outputs, dict[str, Tensor]]:
        """Forward and backward; a gradient that is missing counts as zero."""
        outputs, grads = subject.run(subject.values, cotangents)
        return outputs, {
            n: torch.zeros_like(v) if (g := grads.get(n)) is None else g for n, v in subject.values.items()
        }

    @property
    def grads(self) -> dict[str, Tensor]:
        return self.accused[1]

    @cached_property
    def reference(self) -> dict[str, Tensor]:
        return witnesses.reverse_mode(self.subject, self.cotangents)

    @cached_property
    def allowed(self) -> dict[str, float]:
        """What two right gradients may differ by: 1e-10·‖b‖ + 64·u·s."""
        generator = seeded(self.seed, self.name, self.example.label, "signs")
        coarse = self.build(self.example, torch.float32)
        s = witnesses.scale(self.subject, coarse, self.cotangents, self.reference, generator)
        return {name: 1e-10 * _norm(self.reference[name]) + 64 * U * s[name] for name in s}

    def evidence(
        self, claim: str, measured: float, bound: float, status: Status | None = None, **more: Any
    ) -> Evidence:
        holds = measured <= bound  # false for NaN
        tensors = [value for value in self.example.arguments.values() if isinstance(value, Tensor)]
        return Evidence(
            claim,
            self.name,
            status or ("proven" if holds else "refuted"),
            measured,
            bound,
            example=self.example.label,
            kernel=self.subject.kernel,
            device=self.device,
            shape=tuple(tuple(tensor.shape) for tensor in tensors),
            seed=self.seed,
            versions=versions(),
            **more,
        )


def check(trial: Trial, claim: Claim) -> Iterator[Evidence]:
    """All evidence for one claim on one example."""
    if claim.check is not None:
        measured, bound = claim.check(trial.placed, trial.accused[0], dict(trial.grads))
        yield trial.evidence(claim.name, measured, bound, dtype=claim.dtype)
    elif claim.name == "equivariant":
        yield from equivariant(trial, claim.axis)
    else:
        yield from CHECKS[claim.name](trial)


def adjoint(trial: Trial) -> Iterator[Evidence]:
    """⟨dy, J v⟩ = ⟨Jᵀdy, v⟩ for one random v in each tensor."""
    for name, value in trial.subject.values.items():
        generator = seeded(trial.seed, trial.name, trial.example.label, "tangent", name)
        v = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
        jv = witnesses.forward_mode(trial.subject, {name: v})
        left = sum(float((c * t).sum()) for c, t in zip(trial.cotangents, jv, strict=True))
        right = float((trial.grads[name] * v).sum())
        size = (_norm(trial.reference[name]) or 1.0) * _norm(v)
        bound = trial.allowed[name] * _norm(v)
        yield trial.evidence("adjoint", abs(left - right) / size, bound / size, value=name)


def matches_autograd(trial: Trial) -> Iterator[Evidence]:
    """‖a − b‖ ≤ 1e-10·‖b‖ + 64·u·s against reverse mode, both sides relative to ‖b‖ where that is not zero."""
    for name, expected in trial.reference.items():
        size = _norm(expected)
        error, bound = _norm(trial.grads[name] - expected) / (size or 1.0), trial.allowed[name] / (size or 1.0)
        resolution = bound if size else None
        yield trial.evidence("matches_autograd", error, bound, value=name, resolution=resolution)


def matches_differences(trial: Trial) -> Iterator[Evidence]:
    """The forward's own differences, where the example is smooth."""
    if not trial.example.smooth:
        return
    verdict = differences.judge(trial.subject, trial.cotangents, trial.grads, seed=trial.seed, quick=trial.jointly)
    trial.forwards += verdict.forwards
    for j in verdict.judgements:
        yield trial.evidence(
            "matches_differences", j.error, j.bound, status=j.status, value=j.name, resolution=j.resolution
        )


def deterministic(trial: Trial) -> Iterator[Evidence]:
    """The same bits twice, and the same outputs with and without a backward."""
    again = trial.run(trial.subject, trial.cotangents)
    alone, _ = trial.subject.run(trial.subject.values, None)
    yield trial.evidence("deterministic", differing(trial.accused, again) + differing(trial.accused[0], alone), 0.0)


def writes_all(trial: Trial) -> Iterator[Evidence]:
    """With fresh memory full of NaN, nothing changes."""
    with Poison():
        poisoned = trial.run(trial.subject, trial.cotangents)
    yield trial.evidence("writes_all", differing(trial.accused, poisoned), 0.0)


def no_alias(trial: Trial) -> Iterator[Evidence]:
    """Arguments, options, values and cotangents are as before afterwards."""
    held = (trial.placed.arguments, trial.placed.options, dict(trial.subject.values), trial.cotangents)
    given = [leaf for leaf in tree_leaves(held) if isinstance(leaf, Tensor)]
    before = [leaf.clone() for leaf in given]
    trial.run(trial.subject, trial.cotangents)
    yield trial.evidence("no_alias", differing(before, given), 0.0)


def equivariant(trial: Trial, axis: str) -> Iterator[Evidence]:
    """Permuting an axis of the inputs permutes outputs and gradients, and changes nothing else."""
    inputs, outputs = parse_shapes(trial.contract.shapes)
    sizes = {
        trial.example.arguments[name].shape[axes.index(axis)]
        for name, axes in inputs.items()
        if axis in axes and isinstance(trial.example.arguments[name], Tensor)
    }
    (size,) = sizes
    cycle = torch.randperm(size, generator=seeded(trial.seed, trial.name, trial.example.label, "order"))
    order = torch.empty_like(cycle).scatter_(0, cycle, cycle.roll(1))  # one cycle through all: nothing stays in place

    def permuted(tensor: Any, axes: tuple[str, ...] | None) -> Any:
        if not isinstance(tensor, Tensor) or axes is None or axis not in axes:
            return tensor
        return tensor.index_select(axes.index(axis), order.to(tensor.device))

    moved = {name: permuted(value, inputs.get(name)) for name, value in trial.example.arguments.items()}
    subject = trial.build(replace(trial.example, arguments=moved), torch.float64)
    cotangents = tuple(permuted(c, axes) for c, axes in zip(trial.cotangents, outputs.values(), strict=True))
    permuted_outputs, grads = trial.run(subject, cotangents)
    for name in trial.subject.values:
        size = _norm(trial.reference[name]) or 1.0
        error = _norm(grads[name] - permuted(trial.grads[name], inputs.get(name)))
        yield trial.evidence("equivariant", error / size, trial.allowed[name] / size, value=name)
    sensitive = _sensitivity(trial)
    for output, expected, axes, s in zip(permuted_outputs, trial.accused[0], outputs.values(), sensitive, strict=True):
        # A row's result may depend on its place only through the order of a sum.
        bound = 64 * U * (math.sqrt(expected.numel()) * float(expected.abs().max()) + s)
        yield trial.evidence("equivariant", _norm(output - permuted(expected, axes)), bound)


def _sensitivity(trial: Trial) -> list[float]:
    """‖J(x∘±1)‖ of each output: what rounding every input once, by one u, does to it in units of u. A softmax at a low
    temperature, for one, makes much of little."""
    generator = seeded(trial.seed, trial.name, trial.example.label, "sensitivity")
    tangents = {}
    for name, value in trial.subject.values.items():
        sign = 2 * torch.randint(2, value.shape, generator=generator) - 1
        tangents[name] = value * sign.to(value)
    return [_norm(jv) for jv in witnesses.forward_mode(trial.subject, tangents)]


CHECKS: Mapping[str, Callable[[Trial], Iterator[Evidence]]] = {
    "adjoint": adjoint,
    "matches_autograd": matches_autograd,
    "matches_differences": matches_differences,
    "deterministic": deterministic,
    "writes_all": writes_all,
    "no_alias": no_alias,
}


class Poison(TorchDispatchMode):
    """Memory that torch hands out unwritten is full of NaN."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is nothing to skip, and skipping imports the compiler, for seconds

    FRESH = frozenset(
        getattr(torch.ops.aten, name)
        for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in self.FRESH:
            if out.dtype.is_floating_point or out.dtype.is_complex:
                out.fill_(torch.nan)
            else:
                out.fill_(True if out.dtype == torch.bool else torch.iinfo(out.dtype).min)
        return out


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def differing(a: Any, b: Any) -> float:
    """How many entries differ; NaN differs from itself, and so does another shape."""
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return float(sum(int((x != y).sum()) if x.shape == y.shape else 1 + x.numel() for x, y in pairs))


def _to(leaf: Any, device: str) -> Any:
    return leaf.to(device) if isinstance(leaf, Tensor) else leaf
