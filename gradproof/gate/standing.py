"""What the policy says of an act, before anybody has judged a call: the floor, and the table of policy.toml."""

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
    """The decision on one act, and why."""

    outcome: Outcome
    reason: str
    floor: bool = False


@cache
def table(path: Path = FILE) -> Mapping[tuple[Effect, ActScope], Outcome]:
    """A policy file; ValueError says what is wrong with it."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    decided: dict[tuple[Effect, ActScope], Outcome] = {}
    for effect, row in rows.items():
        if effect not in EFFECTS:
            raise ValueError(f"{path}: there is no effect {effect!r}; the effects are {', '.join(EFFECTS)}")
        for outcome, scopes in row.items():
            if outcome not in STRICTER or not isinstance(scopes, str):
                raise ValueError(
                    f"{path}: {effect} has {outcome!r}; a row has allow, ask and block, each a text of scopes"
                )
            for scope in scopes.split():
                if scope not in SCOPES:
                    raise ValueError(f"{path}: there is no scope {scope!r}; the scopes are {', '.join(SCOPES)}")
                decided[effect, scope] = outcome  # type: ignore[index]
    for effect in EFFECTS:
        for scope in SCOPES:
            decided.setdefault((effect, scope), "ask")
    return decided


def standing(
    act: Act, around: Surroundings, policy: Mapping[tuple[Effect, ActScope], Outcome] | None = None
) -> ActVerdict:
    """The decision on one act by the floor and the policy."""
    if act.scope == "own":
        return _own(act, around)
    if (
        act.effect in REMOVES
        and act.target.kind == "path"
        and owned(act.target.name, act.effect, around, act.target.folder)
    ):
        return ActVerdict("block", f"{told(act)}, with the settings of the gate or the agent in it", True)
    outcome = (policy or table())[act.effect, act.scope]
    if "payload:secret" in act.marks:
        return ActVerdict("block", f"{told(act)}, and what it sends is a secret")
    if {"forced", "shared"} <= act.marks and act.effect in ("rewrite_history", "publish", "delete"):
        outcome = "block"
    if "privileged" in act.via:
        outcome = _privileged(act, outcome)
    return ActVerdict(outcome, told(act))


def _privileged(act: Act, outcome: Outcome) -> Outcome:
    if outcome == "allow":
        return "ask"
    grave = act.scope in ("system", "root", "device") and act.effect != "install"
    return "block" if grave else outcome


def _own(act: Act, around: Surroundings) -> ActVerdict:
    """The floor: the gate's store is nobody's; an agent's settings are not removed, and changed only after asking."""
    path = act.target.name if act.target.kind == "path" else ""
    in_store = bool(around.store and path) and (within(path, around.store) or within(around.store, path))
    if in_store or "judging" in act.marks or act.target.kind == "host":
        return ActVerdict("block", f"{told(act)}, the gate's own", True)
    if act.effect in REMOVES:
        return ActVerdict("block", f"{told(act)}, the agent's settings", True)
    if act.effect == "read":
        return ActVerdict("allow", told(act))
    return ActVerdict("ask", f"{told(act)}, the agent's settings", True)


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
    how = ", with more rights" if "privileged" in act.via else ""
    place = PLACES[act.scope]
    return f"{WORDS[act.effect]} {target[:120]}{f', {place}' if place else ''}{how}"
