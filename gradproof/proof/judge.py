"""Checks all claims of a contract on its examples, and gives a verdict for each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import ModuleType

import torch

from gradproof.contract import Contract, Evidence, Example, Status, Subject
from gradproof.proof import operation
from gradproof.proof.claims import Build, Trial, check
from gradproof.proof.differences import DIRECTIONS, Judgement
from gradproof.proof.examples import examples
from gradproof.proof.verdict import SubjectVerdict


def judge_op(op: ModuleType, *, seed: int = 0, device: str = "cpu", quick: bool = False) -> SubjectVerdict:
    """Proves or refutes one op of ours. `quick` leaves the differences out."""
    name = op.__name__.rpartition(".")[2]

    def build(example: Example, dtype: torch.dtype) -> Subject:
        return operation.subject(op, name, example, dtype, device)

    tried = examples(name, op.CONTRACT, seed)
    return judge_contract(name, op.CONTRACT, tried, build, seed=seed, device=device, quick=quick)


def judge_contract(
    name: str,
    contract: Contract,
    tried: Iterable[Example],
    build: Build,
    *,
    seed: int = 0,
    device: str = "cpu",
    quick: bool = False,
    by_name: bool = False,
) -> SubjectVerdict:
    """Every claim on every example. `by_name` judges each tensor by differences, not only jointly."""
    claims = [claim for claim in contract.claims if not (quick and claim.name == "matches_differences")]
    records: list[Evidence] = []
    inputs: frozenset[str] = frozenset()
    order: list[str] = []
    forwards = 0
    for example in tried:
        trial = Trial(name, contract, example, build, seed, device, jointly=not by_name)
        for claim in claims:
            records += check(trial, claim)
        inputs, order = trial.subject.inputs, list(trial.subject.values)
        forwards += trial.forwards
    judged = [_judgement(value, [e for e in records if e.value == value]) for value in order]
    broken = any(e.status == "refuted" for e in records)
    unclear = any(j.status == "inconclusive" for j in judged)
    status: Status = "refuted" if broken else "inconclusive" if unclear else "proven"
    return SubjectVerdict(
        name,
        status,
        [j for j in judged if j.name not in inputs],
        [j for j in judged if j.name in inputs],
        forwards=forwards,
        directions=DIRECTIONS if forwards else 0,
        seed=seed,
        evidence=worst_of_each(records),
    )


def _judgement(name: str, records: Sequence[Evidence]) -> Judgement:
    """Refuted by any witness; proven by autograd everywhere and, where differences were taken, by them once."""
    if not records:
        return Judgement(name, "inconclusive", math.nan, math.nan, None, "no claim covers it")
    differences = {e.status for e in records if e.claim == "matches_differences"}
    status: Status = "proven"
    if any(e.status == "refuted" for e in records):
        status = "refuted"
    elif differences and "proven" not in differences:
        status = "unused" if "unused" in differences else "inconclusive"
    notes = {
        "inconclusive": "finite differences could not resolve it on any example",
        "unused": "no output depends on it",
    }
    worst = max(records, key=_ratio)
    note = f"{worst.claim} on {worst.example}" if status == "refuted" else notes.get(status, "")
    resolutions = [e.resolution for e in records if e.claim == "matches_autograd" and e.resolution is not None]
    return Judgement(name, status, worst.measured, worst.bound, max(resolutions, default=None), note)


def worst_of_each(records: Sequence[Evidence]) -> list[Evidence]:
    """The record nearest to its bound (or furthest past it) for each claim, in the order of the claims."""
    worst: dict[str, Evidence] = {}
    for evidence in records:
        if evidence.claim not in worst or _ratio(evidence) > _ratio(worst[evidence.claim]):
            worst[evidence.claim] = evidence
    return list(worst.values())


def _ratio(evidence: Evidence) -> float:
    if evidence.status == "refuted":
        return math.inf if not math.isfinite(evidence.measured) else 1e30 + evidence.measured
    if not evidence.measured or math.isnan(evidence.measured):
        return 0.0
    return evidence.measured / evidence.bound if evidence.bound else 0.0
