"""`diagnose(module, inputs)`: is this drift rounding noise or a bug, and did the router flip?

The order of the questions: is the math right (float64, differences)? what does rounding do (replicas, the real run)?
does the error shrink with the unit (a sweep)? did decisions flip (replayed)? where first?
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import linear_regression
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.diagnosis.factor import Factor, factor
from gradproof.diagnosis.measure import Laboratory, Measured, Taken, rest_of
from gradproof.diagnosis.specimen import ModuleSpecimen, Specimen, plain
from gradproof.diagnosis.unstable import unstable, with_unstable
from gradproof.diagnosis.verdict import (
    Finding,
    FormatVerdict,
    TensorVerdict,
    judge_format,
    overall,
    severity,
    together,
    with_rest,
)
from gradproof.precision.compared import compare
from gradproof.precision.formats import Format, format_named
from gradproof.precision.mode import CastPolicy, autocasts
from gradproof.precision.watching import Unrepeatable
from gradproof.proof.module import IN_FLOAT64, torch_device
from gradproof.proof.runner import CannotRun
from gradproof.proof.state import random_state_kept
from gradproof.proof.verdict import SubjectVerdict, environment, finite, why

PRECISIONS = ("bf16", "fp16", "fp8_e4m3")
VERIFY_SECONDS = 60.0  # a step 1 that would take longer is the joint screen alone
AGREES = 1e-6  # with a trusted reference, in float64


@dataclass
class Diagnosis:
    """The result of `diagnose`. It is true only if the verdict is clean or noise."""

    name: str
    verification: SubjectVerdict
    precisions: list[FormatVerdict]
    sweep: dict[str, Any]
    notes: list[str]
    seed: int
    device: str
    wrong: list[TensorVerdict]  # in float64 already
    unclear: str = ""  # why rounding could not be judged

    def __bool__(self) -> bool:
        return self.verdict in ("clean", "noise")

    @property
    def worst(self) -> FormatVerdict | None:
        """The format with the worst verdict; among several, one that ran for real, with the largest error."""
        alike = [p for p in self.precisions if p.verdict == overall([q.verdict for q in self.precisions])]
        far = {p.format: p.rel_error if math.isfinite(p.rel_error) else math.inf for p in alike}
        return max(alike, key=lambda p: (not p.simulated_only, far[p.format]), default=None)

    @property
    def verdict(self) -> Finding:
        category = "bug" if self.wrong else overall([p.verdict for p in self.precisions])
        unsure = self.unclear or self.verification.status == "inconclusive"
        return "inconclusive" if unsure and category in ("noise", "clean", "inconclusive") else category

    @property
    def summary(self) -> str:
        """The verdict in one or two sentences."""
        worst = self.worst
        if self.wrong:
            more = f" ({len(self.wrong) - 1} more like it)" if len(self.wrong) > 1 else ""
            first = min(self.wrong, key=severity)
            return f"{self.name} has a bug in every precision: {first.name}: {first.note}{more}."
        if self.verdict == "inconclusive":
            reason = (
                self.unclear or f"it is not clear whether the gradient is right in float64: {why(self.verification)}"
            )
            return f"{self.name} is inconclusive: {reason}."
        assert worst is not None
        if self.verdict in ("noise", "clean"):
            formats = ", ".join(p.format for p in self.precisions)
            return f"{self.name} shows only rounding in {formats}: in {worst.format} {worst.summary}."
        others = {p.format: p.verdict for p in self.precisions if p is not worst}
        rest = "; ".join(f"{format}: {verdict}" for format, verdict in others.items())
        return f"{self.name} in {worst.format}: {worst.summary}." + (f" {rest}." if rest else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with null for numbers that are not finite."""
        worst = self.worst
        record = {
            "verdict": self.verdict,
            "summary": self.summary,
            "name": self.name,
            "parameters": [asdict(j) for j in (worst.parameters if worst else self.wrong)],
            "inputs": [asdict(j) for j in (worst.inputs if worst else [])],
            "routing": asdict(worst.routing) if worst else None,
            "first_divergence": worst.first_divergence if worst else None,
            "sweep": self.sweep,
            "precisions": [asdict(p) for p in self.precisions],
            "verification": {**asdict(self.verification), "summary": _verified(self.verification)},
            "notes": self.notes,
            "seed": self.seed,
            "environment": environment(self.device),
        }
        return finite(record)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)


