"""Rules written by people: `rules.toml` in the store. They win over corrections, policy and model; a deny wins over an
allow.

    [[deny]]                        [[allow]]
    effect = "publish"              program = "git"
    program = "git"                 verb = "push"
    reason = "people push here"     target = "origin/docs-*"

A rule is matched on what a call does, act by act: `effect`, `scope`, `program`, `verb`, `target` and `host` (globs),
however the command is wrapped or written. `tool` is a glob on the tool's name. `argument` names a value that `exact`,
`prefix`, `glob` or `regex` (RE2's, in linear time) is held against; without `argument`, a deny looks at every value
and an allow wants every value to match. A deny searches, also in each command of a shell line; an allow must match a
whole value, and its prefix or glob covers no shell line: name `program` and `verb` instead.

A deny blocks a call that has one such act. An allow allows the acts that it matches, and no others: the rest of the
call is decided as ever. What the floor blocks no rule allows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.acts.act import EFFECTS, SCOPES, Act
from gradproof.gate.acts.arguments import leaves
from gradproof.gate.acts.shell_tools import is_shell

FILE = "rules.toml"
WAYS = ("exact", "prefix", "glob", "regex")
OF_ACTS = ("effect", "scope", "program", "verb", "target", "host")

DEFAULT = """# Rules: they win over corrections, policy and model, and a deny wins over an allow. A rule is matched on
# what a call does: effect, scope, program, verb, target, host (globs), tool; or on an argument by exact, prefix, glob,
# regex.
# The effects are read, write, delete, execute, install, fetch_and_run, send, publish, rewrite_history, change_rights,
# escalate, persist, stop, spend. Changes hold from the next decision on.

# [[deny]]
# effect = "publish"
# program = "npm"
# reason = "releases are made by people"

# [[allow]]
# program = "git"
# verb = "push"
# target = "origin/docs-*"
"""


@dataclass(frozen=True)
class Rule:
    effect: Literal["deny", "allow"]
    tool: str = "*"
    acts: Mapping[str, str] = field(default_factory=dict)
    argument: str | None = None
    way: str | None = None
    pattern: str = ""
    reason: str = ""
    place: int = 0  # in the file, from 1 on, among those of its effect

    @property
    def line(self) -> str:
        """Which rule of the file this is."""
        fields = {"tool": self.tool if self.tool != "*" else "", **self.acts, "argument": self.argument or ""}
        fields |= {self.way: self.pattern} if self.way else {}
        said = ", ".join(f"{name} {value!r}" for name, value in fields.items() if value)
        return f"{FILE}: [[{self.effect}]] number {self.place}, {said}"

    def __str__(self) -> str:
        said = [f"{name} {value}" for name, value in self.acts.items()]
        said += [f"{self.way} {self.pattern}"] if self.way else []
        return f"rule: {self.effect}, {self.reason or ', '.join(said) or f'tool {self.tool}'}"

    def matches(self, act: Act, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the rule speaks of an act of a call."""
        if not fnmatchcase(tool, self.tool) or not all(self._is(act, *pair) for pair in self.acts.items()):
            return False
        return self.way is None or self._said(act, tool, arguments)

    @staticmethod
    def _is(act: Act, name: str, pattern: str) -> bool:
        if name == "host":
            return act.target.kind == "host" and fnmatchcase(act.target.name, pattern)
        value = str(act.target) if name == "target" else getattr(act, name)
        return fnmatchcase(value, pattern) or (name == "target" and fnmatchcase(act.target.name, pattern))

    def _said(self, act: Act, tool: str, arguments: Mapping[str, Any]) -> bool:
        values = [(name, value) for name, value in leaves("", arguments) if self.argument in (None, name)]
        texts = [value if isinstance(value, str) else str(value) for _, value in values]
        shell = is_shell(tool, arguments)
        if self.effect == "deny":
            return any(self._found(text) for text in (*texts, *([act.text] if shell and texts else [])))
        if self.way in ("prefix", "glob") and shell:
            return False
        return bool(texts) and all(self._whole(text.strip()) for text in texts)

    def _found(self, text: str) -> bool:
        if self.way == "regex":
            return expression(self.pattern).search(text) is not None
        return self._whole(text.strip())

    def _whole(self, text: str) -> bool:
        if self.way == "regex":
            return expression(self.pattern).fullmatch(text) is not None
        if self.way == "exact":
            return text == self.pattern
        if ".." in text.split("/") and self.effect == "allow":
            return False
        return fnmatchcase(text, self.pattern) if self.way == "glob" else text.startswith(self.pattern)


class Rules:
    """The rules of a file."""

    def __init__(self, rules: Sequence[Rule] = ()):
        self.rules = sorted(rules, key=lambda rule: rule.effect == "allow")

    @classmethod
    def read(cls, path: Path) -> Rules:
        """ValueError says which rule is wrong, and how."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None

    @classmethod
    def parse(cls, text: str, path: str = "the rules") -> Rules:
        """ValueError says which rule is wrong, and how."""
        try:
            tables = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        unknown = tables.keys() - {"deny", "allow"}
        if unknown:
            raise ValueError(f"{path}: {min(unknown)!r} must be deny or allow")
        for effect, listed in tables.items():
            if not isinstance(listed, list):
                raise ValueError(f"{path}: write [[{effect}]] with two brackets, because there can be several rules")
        return cls(
            [
                _rule(path, effect, table, place)
                for effect in ("deny", "allow")
                for place, table in enumerate(tables.get(effect, []), 1)
            ]
        )

    def judge(self, act: Act, tool: str, arguments: Mapping[str, Any]) -> Rule | None:
        """The first that matches an act, denies before allows."""
        return next((rule for rule in self.rules if rule.matches(act, tool, arguments)), None)


@cache
def expression(pattern: str) -> Any:
    """A regular expression that takes no longer than its text is long."""
    try:
        import re2
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _rule(path: str, effect: str, table: Any, place: int) -> Rule:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"{path}: a rule must be a table of strings, not {table!r}")
    ways = [way for way in WAYS if way in table]
    fields = ("tool", "argument", "reason", *OF_ACTS, *WAYS)
    unknown = table.keys() - set(fields)
    if unknown or len(ways) > 1:
        what = f"has no field {min(unknown)!r}" if unknown else f"gives both {ways[0]} and {ways[1]}"
        raise ValueError(f"{path}: a rule {what}; its fields are {', '.join(fields)}, and at most one of the last four")
    way = ways[0] if ways else None
    acts = {name: table[name] for name in OF_ACTS if name in table}
    if way is None and not acts and "tool" not in table:
        raise ValueError(
            f"{path}: a rule without tool, {', '.join(OF_ACTS)} or {', '.join(WAYS)} would match every call"
        )
    for name, known in (("effect", EFFECTS), ("scope", SCOPES)):
        if name in acts and not any(fnmatchcase(value, acts[name]) for value in known):
            raise ValueError(f"{path}: unknown {name} {acts[name]!r}; it must be one of {', '.join(known)}")
    if way == "regex":
        _check_regex(path, table[way])
    pattern = table[way] if way else ""
    named = (table.get("tool", "*"), acts, table.get("argument"), way, pattern, table.get("reason", ""))
    return Rule(effect, *named, place)  # type: ignore[arg-type]


def _check_regex(path: str, pattern: str) -> None:
    try:
        expression(pattern)
    except ValueError:
        raise
    except Exception as error:
        (said,) = error.args or ("",)  # RE2's own is bytes
        reason = said.decode() if isinstance(said, bytes) else said
        raise ValueError(f"{path}: the regex {pattern!r} is not valid: {reason}") from None
