"""An act: one thing that a call does, with its target and scope.

rm -rf ./build          delete   rm         /home/me/app/build (folder)   project
git push origin main    publish  git push   origin/main                   remote
sudo dd of=/dev/sda     write    dd         /dev/sda                      device      via privileged
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

Effect = Literal[
    "read",
    "write",
    "delete",
    "execute",
    "install",
    "fetch_and_run",
    "send",
    "publish",
    "rewrite_history",
    "change_rights",
    "escalate",
    "persist",
    "stop",
    "spend",
    "unknown",
]
ActScope = Literal[
    "own",
    "secret",
    "root",
    "device",
    "system",
    "temp",
    "project",
    "home",
    "outside",
    "local",
    "remote",
    "unknown",
]
Kind = Literal[
    "none",  # the effect is all there is to say
    "path",
    "host",
    "branch",  # remote/branch
    "table",
    "resource",  # context/namespace/kind/name, as far as they are known
    "process",
    "package",
    "recipient",
]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
SCOPES: tuple[ActScope, ...] = get_args(ActScope)
VIAS = ("privileged", "elsewhere", "interpreter", "pipe")


@dataclass(frozen=True)
class ActTarget:
    """What an act is done to. Resolved: a path is absolute and without `..`, a branch has its remote."""

    kind: Kind = "none"
    name: str = ""
    folder: bool = False  # of a path: all that lies below it is meant, too
    amount: float | None = None  # of money
    within: str = ""  # of a host: the path or the database there, behind a colon and the port where one is given

    def __str__(self) -> str:
        slash = "/" if self.folder and not self.name.endswith("/") else ""
        return f"{self.name}{slash}" + (f":{self.within.removeprefix(':')}" if self.within else "")


NOTHING = ActTarget()


@dataclass(frozen=True)
class Act:
    """`program` is the program or the tool; `verb` its subcommand. `marks` are what else a decision depends on:
    `forced`, `shared` (a branch that others use), `payload:secret`, `flag:NAME` for a flag that changes the effect,
    `where:…` for the condition under which rows are changed."""

    effect: Effect
    program: str
    scope: ActScope
    verb: str = ""
    target: ActTarget = NOTHING
    via: frozenset[str] = frozenset()
    marks: frozenset[str] = field(default=frozenset())
    why: str = ""  # of an unknown act: what could not be read
    text: str = field(default="", compare=False)  # the one command that does it, as it was written
    details: frozenset[str] | None = None  # what else was said: a correction wants the same

    def but(self, **changes: Any) -> Act:
        return replace(self, **changes)

    def plain(self) -> dict[str, Any]:
        """As it is printed and stored."""
        named = {"effect": self.effect, "program": self.program, "verb": self.verb, "target": str(self.target)}
        more = {"why": self.why} if self.why else {}
        return {**named, "scope": self.scope, "via": sorted(self.via), **more}


def unknown(program: str, why: str, via: frozenset[str] = frozenset()) -> Act:
    """What could not be read; neither likeness nor the model can allow it."""
    return Act("unknown", program, "unknown", via=via, why=why)