def diagnose(
    module: nn.Module,
    inputs: Any,
    *,
    reference: nn.Module | None = None,
    precisions: Sequence[str | tuple[int, int]] = PRECISIONS,
    policy: CastPolicy | None = None,
    replicas: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Diagnosis:
    """Judges the low-precision gradients of `module`'s parameters and floating inputs (a tuple of positional or a dict
    of keyword arguments). The module is left exactly as it was found.

    reference   a trusted module with the same parameter names: gradients are held against its
    precisions  bf16, fp16, fp8_e4m3, fp8_e5m2, tf32, fp32, or any (exponent, mantissa) pair
    policy      "cast" (as after `module.to(dtype)`) or "autocast"; left out, cast where the module runs so
    replicas    stochastically rounded runs; by the cost of one if left out
    """
    if not isinstance(module, nn.Module):
        raise CannotRun(f"diagnose judges a torch.nn.Module, not a {type(module).__name__}")
    formats = checked_formats(precisions)
    parsed_device, seed = torch_device(device), seed % 2**31
    label = name or type(module).__name__
    with settled():
        specimen = ModuleSpecimen(module, inputs, label, seed, parsed_device)
        try:
            trusted = None if reference is None else _trusted(reference, specimen, inputs, seed, parsed_device)
            return examine(specimen, formats, policy, replicas, seed, progress, trusted)
        finally:
            specimen.close()


@contextmanager
def settled() -> Iterator[None]:
    """Random state kept, gradients on, compiled modules run as they are written, products of fp32 in fp32."""
    eager = torch.compiler.set_stance("force_eager")
    with random_state_kept(), torch.inference_mode(False), torch.enable_grad(), eager:
        matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution


def checked_formats(precisions: Sequence[str | tuple[int, int]]) -> list[Format]:
    """The formats by name, each once; a sentence for one that is none."""
    formats = list(dict.fromkeys(format_named(precision) for precision in precisions))
    if not formats:
        raise ValueError("give at least one precision, e.g. bf16,fp16")
    return formats


def examine(
    specimen: Specimen,
    formats: Sequence[Format],
    policy: CastPolicy | None,
    replicas: int | None,
    seed: int,
    progress: Callable[[str], None],
    trusted: Mapping[str, Tensor] | None = None,
) -> Diagnosis:
    """All five questions."""
    if policy == "autocast":
        for format in formats:
            autocasts(rest_of(format))  # or a sentence
    progress("float64 reference")
    lab = Laboratory(specimen, seed, progress)
    progress("checking the gradient in float64")
    tensors = len(lab.grads) + len(lab.unused)
    quick = lab.seconds / 3 * (40 + 6 * tensors) > VERIFY_SECONDS
    verification = specimen.verify(
        quick, lambda done, total: progress(f"checking the gradient in float64: {done} of {total} tensors")
    )
    notes = [*specimen.notes, *(n for n in verification.notes if not n.startswith(IN_FLOAT64))]
    if quick:
        notes.append("step 1 judged all tensors jointly, because judging each would take minutes")
    wrong = _wrong(lab, verification, trusted, seed)
    unclear = _unclear(lab)
    # A format of operands is judged beside that of all the rest.
    rests = [format_named(format.rest) for format in formats if format.operands]
    verdicts: dict[str, FormatVerdict] = {}
    measured: dict[str, Measured] = {}
    for format in () if unclear else dict.fromkeys((*rests, *formats)):
        progress(f"{format.name}: to nearest")
        try:
            runs = lab.measure(format, policy or lab.policy(format), replicas)
        except Unrepeatable as reason:
            unclear = f"{format.name}: {reason}"
            continue
        if runs.diverged:
            notes.append(f"{format.name}: {runs.diverged}")
        judged = judge_format(lab.watch, runs, wrong, specimen.inputs, lab.device.type)
        if judged.verdict == "noise" and (part := unstable(lab, runs)):
            judged = with_unstable(judged, part)
        verdicts[format.name] = with_rest(judged, verdicts[format.rest]) if format.rest in verdicts else judged
        measured[format.name] = runs
    precisions = [verdicts[format.name] for format in formats if format.name in verdicts]
    sweep = lab.sweep(measured) if precisions else []
    return Diagnosis(
        specimen.name,
        verification,
        precisions,
        _sweep(sweep),
        notes,
        seed,
        str(lab.device),
        [replace(j, name=plain(j.name)) for j in wrong.values()],
        unclear,
    )


def _unclear(lab: Laboratory) -> str:
    """Why nothing can be said of rounding, if so."""
    if not lab.finite:
        return "the gradient is not finite even in float64 at this input"
    if not lab.repeats:
        return (
            "two runs with the same seed and values differ; draw random numbers from torch's default generator, or "
            "switch the source off, e.g. with .eval()"
        )
    left = sorted(lab.watch.left)
    if left:
        return f"{', '.join(left)} computes outside aten, where rounding cannot be simulated"
    return ""


def _wrong(
    lab: Laboratory, verification: SubjectVerdict, trusted: Mapping[str, Tensor] | None, seed: int
) -> dict[str, TensorVerdict]:
    """The tensors whose gradient is wrong in float64 already, with the factor by which it is."""
    wrong = {}
    judged = {
        **{j.name: j for j in verification.parameters},
        **{name: j for j in verification.inputs for name in lab.specimen.inputs if plain(name) == j.name},
    }
    refuted = [name for name, j in judged.items() if j.status == "refuted"]
    prepared = lab.specimen.reference() if refuted and trusted is None else None
    for name in refuted:
        g, error = lab.grads.get(name), judged[name].error
        if g is None:  # none at all, where there should be one
            wrong_by = Factor(0.0, False)
        elif trusted is not None and name in trusted:
            wrong[name] = _beside(name, g, trusted[name])
            continue
        else:
            wrong_by = factor(prepared or lab.specimen.reference(), lab.specimen.cotangents, name, g, seed)
        note = _in_words(wrong_by.ratio, error, wrong_by.scale)
        wrong[name] = TensorVerdict(name, "bug", wrong_by.ratio, math.nan, error, math.nan, 99.0, math.nan, note)
    whole = math.hypot(*(float(g.norm()) for g in lab.grads.values()))
    for name, right in (trusted or {}).items():
        c = compare(lab.grads[name], right) if name in lab.grads and name not in wrong else None
        if c is not None and c.error > AGREES * max(c.size, 1e-3 * whole):
            wrong[name] = _beside(name, lab.grads[name], right)
    return wrong


def _beside(name: str, g: Tensor, right: Tensor) -> TensorVerdict:
    """A float64 gradient beside the trusted one."""
    c = compare(g, right)
    note = _in_words(c.norm_ratio * math.copysign(1, c.dot), c.relative, c.cosine**2 > 1 - 1e-9)
    return TensorVerdict(name, "bug", c.norm_ratio, c.cosine, c.relative, math.nan, 99.0, math.nan, note)


def _in_words(ratio: float, error: float, scale: bool) -> str:
    if ratio == 0:
        return "gradient is zero even in float64, although the output depends on the tensor: a bug, not rounding"
    if scale and abs(ratio - 1) > 1e-3:
        return f"gradient is {ratio:.4g}x the reference even in float64: a scale bug, not rounding"
    return f"gradient is off by {error:.2g} of its size even in float64: a bug, not rounding"


def _sweep(sweep: Sequence[tuple[Format, Taken]]) -> dict[str, Any]:
    """The points, and the slope of ln error against ln u: 1 for noise, 0 for what does not shrink."""
    points: list[dict[str, Any]] = [
        {
            "format": format.name,
            "unit": format.unit,
            "rel_error": together(taken),
            "parameters": {plain(name): c.relative for name, c in taken.tensors.items()},
        }
        for format, taken in sweep
    ]
    usable = [(math.log(p["unit"]), math.log(p["rel_error"])) for p in points if 0 < p["rel_error"] < 0.5]
    return dict(points=points, slope=linear_regression(*zip(*usable, strict=True)).slope if len(usable) > 1 else None)


def _trusted(
    reference: nn.Module, specimen: ModuleSpecimen, inputs: Any, seed: int, device: torch.device | None
) -> dict[str, Tensor]:
    """The gradients of a trusted module at the same values, in float64."""
    own = specimen.reference()
    other = ModuleSpecimen(reference, inputs, "the reference", seed, device)
    try:
        prepared = other.reference()
        for name, value in prepared.values.items():
            if name in own.values and own.values[name].shape != value.shape:
                raise CannotRun(f"the reference's {plain(name)} has a different shape from the module's")
        if [c.shape for c in other.cotangents] != [c.shape for c in specimen.cotangents]:
            raise CannotRun("the reference's output has a different shape from the module's")
        values = {name: own.values.get(name, value).to(value.dtype) for name, value in prepared.values.items()}
        _, grads = prepared.run(values, specimen.cotangents)
        return {name: g.double() for name, g in grads.items() if g is not None}
    finally:
        other.close()


def _verified(verification: SubjectVerdict) -> str:
    wrong = verification.failures()
    if verification.status == "proven":
        return f"the gradient is right in float64: {verification.forwards} forward passes"
    if verification.status == "refuted":
        return f"the gradient is wrong in float64 already: {', '.join(wrong[:6])}"
    return f"it is not clear whether the gradient is right in float64: {why(verification)}"
