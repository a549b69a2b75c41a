"""The result of `verify`: statuses, a summary, and the record for JSON and the report."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gradproof.contract import Evidence, Status
from gradproof.proof.differences import Judgement
from gradproof.version import __version__


@dataclass
class CheckVerdict:
    """One check besides the proof at the given point: `proven`, `refuted`, or `noted` if it was not possible."""

    name: str
    status: str
    note: str = ""
    tensors: list[str] = field(default_factory=list)


@dataclass
class Coverage:
    """The number of tensors that can train and were judged, and why others were not, by name."""

    judged: int
    total: int
    unjudged: dict[str, str] = field(default_factory=dict)


@dataclass
class SubjectVerdict:
    """One judged subject, tensor by tensor. `evidence` keeps the worst check of each claim. Of a kernel, `inputs` are
    its outputs and gradients, `calls` the number of calls that it was tried on, and `detail` names the worst entry."""

    name: str
    status: Status
    parameters: list[Judgement]
    inputs: list[Judgement]
    forwards: int
    directions: int
    seed: int
    notes: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    coverage: Coverage | None = None
    checks: list[CheckVerdict] = field(default_factory=list)
    kind: str = "module"
    calls: int = 0
    detail: str = ""
    ranks: int | None = None  # on which a distributed step was judged

    def failures(self) -> list[str]:
        """The names of what was refuted: tensors, or a claim that concerns no single tensor."""
        named = [f"parameter {j.name}" for j in self.parameters if j.status == "refuted"]
        kind = "" if self.kind == "kernel" else "input "
        named += [f"{kind}{j.name}" for j in self.inputs if j.status == "refuted"]
        named = named or [f"claim {e.claim}" for e in self.evidence if e.status == "refuted"]
        return named or [check.note for check in self.checks if check.status == "refuted"]


@dataclass
class MutantVerdict:
    """A wrong backward and what revealed it."""

    name: str
    subject: str
    status: Status
    claim: str | None
    parameter: str | None


@dataclass
class Report:
    """The report of `verify`. It is true only if everything is proven."""

    subjects: list[SubjectVerdict]
    mutants: list[MutantVerdict] | None = None
    device: str = "cpu"
    kernels: list[dict[str, Any]] | None = None  # the fast ways to run an op, admitted or refused; none is a subject
    against: Any = None  # a GradientComparison with an earlier record

    def __bool__(self) -> bool:
        return self.status == "proven"

    @property
    def status(self) -> Status:
        """refuted if anything is refuted, otherwise inconclusive if anything is, otherwise proven. A mutant that
        survives refutes."""
        statuses = {subject.status for subject in self.subjects}
        if self.against is not None and self.against.moved:
            return "refuted"
        if "refuted" in statuses or any(mutant.status != "refuted" for mutant in self.mutants or []):
            return "refuted"
        return "proven" if statuses == {"proven"} else "inconclusive"

    @property
    def summary(self) -> str:
        """The result in one or two sentences."""
        return " ".join(_sentences(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with null for numbers that are not finite."""
        record: dict[str, Any] = {
            "status": self.status,
            "summary": self.summary,
            "subjects": [asdict(subject) for subject in self.subjects],
            "environment": environment(self.device),
        }
        if self.mutants is not None:
            record["mutants"] = [asdict(mutant) for mutant in self.mutants]
        if self.kernels is not None:
            record["kernels"] = self.kernels
        if self.against is not None:
            record["against"] = self.against.to_dict()
        return finite(record)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)


def _sentences(report: Report) -> list[str]:
    survivors = [mutant.name for mutant in report.mutants or [] if mutant.status != "refuted"]
    covered = [s.coverage for s in report.subjects if s.coverage is not None]
    sentences = (
        [f"{sum(c.judged for c in covered)} of {sum(c.total for c in covered)} tensors judged."] if covered else []
    )
    if report.against is not None and report.against.moved:
        sentences.append(report.against.summary)
    if report.mutants is not None:
        caught = len(report.mutants) - len(survivors)
        sentences.append(f"{caught} of {len(report.mutants)} mutants refuted{_listed(survivors, '; survived: ')}.")
    wrong = [subject for subject in report.subjects if subject.status == "refuted"]
    if wrong:
        told = [f"{s.name} is wrong: {_listed(s.failures())}{_reasons(s)}. {s.detail}".strip() for s in wrong]
        return [*sentences, *told]
    unclear = [subject for subject in report.subjects if subject.status == "inconclusive"]
    if unclear:
        return [*sentences, *(f"{s.name} is inconclusive: {why(s)}." for s in unclear)]
    resolutions = [j.resolution for s in report.subjects for j in (*s.parameters, *s.inputs) if j.resolution]
    count = f"All {len(report.subjects)} subjects are" if len(report.subjects) > 1 else f"{report.subjects[0].name} is"
    finest = f": no gradient error above {max(resolutions):.1e} would have passed" if resolutions else ""
    if all(s.kind == "kernel" for s in report.subjects):
        finest = (
            f": no error above {max(resolutions):.1e} of an ordinary entry would have passed" if resolutions else ""
        )
    details = [s.detail for s in report.subjects if s.detail]
    return [*sentences, f"{count} proven{finest}.", *details]


def _reasons(subject: SubjectVerdict) -> str:
    """What is known about the refuted tensors, each once; of a kernel the detail says it."""
    if subject.detail:
        return ""
    notes = dict.fromkeys(j.note for j in (*subject.parameters, *subject.inputs) if j.status == "refuted" and j.note)
    return f" ({'; '.join(list(notes)[:3])})" if notes else ""


def why(subject: SubjectVerdict) -> str:
    """Why a subject is inconclusive."""
    if subject.coverage is not None and subject.coverage.unjudged:
        name, reason = next(iter(subject.coverage.unjudged.items()))
        return f"{name} was not judged: {reason}"
    unclear = [j for j in (*subject.parameters, *subject.inputs) if j.status == "inconclusive"]
    untried = [check.note for check in subject.checks if check.name in ("dtype", "ranks") and check.status == "noted"]
    if not unclear and untried:
        return untried[0]
    if not unclear:
        return "no gradient could be judged, because the output does not depend on anything that is differentiated"
    rest = f" and {len(unclear) - 1} more" if len(unclear) > 1 else ""
    return f"{unclear[0].name}{rest}: {unclear[0].note}"


def _listed(names: Sequence[str], lead: str = "", most: int = 6) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return lead + ", ".join(names[:most]) + more


def finite(value: Any) -> Any:
    """Plain data, with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def environment(device: str) -> dict[str, Any]:
    """The environment that the figures depend on."""
    import torch

    return {
        **versions(),
        "gradproof": __version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
    }


def versions() -> dict[str, str]:
    """The libraries whose arithmetic was used."""
    import numpy
    import torch

    return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": numpy.__version__}
