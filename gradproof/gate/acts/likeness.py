"""Which calls a correction applies to: those that do no more than the corrected one, or no less.

An *allow* covers a call where every act of it has a counterpart in the corrected call, and is no wider. A *block*
covers a call with an act of the same effect, program and verb that is at least as wide as the one that was named.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gradproof.gate.acts.act import Act, ActTarget
from gradproof.gate.acts.paths import within

EXACTLY = ("publish", "rewrite_history", "send", "execute")  # done to this resource, not to another one of its kind
ALONE = ("spend", "unknown", "persist", "escalate")  # only exactly the same call is covered


def covers(allowed: Sequence[Act], acts: Sequence[Act], widened: str = "") -> bool:
    """Whether a call that does `allowed` and was let pass speaks for one that does `acts`."""
    if any(act.effect in ALONE or act.scope == "unknown" for act in acts):
        return False
    if not acts or not all(any(_no_wider(act, known, widened) for known in allowed) for act in acts):
        return False
    return _things(acts) <= _things(allowed)


def _things(acts: Sequence[Act]) -> int:
    """How many things a call acts on, paths left out: two pods are more than one, though each is like the other."""
    return len({(act.effect, act.verb, act.target) for act in acts if act.target.kind not in ("path", "none")})


def reaches(blocked: Act, acts: Sequence[Act]) -> bool:
    """Whether the act that was blocked is done in a call, or a wider one of its kind."""
    return any(_no_narrower(act, blocked) for act in acts)


def _no_wider(act: Act, known: Act, widened: str) -> bool:
    same = (act.effect, act.program, act.verb, act.scope, act.via) == (
        known.effect,
        known.program,
        known.verb,
        known.scope,
        known.via,
    )
    return same and act.marks <= known.marks and act.details == known.details and _inside(act, known, widened)


def _inside(act: Act, known: Act, widened: str) -> bool:
    """Whether a target is the same, or lies in it; `widened` is what a person said beyond that."""
    own, other = act.target, known.target
    if own.kind != other.kind or (own.amount or 0) > (other.amount or 0):
        return False
    if widened.startswith("pattern="):
        return fnmatchcase(str(own), widened.removeprefix("pattern=")) or own == other
    if own.kind == "path":
        return _path_inside(own, other, act, widened)
    if own.kind == "host":
        if own.name != other.name:
            return False
        return widened == "host" or act.effect == "read" or _place_inside(own, other)
    if own.kind == "resource" and act.effect not in EXACTLY:
        return _resource_inside(own, other)
    return own.name == other.name


def _path_inside(own: ActTarget, other: ActTarget, act: Act, widened: str) -> bool:
    if own.name == other.name:
        return other.folder or not own.folder or act.effect == "read"
    if widened == "project":
        return act.scope == "project"
    folder = other.name.rpartition("/")[0] if widened == "folder" and not other.folder else other.name
    return (other.folder or widened == "folder") and folder not in ("", "/") and within(own.name, folder)


def _place_inside(own: ActTarget, other: ActTarget) -> bool:
    if own.within == other.within:
        return other.folder or not own.folder
    if "?" in own.within or ".." in own.within.split("/"):
        return False
    folder = other.folder or other.within.endswith("/")
    return folder and len(other.within) > 1 and within(own.within, other.within.rstrip("/"))


def _resource_inside(own: ActTarget, other: ActTarget) -> bool:
    """`namespace/kind/name`: another of the same kind in the same namespace is no wider; all of them are."""
    if own.name == other.name:
        return True
    parts, others = own.name.split("/"), other.name.split("/")
    if len(parts) < 3 or len(parts) != len(others) or parts[-1] in ("*", "", "?"):
        return False
    return parts[:-1] == others[:-1] and parts[-2] not in ("namespace", "node", "secret", "*")


def _no_narrower(act: Act, blocked: Act) -> bool:
    if (act.effect, act.program, act.verb) != (blocked.effect, blocked.program, blocked.verb):
        return False
    if blocked.scope == "unknown":  # what nobody knows is no wider or narrower: the very command is meant
        return act.text == blocked.text
    own, other = act.target, blocked.target
    if own == other:
        return act.scope == blocked.scope
    if own.kind != other.kind:
        return False
    if own.kind == "path":
        return within(other.name, own.name) and (own.folder or own.name == other.name)
    if own.kind == "host":
        return own.name == other.name and (
            own.within == other.within or (own.folder and within(other.within, own.within))
        )
    if own.kind == "recipient":
        return own.name == other.name and (own.amount or 0) >= (other.amount or 0)
    if own.kind in ("branch", "resource"):
        return own.name == other.name or (own.name.endswith("*") and other.name.startswith(own.name[:-1]))
    return own.name == other.name
