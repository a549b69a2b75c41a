"""Decisions by the floor and by the table of policy.toml, before any feedback."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gradproof.gate.acts.act import EFFECTS, SCOPES, Act, ActScope, Effect
from gradproof.gate.acts.paths import Surroundings, owned, within
from gradproof.gate.signals import Outcome

FILE = Path(__file__).with_name("policy.toml")
STRICTER: dict[Outcome, int] = {"allow": 0, "ask": 1, "block": 2}
REMOVES = ("delete", "change_rights")


class ActVerdict(NamedTuple):
    """The decision on one act, why, and the line of the policy that says so."""

    outcome: Outcome
    reason: str
    floor: bool = False
    line: str = ""


PolicyTable = Mapping[tuple[Effect, ActScope], Outcome]


@cache
def table(path: Path = FILE) -> PolicyTable:
    """The policy of a file; ValueError says what is wrong with it."""
    try:
        return parsed_table(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def parsed_table(text: str, name: str = "the policy") -> PolicyTable:
    """A policy; what it does not name asks. ValueError says what is wrong with it."""
    try:
        rows = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    decided: dict[tuple[Effect, ActScope], Outcome] = {}
    for effect, row in rows.items():
        if effect not in EFFECTS or not isinstance(row, dict):
            raise ValueError(f"{name}: there is no effect {effect!r}; the effects are {', '.join(EFFECTS)}")
        for outcome, scopes in row.items():
            if outcome not in STRICTER or not isinstance(scopes, str):
                raise ValueError(
                    f"{name}: {effect} has {outcome!r}; a row has allow, ask and block, each a text of scopes"
                )
            for scope in scopes.split():
                if scope not in SCOPES:
                    raise ValueError(f"{name}: there is no scope {scope!r}; the scopes are {', '.join(SCOPES)}")
                if (effect, scope) in decided:
                    raise ValueError(f"{name}: {effect} names the scope {scope!r} twice")
                decided[effect, scope] = outcome  # type: ignore[index]
    for effect in EFFECTS:
        for scope in SCOPES:
            decided.setdefault((effect, scope), "ask")
    return decided


def standing(act: Act, around: Surroundings, policy: PolicyTable | None = None) -> ActVerdict:
    """The decision on one act by the floor and the policy."""
    if act.scope == "own":
        return _own(act, around)
    if (
        act.effect in REMOVES
        and act.target.kind == "path"
        and owned(act.target.name, act.effect, around, act.target.folder)
    ):
        reason = f"{told(act)}, with the settings of the gate or the agent in it"
        return ActVerdict("block", reason, True, "floor: the gate and the agent's settings stay")
    return by_policy(act, policy or table())


def by_policy(act: Act, policy: PolicyTable) -> ActVerdict:
    """The decision on one act by the policy alone."""
    outcome = policy[act.effect, act.scope]
    line = f"policy: {act.effect} in {act.scope} is {outcome}"
    if "payload:secret" in act.marks:
        return ActVerdict("block", f"{told(act)}, and what it sends is a secret", line="policy: no secret is sent")
    if {"forced", "shared"} <= act.marks and act.effect in ("rewrite_history", "publish", "delete"):
        outcome, line = "block", "policy: nothing is forced onto a shared branch"
    if "privileged" in act.via and _privileged(act, outcome) != outcome:
        outcome = _privileged(act, outcome)
        line += f"; with elevated privileges {outcome}"
    return ActVerdict(outcome, told(act), line=line)


def _privileged(act: Act, outcome: Outcome) -> Outcome:
    if outcome == "allow":
        return "ask"
    grave = act.scope in ("system", "root", "device") and act.effect != "install"
    return "block" if grave else outcome


def _own(act: Act, around: Surroundings) -> ActVerdict:
    """The floor: the gate's store is nobody's; an agent's settings are not removed, and changed only after asking."""
    path = act.target.name if act.target.kind == "path" else ""
    in_store = bool(path) and (around.is_gates(path) or (bool(around.store) and within(around.store, path)))
    if in_store or "judging" in act.marks or act.target.kind == "host":
        return ActVerdict("block", f"{told(act)}, the gate's own", True, "floor: the gate is not an agent's")
    if act.effect in REMOVES:
        return ActVerdict("block", f"{told(act)}, the agent's settings", True, "floor: the agent's settings stay")
    if act.effect == "read":
        return ActVerdict("allow", told(act), line="floor: the agent's settings may be read")
    return ActVerdict("ask", f"{told(act)}, the agent's settings", True, "floor: a person changes the agent's settings")


def worst(verdicts: Sequence[ActVerdict]) -> int:
    """Which verdict decides a call: the first of the strictest."""
    return max(range(len(verdicts)), key=lambda i: (STRICTER[verdicts[i].outcome], -i))


WORDS: dict[Effect, str] = {
    "read": "reads",
    "write": "writes",
    "delete": "deletes",
    "execute": "runs",
    "install": "installs",
    "fetch_and_run": "runs what it fetches from",
    "send": "sends data to",
    "publish": "publishes to",
    "rewrite_history": "discards work in",
    "change_rights": "changes the rights of",
    "escalate": "gains rights through",
    "persist": "makes run again later:",
    "stop": "stops",
    "spend": "spends money:",
    "unknown": "could not be read:",
}
PLACES: dict[ActScope, str] = {
    "own": "",
    "secret": "a secret",
    "root": "everything there",
    "device": "a device",
    "system": "part of the system",
    "temp": "temporary",
    "project": "in the project",
    "home": "in the home folder",
    "outside": "outside the project",
    "local": "on this machine",
    "remote": "on another machine",
    "unknown": "nobody knows where",
}


def told(act: Act) -> str:
    """An act in words: `deletes /home/me/shared, outside the project`."""
    if act.effect == "unknown":
        return f"{act.program}: {WORDS['unknown']} {act.why}"
    target = str(act.target) or f"{act.program} {act.verb}".strip()
    how = ", with elevated privileges" if "privileged" in act.via else ""
    place = PLACES[act.scope]
    return f"{WORDS[act.effect]} {target[:120]}{f', {place}' if place else ''}{how}"
