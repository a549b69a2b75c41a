"""Changes by people: feedback, answers, corrections, policy, rules, settings, the serving version.

Each change is in the store and then in the audit log, both synced, before its function returns: what was acknowledged
survives kill -9 and a power failure. The audit log tells who changed what, and nothing of what calls say.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from gradproof.files import write_atomically
from gradproof.gate.database import PRIVATE, NotThere, Outdated
from gradproof.gate.remarks import Giver, Remark
from gradproof.gate.rules import DEFAULT, Rules
from gradproof.gate.standing import FILE as DEFAULT_POLICY
from gradproof.gate.standing import parsed_table
from gradproof.gate.store import SETTINGS, Settings, Store, read_settings

MOST_TEXT = 1 << 17  # characters of a policy or of rules
LOCK = "changes.lock"
CHANGEABLE = ("shadow", "review_hours", "ask_minutes", "keep_days", "log_arguments", "false_allow", "false_block")


def feedback(
    store: Store, id: str, kind: str, giver: Giver, *, act: int | None = None, scope: str = "", once: bool = False
) -> Remark:
    """A person's word on a decision."""
    minutes = read_settings(store.folder).ask_minutes
    given = store.journal.give(id, kind, act=act, widened=scope, once=once, giver=giver, ask_seconds=minutes * 60)
    _log(store, "feedback", giver, id=id, signal=kind, **_reach(given, scope, once))
    return given


def answer(
    store: Store, id: str, allow: bool, giver: Giver, *, once: bool, act: int | None = None, scope: str = ""
) -> Remark:
    """The answer to a waiting question."""
    kind, minutes = "override_allow" if allow else "override_block", read_settings(store.folder).ask_minutes
    options: dict[str, Any] = dict(act=act, widened=scope, once=once, answers=True, ask_seconds=minutes * 60)
    given = store.journal.give(id, kind, giver=giver, **options)
    _log(store, "answer", giver, id=id, signal=kind, **_reach(given, scope, once))
    return given


def retract(store: Store, id: str, giver: Giver) -> dict[str, Any]:
    """Takes a correction back."""
    taken = store.journal.retract(id)
    _log(store, "retraction", giver, id=taken["decision"], correction=f"c{taken['sequence']}")
    return taken


def roll_back(store: Store, giver: Giver, version: int | None = None, serving: int | None = None) -> tuple[int, int]:
    """(the version that serves now, the one before). Without `version`, the one that the serving version came from;
    with `serving`, only where that one still serves."""
    before = store.versions.serving()
    if serving is not None and serving != before:
        raise Outdated(f"version {before} is serving now, not {serving}")
    chosen = version if version is not None else store.versions.get(before).record["came_from"]
    if chosen == 0:
        raise NotThere(f"there is no version before the serving one, {before}")
    store.versions.serve(chosen, after=before)
    store.journal.reset_trust()
    _log(store, "rollback", giver, version=chosen, before=before)
    return chosen, before


def policy_text(store: Store) -> tuple[str, bool]:
    """The policy that holds, and whether it is the default one."""
    try:
        return store.policy.read_text(encoding="utf-8"), False
    except FileNotFoundError:
        return DEFAULT_POLICY.read_text(encoding="utf-8"), True


def rules_text(store: Store) -> tuple[str, bool]:
    """The rules that hold, and whether they are those of a new store."""
    try:
        text = store.rules.read_text(encoding="utf-8")
        return text, text == DEFAULT
    except FileNotFoundError:
        return DEFAULT, True


def write_policy(store: Store, text: str | None, giver: Giver, stamp: str | None = None) -> None:
    """Replaces the policy, or with None takes the default one."""
    if text is not None:
        parsed_table(_checked(text), "the policy")
    with _one_at_a_time(store):
        _check_stamp(policy_text(store)[0], stamp, "policy")
        if text is None:
            store.policy.unlink(missing_ok=True)
        else:
            write_atomically(store.policy, text, mode=PRIVATE)
        _log(store, "policy", giver, stamp=stamp_of(policy_text(store)[0]))


def write_rules(store: Store, text: str, giver: Giver, stamp: str | None = None) -> None:
    """Replaces the rules."""
    Rules.parse(_checked(text), "the rules")
    with _one_at_a_time(store):
        _check_stamp(rules_text(store)[0], stamp, "rules")
        write_atomically(store.rules, text, mode=PRIVATE)
        _log(store, "rules", giver, stamp=stamp_of(text))


def write_settings(store: Store, changes: Mapping[str, Any], giver: Giver) -> Settings:
    """Changes some of the settings."""
    if strange := changes.keys() - set(CHANGEABLE):
        raise ValueError(
            f"{min(strange)!r} is not a setting that can be changed; the settings are {', '.join(CHANGEABLE)}"
        )
    with _one_at_a_time(store):
        settings = replace(read_settings(store.folder), **changes)
        text = json.dumps(asdict(settings), indent=1, allow_nan=False) + "\n"
        write_atomically(Path(store.folder / SETTINGS), text, mode=PRIVATE)
        _log(store, "settings", giver, **changes)
    return settings


def stamp_of(text: str) -> str:
    """Names a text: another one has another stamp."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def log_tokens(store: Store, giver: Giver, what: str, name: str, role: str) -> None:
    """A token was made or revoked."""
    _log(store, "token", giver, what=what, name=name, token_role=role)


def _checked(text: str) -> str:
    if len(text) > MOST_TEXT:
        raise ValueError(f"the text is longer than {MOST_TEXT:,} characters")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("the text contains half a surrogate pair, which is not valid UTF-8") from None
    return text


@contextmanager
def _one_at_a_time(store: Store) -> Iterator[None]:
    """Nobody changes a file between the look at it and its replacement: of two changes to one text, one is refused, and
    two changes to different settings both hold."""
    with open(store.folder / LOCK, "w", opener=lambda path, flags: os.open(path, flags, PRIVATE)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_stamp(there: str, stamp: str | None, what: str) -> None:
    if stamp is not None and stamp != stamp_of(there):
        raise Outdated(f"somebody else has changed the {what} in the meantime; read it again")


def _reach(given: Remark, scope: str, once: bool) -> dict[str, Any]:
    """A pattern may hold what a call says, so that only its kind is told."""
    return {"correction": given.correction, "scope": scope.partition("=")[0], "once": once}


def _log(store: Store, kind: str, giver: Giver, **fields: Any) -> None:
    store.audit.append(kind, sync=True, actor=giver.actor, role=giver.role, **fields)
