"""Knowledge about programs: loads `effects.toml` once.

    [programs.cp]
    args = "read:path* write:path"         # what the words are, in order; * takes all that are left for it
    options = { "-t" = "write:path" }      # options whose value is one, too
    values = "-S --suffix"                 # options whose value says nothing
    attached = "-p"                        # options whose value, if there is one, is part of the word: -pSECRET
    folder = "-r -R --recursive"           # flags under which paths are folders
    flags = { "-i" = "write" }             # flags that turn what is read into another effect; "delete:system": there
    assignment = "write"                   # the same for a word NAME=value …
    alone = "read"                         # … and where there is no word at all
    says = { "LoginHook" = "persist:home" }  # words that are an act of their own, wherever they stand
    effect = "execute"                     # an act of its own, whatever the words are …
    scope = "project"                      # … with this scope
    marks = "-f --force"                   # flags that a correction of a call without them does not cover
    verbs.NAME = { … }                     # subcommands, with the same fields; "NAME OTHER" for two words
    reader = "find"                        # read by a function of that name
    like = "cat"                           # as another program

A word is `effect:kind`, or `-` where it says nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from gradproof.gate.acts.act import EFFECTS, SCOPES, ActScope, Effect

FILE = Path(__file__).parents[1] / "effects.toml"
KINDS = (
    *("path", "folder", "url", "host", "hostpath", "process", "service", "package", "container", "resource"),
    *("remote", "database", "command", "code", "name", "device", "user"),
)


@dataclass(frozen=True)
class WordPart:
    """One word of a program's arguments."""

    effect: Effect | None = None  # None: says nothing
    kind: str = "name"
    many: bool = False


@dataclass(frozen=True)
class Deed:
    """What a program, or one of its verbs, does."""

    args: tuple[WordPart, ...] = ()
    options: Mapping[str, WordPart] = field(default_factory=dict)
    values: frozenset[str] = frozenset()
    attached: tuple[str, ...] = ()
    folder: frozenset[str] = frozenset()
    flags: Mapping[str, Effect] = field(default_factory=dict)
    flag_scopes: Mapping[str, ActScope] = field(default_factory=dict)
    assignment: Effect | None = None
    alone: tuple[Effect, ActScope | None] | None = None
    says: Mapping[str, tuple[Effect, ActScope]] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    effect: Effect | None = None
    scope: ActScope | None = None
    target: str = ""
    reader: str = ""
    verbs: Mapping[str, Deed] = field(default_factory=dict)

    def takes_value(self, option: str) -> bool:
        return option in self.values or option in self.options


@dataclass(frozen=True)
class Knowledge:
    """All programs, what verbs in a tool's name mean, and which variables are more than data."""

    programs: Mapping[str, Deed]
    verbs: Mapping[str, Effect]  # first word of a verb → effect
    wrappers: Mapping[str, Mapping[str, Any]]
    interpreters: Mapping[str, str]  # program → language
    variables: Mapping[str, str]  # NAME, or NAME_* → path, command, options, folder, prompt or record
    daemons: frozenset[str]  # services by the name of their process
    dangerous: tuple[str, ...]  # programs whose name in an unread text is reason enough
    packaged: frozenset[str]  # programs that npx and its like may find in a project instead of fetching them

    def variable(self, name: str) -> str | None:
        """What kind of variable this is, if it is more than data."""
        if name in self.variables:
            return self.variables[name]
        return next((kind for shape, kind in self.variables.items() if "*" in shape and fnmatchcase(name, shape)), None)


@cache
def knowledge() -> Knowledge:
    """The file, checked."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    programs: dict[str, Deed] = {}
    same = {}
    for name, table in tables["programs"].items():
        if isinstance(table, str):
            table = {"args": table}
        if "like" in table:
            same[name] = table["like"]
        else:
            programs[name] = _deed(name, table)
    for name, other in same.items():
        programs[name] = programs[other]
    for names, other in tables.get("alias", {}).items():
        for name in names.split():
            programs[name] = programs[other]
    verbs = {verb: effect for effect, words in tables["verbs"].items() for verb in words.split()}
    languages = {program: language for language, words in tables["interpreters"].items() for program in words.split()}
    variables = {name: kind for kind, words in tables["variables"].items() for name in words.split()}
    dangerous = tuple(tables["dangerous"]["programs"].split())
    daemons = frozenset(tables["daemons"]["system"].split())
    packaged = frozenset(tables["packaged"]["programs"].split())
    return Knowledge(programs, verbs, tables["wrappers"], languages, variables, daemons, dangerous, packaged)


FIELDS = {
    *(
        "args",
        "options",
        "values",
        "attached",
        "folder",
        "flags",
        "assignment",
        "alone",
        "says",
        "marks",
        "effect",
        "scope",
        "target",
        "reader",
        "verbs",
    ),
}


def _deed(name: str, table: Mapping[str, Any]) -> Deed:
    unknown = table.keys() - FIELDS
    if unknown:
        raise ValueError(f"effects.toml: {name} has no field {min(unknown)!r}")
    effect, scope = table.get("effect"), table.get("scope")
    if effect not in (None, *EFFECTS) or scope not in (None, *SCOPES):
        raise ValueError(f"effects.toml: {name} has effect {effect!r} and scope {scope!r}")
    turned = {flag: words for flags, words in table.get("flags", {}).items() for flag in flags.split()}
    spoken = {word: deed for words, deed in table.get("says", {}).items() for word in words.split()}
    return Deed(
        args=tuple(_part(name, word) for word in table.get("args", "").split()),
        options={
            option: _part(name, word)
            for options, word in table.get("options", {}).items()
            for option in options.split()
        },
        values=frozenset(table.get("values", "").split()),
        attached=tuple(table.get("attached", "").split()),
        folder=frozenset(table.get("folder", "").split()),
        flags={flag: _turn(name, words)[0] for flag, words in turned.items()},
        flag_scopes={flag: there for flag, words in turned.items() if (there := _turn(name, words)[1]) is not None},
        assignment=_turn(name, table["assignment"])[0] if "assignment" in table else None,
        alone=_turn(name, table["alone"]) if "alone" in table else None,
        says={word: (_turn(name, deed)[0], _turn(name, deed)[1] or "local") for word, deed in spoken.items()},
        marks=frozenset(table.get("marks", "").split()),
        effect=effect,
        scope=scope,
        target=table.get("target", ""),
        reader=table.get("reader", ""),
        verbs={
            verb: _deed(f"{name} {verb}", inner if isinstance(inner, dict) else {"args": inner})
            for verbs, inner in table.get("verbs", {}).items()
            for verb in verbs.split("|")
        },
    )


def _turn(name: str, words: str) -> tuple[Effect, ActScope | None]:
    """`delete`, or `delete:system`."""
    effect, _, scope = words.partition(":")
    if effect not in EFFECTS or scope not in ("", *SCOPES):
        raise ValueError(f"effects.toml: {name} has a flag or word {words!r}")
    return effect, scope or None  # type: ignore[return-value]


def _part(name: str, word: str) -> WordPart:
    """`read:path*`."""
    many = word.endswith("*")
    word = word.rstrip("*")
    if word == "-":
        return WordPart(many=many)
    effect, _, kind = word.partition(":")
    if effect not in EFFECTS and effect != "run":
        raise ValueError(f"effects.toml: {name} has no effect {effect!r}")
    if kind not in KINDS:
        raise ValueError(f"effects.toml: {name} has no kind {kind!r}")
    return WordPart(None if effect == "run" else effect, kind, many)  # type: ignore[arg-type]
