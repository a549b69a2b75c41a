"""Hard rules, which always win over the model: `rules.toml` in the store. A deny wins over an allow.

    [[deny]]                      [[allow]]
    tool = "Bash"                 tool = "Bash"
    argument = "command"          argument = "command"
    regex = 'mkfs'                prefix = "git status"

`tool` is a glob. One of `exact`, `prefix`, `glob`, `regex` is held against the argument; without one, the tool alone
decides; without `argument`, a deny looks at every value and an allow wants every value to match. A deny searches: its
prefix may begin any command of a line. An allow is strict: its regex must match the whole value, and a prefix or glob
does not cover a shell line that goes on with an operator or a substitution, nor a path with `..` in it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from gradproof.gate.skeleton import SHELL_ARGUMENTS

FILE = "rules.toml"
WAYS = ("exact", "prefix", "glob", "regex")
OPERATORS = re.compile(r"[;&|<>`\n()]|\$\(")
UP = re.compile(r"(?:^|/)\.\.(?:/|$)")

DEFAULT = """# Hard rules: they always win over the model, and a deny wins over an allow. `tool` is a glob; one of
# exact, prefix, glob, regex is held against the argument. Changes hold from the next decision on.

[[deny]]
tool = "Bash"
argument = "command"
regex = '''\\brm\\s+(?:-\\S+\\s+)*-\\w*[rR]\\w*\\s+(?:-\\S+\\s+)*["']?(?:/|~|\\$HOME)/?\\*?["']?(?:\\s|;|&|$)'''
reason = "removes everything"

[[deny]]
tool = "Bash"
argument = "command"
regex = '''\\bmkfs(?:\\.\\w+)?\\s|\\bdd\\b.*\\bof=/dev/(?:sd|hd|nvme|vd|disk)|>\\s*/dev/(?:sd|hd|nvme|vd|disk)'''
reason = "writes over a disk"

[[deny]]
tool = "Bash"
argument = "command"
regex = ''':\\s*\\(\\s*\\)\\s*\\{\\s*:\\s*\\|\\s*:\\s*&\\s*\\}\\s*;\\s*:'''
reason = "is a fork bomb"

[[allow]]
tool = "Bash"
argument = "command"
regex = '''ls|pwd|git status|ls -[alhtr1]+'''
"""


@dataclass(frozen=True)
class Rule:
    effect: Literal["deny", "allow"]
    tool: str = "*"
    argument: str | None = None
    way: str | None = None
    pattern: str = ""
    reason: str = ""

    def __str__(self) -> str:
        what = f"{self.way} {self.pattern}" if self.way else f"tool {self.tool}"
        return f"rule: {self.effect}, {self.reason or what}"

    def matches(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        if not fnmatchcase(tool, self.tool):
            return False
        if self.way is None:
            return True
        values = [(name, value) for name, value in leaves(arguments) if self.argument in (None, name)]
        check = _denied if self.effect == "deny" else _allowed
        hits = [check(self.way, self.pattern, name, value) for name, value in values]
        return any(hits) if self.effect == "deny" else bool(hits) and all(hits)


class Rules:
    """The rules of a file."""

    def __init__(self, rules: list[Rule]):
        self.rules = sorted(rules, key=lambda rule: rule.effect == "allow")

    @classmethod
    def read(cls, path: Path) -> Rules:
        """ValueError says which rule is wrong, and how."""
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls([])
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        unknown = tables.keys() - {"deny", "allow"}
        if unknown:
            raise ValueError(f"{path}: {min(unknown)!r} is neither deny nor allow")
        return cls([_rule(path, effect, table) for effect in ("deny", "allow") for table in tables.get(effect, [])])

    def judge(self, tool: str, arguments: Mapping[str, Any]) -> Rule | None:
        """The first that matches, denies before allows."""
        return next((rule for rule in self.rules if rule.matches(tool, arguments)), None)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The texts of nested arguments, each with its dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner, name)
    else:
        yield name, value if isinstance(value, str) else str(value)


def _rule(path: Path, effect: str, table: Any) -> Rule:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"{path}: a rule is a table of texts, not {table!r}")
    ways = [way for way in WAYS if way in table]
    unknown = table.keys() - {"tool", "argument", "reason", *WAYS}
    if unknown or len(ways) > 1:
        what = f"has no field {min(unknown)!r}" if unknown else f"gives both {ways[0]} and {ways[1]}"
        raise ValueError(f"{path}: a rule {what}; its fields are tool, argument, reason and one of {', '.join(WAYS)}")
    way = ways[0] if ways else None
    if way is None and "tool" not in table:
        raise ValueError(f"{path}: a rule without tool and without {', '.join(WAYS)} would match every call")
    if way == "regex":
        try:
            re.compile(table[way])
        except re.error as error:
            raise ValueError(f"{path}: the regex {table[way]!r} is wrong: {error}") from None
    pattern = table[way] if way else ""
    return Rule(effect, table.get("tool", "*"), table.get("argument"), way, pattern, table.get("reason", ""))  # type: ignore[arg-type]


def _denied(way: str, pattern: str, name: str, value: str) -> bool:
    if way == "regex":
        return re.search(pattern, value) is not None
    parts = [value, *OPERATORS.split(value)] if _is_shell(name) else [value]
    return any(_plain(way, pattern, " ".join(part.split()), name) for part in parts)


def _allowed(way: str, pattern: str, name: str, value: str) -> bool:
    if way == "regex":
        return re.fullmatch(pattern, value.strip()) is not None
    if way != "exact" and (UP.search(value) or (_is_shell(name) and OPERATORS.search(value.strip()))):
        return False
    return _plain(way, pattern, value.strip(), name)


def _plain(way: str, pattern: str, value: str, name: str) -> bool:
    if way == "exact":
        return value == pattern
    if way == "glob":
        return fnmatchcase(value, pattern)
    ends = value[len(pattern) : len(pattern) + 1]  # of a shell's words: `git status` begins no `git statusx`
    return value.startswith(pattern) and (not _is_shell(name) or ends in ("", " ") or pattern.endswith(" "))


def _is_shell(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in SHELL_ARGUMENTS
