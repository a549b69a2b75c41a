"""`check_kernel(fast, reference, inputs, shapes=…)`: is a kernel of your own right, forward and backward?

It is held against a plain reference in float64, entry by entry, within bounds that are computed beside that reference
(`proof/kernel_truth.py`): on the given inputs, on others drawn like them, and at other sizes of every letter in
`shapes`, odd and empty ones included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import Evidence, Status
from gradproof.proof.case import KernelCase
from gradproof.proof.differences import Judgement
from gradproof.proof.judge import worst_of_each
from gradproof.proof.kernel_calls import CallArguments, KernelCall, at_given_sizes, at_other_sizes, read_form
from gradproof.proof.kernel_trial import CallTrial, KernelCheck, KernelRefusal
from gradproof.proof.kernel_truth import KernelPair, converted, exactly, run
from gradproof.proof.module import CannotRun
from gradproof.proof.state import random_state_kept
from gradproof.proof.verdict import Report, SubjectVerdict, versions

COARSE = 0.1  # a median bound above this share of an ordinary entry proves nothing


def check_kernel(
    fast: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    *,
    shapes: str,
    backward: Callable[..., Any] | None = None,
    terms: Callable[..., Any] | None = None,
    dtypes: Sequence[torch.dtype] | torch.dtype | None = None,
    seed: int = 0,
) -> Report:
    """Judges `fast` against `reference`, two functions of `inputs` (a tuple, or a dict by argument name).

    shapes    the axes of each tensor argument, "x[T,I] w[O,I]": a letter or a number each. Other sizes of the letters
              are tried too. Arguments that are not tensors are passed on as they are
    backward  (cotangent, *inputs) to the gradients of the floating inputs, in their order; a tuple of cotangents where
              there are several outputs. Without it, autograd of `fast` is judged
    terms     (*inputs) to the sum of absolute terms of each output, where no bound can be computed for the reference
    dtypes    formats to judge in; by default each input keeps its own

    If inputs require a gradient, theirs alone are judged; otherwise those of all floating inputs."""
    return judge_kernel(KernelCase(fast, reference, inputs, shapes, backward, terms, dtypes), seed=seed)


def judge_kernel(
    case: KernelCase,
    *,
    seed: int = 0,
    device: str | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """`check_kernel` on a case; the tensors are moved to `device` if one is given."""
    form, given = read_form(case.inputs, case.shapes)
    for role, function in (("the kernel", case.fast), ("the reference", case.reference)):
        if not callable(function):
            raise ValueError(f"{role} must be a function, not a {type(function).__name__}")
    dtypes = (case.dtypes,) if isinstance(case.dtypes, torch.dtype) else tuple(case.dtypes or (None,))
    for dtype in dtypes:
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"dtypes: {_name(dtype)} is not a floating format")
    pair = KernelPair(form, case.fast, case.reference, case.backward, case.terms)
    given = {n: v.to(device) if device and isinstance(v, Tensor) else v for n, v in given.items()}
    where = next(str(v.device) for v in given.values() if isinstance(v, Tensor))
    judge = _KernelJudge(pair, name or getattr(case.fast, "__name__", "kernel"), seed, where, progress)
    with random_state_kept(), torch.inference_mode(False):
        for dtype in dtypes:
            judge.judge(given if dtype is None else converted(given, dtype), dtype, len(dtypes) > 1)
    return Report([judge.verdict()], device=where)


class _KernelJudge:
    """Collects the evidence on a kernel, format by format."""

    def __init__(self, pair: KernelPair, name: str, seed: int, device: str, progress: Callable[[int, int], None]):
        self.pair, self.name, self.seed, self.device, self.progress = pair, name, seed, device, progress
        self.records: list[Evidence] = []
        self.checks: dict[str, list[KernelCheck]] = {}  # by tensor
        self.failures: list[KernelCheck] = []
        self.notes: list[str] = []
        self.calls = 0
        self.unjudged: dict[str, None] = {}  # gradients that the reference does not have
        self.forward_only = False

    def judge(self, given: CallArguments, dtype: torch.dtype | None, several: bool) -> None:
        """In one format: the given sizes, and if nothing is refuted there, others."""
        self.dtype = dtype or _coarsest(given)
        self.suffix = f" ({_name(self.dtype)})" if several else ""
        formats = self._first_run(given)
        near = list(at_given_sizes(self.pair.form, given, self.seed))
        others = list(at_other_sizes(self.pair.form, given, self.seed))
        before = len(self.failures)
        for number, call in enumerate(near):
            self.progress(number, len(near) + len(others))
            self._try(call, formats, others=False, must=number == 0, thorough=number < 2)
        if len(self.failures) > before:
            self.notes.append("other sizes were not tried, because the kernel fails at the given sizes")
            return
        for number, call in enumerate(others):
            self.progress(len(near) + number, len(near) + len(others))
            self._try(call, formats, others=True)

    def _first_run(self, given: CallArguments) -> list[torch.dtype]:
        """Both functions once, forward, on the given inputs: the formats of the outputs."""
        form = self.pair.form
        try:
            right = [t for t in exactly(self.pair, given, None).values() if t is not None]
        except Exception as error:
            raise CannotRun(f"the reference raised {_said(error)} on the given inputs") from error
        copies = {n: v.clone() if isinstance(v, Tensor) else v for n, v in given.items()}
        try:
            own = [t for t in run(form, self.pair.fast, copies, None).values() if t is not None]
        except Exception as error:
            raise CannotRun(f"the kernel raised {_said(error)} on the given inputs{self.suffix}") from error
        if len(own) != len(right):
            raise CannotRun(f"the kernel returns {len(own)} tensors and the reference {len(right)}")
        if not any(tensor.is_floating_point() for tensor in right):
            raise CannotRun("the reference returns no floating tensor; there is nothing to judge")
        for i, (a, b) in enumerate(zip(own, right, strict=True)):
            if a.is_floating_point() != b.is_floating_point():
                raise CannotRun(f"output {i} is {_name(a.dtype)} of the kernel and {_name(b.dtype)} of the reference")
        return [tensor.dtype for tensor in own]

    def _try(
        self, call: KernelCall, formats: list[torch.dtype], *, others: bool, must: bool = False, thorough: bool = False
    ) -> None:
        try:
            trial = CallTrial(self.pair, call, formats, self.seed)
        except Exception as error:
            if must:
                raise CannotRun(f"the reference raised {_said(error)} on the given inputs") from error
            self._note(f"not tried, because the reference raises {type(error).__name__}", call.label)
            return
        if trial.truth.overflows and not must:
            self._note("not tried, because the reference overflows", call.label)
            return
        for tensor, why in trial.truth.unknown.items():
            self.notes.append(f"the bound of {tensor} is measured, not computed: {why}")
        self.calls += 1
        try:
            results = list(trial.at_other_sizes() if others else trial.at_given_sizes(thorough))
        except Exception as error:
            raise CannotRun(f"the kernel raised {_said(error)} on {call.label}") from error
        self.unjudged |= {name + self.suffix: None for name in trial.unjudged}
        gradients = any(isinstance(r, KernelCheck) and (r.tensor or "").startswith("gradient") for r in results)
        self.forward_only |= must and not gradients and not trial.unjudged
        for result in results:
            if isinstance(result, KernelRefusal):
                self._note(f"not supported, {result.why}", result.what)
            else:
                self._keep(result, call)

    def _note(self, what: str, label: str) -> None:
        """Calls with the same fate share a note."""
        for i, note in enumerate(self.notes):
            if note.endswith(f": {what}"):
                if label in note.removesuffix(f": {what}").split("; "):
                    return
                self.notes[i] = f"{note.removesuffix(f': {what}')}; {label}: {what}"
                return
        self.notes.append(f"{label}: {what}")

    def _keep(self, check: KernelCheck, call: KernelCall) -> None:
        tensor = None if check.tensor is None else check.tensor + self.suffix
        status: Status = "proven" if check.holds else "refuted"
        shapes = tuple(tuple(v.shape) for v in call.given.values() if isinstance(v, Tensor))
        self.records.append(
            Evidence(
                check.claim,
                self.name,
                status,
                check.measured,
                check.bound,
                value=tensor,
                resolution=check.resolution,
                example=call.label,
                kernel=self.name,
                device=self.device,
                dtype=_name(self.dtype),
                shape=shapes,
                seed=self.seed,
                versions=versions(),
            )
        )
        if tensor is not None:
            self.checks.setdefault(tensor, []).append(check)
        if not check.holds:
            self.failures.append(check)

    def verdict(self) -> SubjectVerdict:
        judged = [self._judgement(tensor, checks) for tensor, checks in self.checks.items()]
        said = "the reference has no gradient to compare it with"
        judged += [Judgement(tensor, "inconclusive", math.nan, math.nan, None, said) for tensor in self.unjudged]
        unclear = any(judgement.status == "inconclusive" for judgement in judged)
        status: Status = "refuted" if self.failures else "inconclusive" if unclear else "proven"
        if self.forward_only:
            self.notes.insert(0, "only the forward was judged: the kernel's output requires no gradient")
        return SubjectVerdict(
            self.name,
            status,
            [],
            judged,
            forwards=0,
            directions=0,
            seed=self.seed,
            notes=list(dict.fromkeys(self.notes)),
            evidence=worst_of_each(self.records),
            kind="kernel",
            calls=self.calls,
            detail=self._detail(),
        )

    def _judgement(self, tensor: str, checks: list[KernelCheck]) -> Judgement:
        entries = [check for check in checks if check.trial is not None and check.claim != "strides"]
        worst = max(entries or checks, key=_badness)
        failed = max((check for check in checks if not check.holds), key=_telling, default=None)
        resolutions = [c.resolution for c in entries if c.claim == "matches_reference" and c.resolution is not None]
        resolution = min(resolutions, default=None)
        if failed is not None:
            shown = failed if failed.place is not None else worst
            return Judgement(tensor, "refuted", shown.error, shown.allowed, None, self._told(failed))
        if resolution is not None and resolution > COARSE:
            said = f"its bound would pass an error of {resolution:.0%}"
            return Judgement(tensor, "inconclusive", worst.error, worst.allowed, resolution, said)
        return Judgement(tensor, "proven", worst.error, worst.allowed, resolution, worst.sentence)

    def _detail(self) -> str:
        """The worst failure in a sentence, or the entry that is nearest to its bound."""
        only = "Only the forward was judged: its output requires no gradient. " if self.forward_only else ""
        if self.failures:
            return only + self._told(max(self.failures, key=_telling))
        entries = [c for checks in self.checks.values() for c in checks if c.trial and c.claim != "strides"]
        if not entries:
            return only.strip()
        return f"{only}Closest to its bound: {self._told(max(entries, key=_badness))}"

    def _told(self, check: KernelCheck) -> str:
        if check.trial is None or check.place is None or check.tensor is None:
            return check.sentence
        return f"{check.sentence}. {check.trial.bound_of(check.tensor, check.place, check.stored)}"


def _badness(check: KernelCheck) -> float:
    """What is not finite comes first, and of that what has an entry to show."""
    if math.isnan(check.measured) or check.measured == math.inf:
        return math.inf if check.place is not None else 1e300
    return check.measured / check.bound if check.bound else check.measured


def _telling(check: KernelCheck) -> tuple[bool, bool, float]:
    """Of several failures, a wrong entry of an ordinary call says most; wrong outputs make wrong gradients."""
    entry = check.trial is not None and check.claim != "strides"
    return entry, (check.tensor or "").startswith("output"), _badness(check)


def _coarsest(given: CallArguments) -> torch.dtype:
    formats = [v.dtype for v in given.values() if isinstance(v, Tensor) and v.is_floating_point()]
    return max(formats, key=lambda dtype: torch.finfo(dtype).eps)


def _said(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
