"""Corrections: feedback on one call, and the calls that it applies to.

The very same call (tool, arguments, folder) comes first, then calls that are covered by likeness
(`acts/likeness.py`). Of several that speak, the newer one counts; where they are equally new, the block. Several
never combine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from gradproof.gate.acts.act import Act, ActTarget
from gradproof.gate.acts.likeness import covers, reaches
from gradproof.gate.calls import Call
from gradproof.gate.secrets import Redactor

WIDER = ("folder", "project", "host")  # what `--scope` may say, or pattern=GLOB


@dataclass(frozen=True)
class Correction:
    """`digest` names the call, `acts` are what it does; `named` is the act that a block speaks of. `sequence` orders
    corrections by when they were given. `once`: for the very next call that is the same, and no other."""

    id: str
    decision: str
    sequence: int
    allow: bool
    digest: str
    acts: tuple[Act, ...]
    named: int = 0
    widened: str = ""
    kind: str = ""
    actor: str = ""
    once: bool = False

    def speaks_for(self, digest: str, acts: Sequence[Act]) -> str:
        """`exact`, `like`, or nothing."""
        if digest == self.digest:
            return "exact"
        if self.allow:
            return "like" if covers(self.acts, acts, self.widened) else ""
        return "like" if self.acts and reaches(self.acts[min(self.named, len(self.acts) - 1)], acts) else ""


class Corrections:
    """All corrections that hold, found by what their acts do."""

    def __init__(self, known: Iterable[Correction] = ()):
        self._exact: dict[str, list[Correction]] = {}
        self._like: dict[tuple[str, str, str], list[Correction]] = {}
        self._by_id: dict[str, Correction] = {}
        for correction in known:
            self.add(correction)

    def add(self, correction: Correction) -> None:
        self._by_id[correction.id] = correction
        self._exact.setdefault(correction.digest, []).append(correction)
        for key in {_key(act) for act in correction.acts}:
            self._like.setdefault(key, []).append(correction)

    def remove(self, id: str) -> None:
        correction = self._by_id.pop(id)
        self._exact[correction.digest].remove(correction)
        for key in {_key(act) for act in correction.acts}:
            self._like[key].remove(correction)

    def ids(self) -> set[str]:
        return set(self._by_id)

    def all(self) -> list[Correction]:
        return list(self._by_id.values())

    def find(self, digest: str, acts: Sequence[Act]) -> Correction | None:
        """The correction that decides a call."""
        exact = self._exact.get(digest)
        if exact:
            return _newest(exact)
        near = {c.id: c for act in acts for c in self._like.get(_key(act), ())}
        return _newest([c for c in near.values() if c.speaks_for(digest, acts)])


def _newest(speaking: Sequence[Correction]) -> Correction | None:
    return max(speaking, key=lambda c: (c.sequence, not c.allow), default=None)


def _key(act: Act) -> tuple[str, str, str]:
    return act.effect, act.program, act.verb


def digest(call: Call, key: bytes = b"") -> str:
    """Of the tool, the arguments and the folder, in whatever order they were written."""
    plain = json.dumps([call.tool, call.arguments, call.cwd], sort_keys=True, ensure_ascii=False, default=str)
    return blake2b(plain.encode("utf-8", "replace"), digest_size=16, key=key[:64]).hexdigest()


def check_widened(widened: str) -> str:
    """What `--scope` says; ValueError for anything else."""
    if widened and widened not in WIDER and not widened.startswith("pattern="):
        raise ValueError(f"--scope is {', '.join(WIDER)} or pattern=GLOB, not {widened!r}")
    return widened


def stored(act: Act) -> dict[str, Any]:
    """An act as plain data, whole."""
    target = {name: value for name, value in vars(act.target).items() if value not in ("", False, None)}
    record = {
        "effect": act.effect,
        "program": act.program,
        "scope": act.scope,
        "verb": act.verb,
        "target": target,
        "via": sorted(act.via),
        "marks": sorted(act.marks),
        "why": act.why,
        "text": act.text,
        "details": sorted(act.details or ()),
    }
    return {name: value for name, value in record.items() if value or name == "program"}


def safely_stored(act: Act, redactor: Redactor) -> dict[str, Any]:
    """`stored`, without secrets."""
    record = safe(stored(act.but(details=None)), redactor)
    return {**record, "details": redactor.texts(act.details)} if act.details else record


def safe(value: Any, key: bytes | Redactor = b"") -> Any:
    """Without secrets."""
    redactor = Redactor.of(key)
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, dict):
        return {name: safe(inner, redactor) for name, inner in value.items()}
    return [safe(inner, redactor) for inner in value] if isinstance(value, list | tuple) else value


def restored(record: Mapping[str, Any]) -> Act:
    """What `stored` wrote."""
    fields: dict[str, Any] = dict(record)
    fields |= {name: frozenset(fields.get(name, ())) for name in ("via", "marks", "details")}
    return Act(**{**fields, "target": ActTarget(**fields.get("target", {}))})
