"""Reach: which recent decisions a change would have changed.

Each recorded decision is judged twice, as everything stands now and with the change, by the code that judges calls as
they come (`judging.py`), from the acts and the probabilities that were recorded: what is reported is the change's own
doing. Nothing is written, and of a decision that the change cannot touch nothing is computed.

`Reach.step` does a little at a time: decisions go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os.path import abspath, expanduser
from typing import Any

from gradproof.gate.acts.act import Act
from gradproof.gate.acts.paths import Surroundings
from gradproof.gate.corrections import Correction, Corrections, check_widened, restored
from gradproof.gate.database import NotThere, time_of
from gradproof.gate.journal import Journal
from gradproof.gate.judging import ActDecision, Standards, deciding, judge_all
from gradproof.gate.rules import Rules
from gradproof.gate.signals import ECHO, signal
from gradproof.gate.standing import ActVerdict, PolicyTable, by_policy, standing, told
from gradproof.gate.store import Store

MOST = 20_000  # decisions that are looked at, the newest
PAGE = 200  # of them that are read at once: no transaction stays open while others work
DAY = 86400.0


@dataclass(frozen=True)
class Basis:
    """What decisions come from: standards, the policy's table, and the corrections that hold."""

    standards: Standards
    policy: PolicyTable
    corrections: Corrections


@dataclass
class Reach:
    """Of a change from `now` to `then`, over the last `days`; `touches` are corrections that alone make a difference,
    None where anything may. `but` is the decision that is corrected."""

    store: Store
    now: Basis
    then: Basis
    days: float
    limit: int
    touches: tuple[Correction, ...] | None = None
    but: str = ""
    looked_at: int = 0
    changed: int = 0
    to: dict[str, int] = field(default_factory=lambda: {"allow": 0, "ask": 0, "block": 0})
    decisions: list[dict[str, Any]] = field(default_factory=list)
    _records: Iterator[dict[str, Any]] | None = None

    def step(self, seconds: float) -> bool:
        """Goes on for so long; False when all is looked at."""
        self._records = self._records or recent(self.store, self.days)
        until = time.perf_counter() + seconds
        for record in self._records:
            self._look(record)
            if self.looked_at >= MOST:
                return False
            if time.perf_counter() > until:
                return True
        return False

    def plain(self) -> dict[str, Any]:
        named = {"looked_at": self.looked_at, "changed": self.changed, "to": self.to, "decisions": self.decisions}
        return {**named, "summary": self.summary()}

    def summary(self) -> str:
        """In one sentence."""
        days = f"the last {self.days:g} days" if self.days != 1 else "the last day"
        words = {"allow": "allow", "ask": "ask about", "block": "block"}
        parts = [f"{words[outcome]} {count:,}" for outcome, count in self.to.items() if count]
        if not parts:
            return f"would not change any other call of {days}"
        return f"would also {', '.join(parts)} call{'s' if self.changed > 1 else ''} of {days}"

    def _look(self, record: Mapping[str, Any]) -> None:
        self.looked_at += 1
        acts = [restored(act) for act in record["acts"]]
        if record["id"] == self.but or len(record["p"]) != len(acts):
            return
        if self.touches is not None and not any(c.speaks_for(record["digest"], acts) for c in self.touches):
            return
        before, after = (judged(self.store, basis, record, acts) for basis in (self.now, self.then))
        if before.outcome == after.outcome:
            return
        self.changed += 1
        self.to[after.outcome] += 1
        if len(self.decisions) < self.limit:
            when = datetime.fromtimestamp(time_of(record["id"]), UTC).isoformat(timespec="milliseconds")
            named = {"id": record["id"], "time": when, "text": record["text"], "actor": record.get("actor", "")}
            self.decisions.append(
                {**named, "before": before.outcome, "after": after.outcome, "reason": after.reason, "by": after.by}
            )


def recent(store: Store, days: float) -> Iterator[dict[str, Any]]:
    """The decisions of the last days, newest first, read page by page."""
    before, since = "", store.clock() - days * DAY
    while page := store.journal.page(before, PAGE):
        for record in page:
            if time_of(record["id"]) < since:
                return
            yield record
        before = page[-1]["id"]


def judged(store: Store, basis: Basis, record: Mapping[str, Any], acts: Sequence[Act]) -> ActDecision:
    """What would be decided of a recorded call."""
    verdicts = [_verdict(store, basis.policy, act, i in record["floors"]) for i, act in enumerate(acts)]
    correction = basis.corrections.find(record["digest"], acts)
    decided = judge_all(basis.standards, acts, verdicts, record["p"], said(record["text"]), correction)
    return decided[deciding(decided, record["p"])]


def said(text: str) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of a call, as far as its text tells them."""
    tool, *lines = text.split("\n")
    pairs = (line.partition(": ") for line in lines if not line.startswith(("@ ", "< ")))
    return tool, {name: value for name, mark, value in pairs if mark}


def corrected(journal: Journal, id: str, kind: str, act: int | None, scope: str) -> Correction:
    """The correction that feedback on a decision would make; ValueError where it would make none."""
    given, decision = signal(kind), journal.decision(id)
    check_widened(scope)
    if kind in ECHO:
        raise ValueError(f"{kind!r} is the gate's own decision and corrects nothing")
    named = decision["worst"] if act is None else act
    if not 0 <= named < len(decision["acts"]):
        raise ValueError(f"{id} has {len(decision['acts'])} acts, counted from 0; there is no act {named}")
    acts = tuple(restored(act) for act in decision["acts"])
    allow, sequence = given.outcome == "allow", 1 << 60
    return Correction("c-new", id, sequence, allow, decision["digest"], acts, named, scope, kind)


def with_correction(basis: Basis, correction: Correction) -> Basis:
    """As it stands, and one correction more."""
    return replace(basis, corrections=Corrections([*basis.corrections.all(), correction]))


def without_correction(basis: Basis, id: str) -> tuple[Basis, Correction]:
    """As it stands, less a correction."""
    taken = next((c for c in basis.corrections.all() if c.id == id), None)
    if taken is None:
        raise NotThere(f"there is no correction {id[:40]!r}")
    return replace(basis, corrections=Corrections(c for c in basis.corrections.all() if c.id != id)), taken


def with_rules(basis: Basis, text: str) -> Basis:
    """With other rules; ValueError where they cannot be read."""
    return replace(basis, standards=replace(basis.standards, rules=Rules.parse(text)))


def does(correction: Correction) -> list[str]:
    """What a correction speaks of, in words."""
    named = min(correction.named, len(correction.acts) - 1)
    return [told(act) for act in (correction.acts if correction.allow else correction.acts[named : named + 1])]


def _verdict(store: Store, policy: PolicyTable, act: Act, floor: bool) -> ActVerdict:
    """Of floor and policy. What leads to the gate's own files through a folder above them is known from the record."""
    if act.scope == "own":
        return standing(act, Surroundings.of("", expanduser("~"), abspath(store.folder)), policy)
    if floor:
        return ActVerdict("block", told(act), True, "floor")
    return by_policy(act, policy)
