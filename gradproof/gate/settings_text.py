"""Edits a settings file as text: JSON, with or without comments, changed in one place and otherwise left as it is.

Parsing gives each value and where it stands; a change is a new text. What was inserted can be removed without a trace.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
MOST_DEPTH = 100


@dataclass
class SettingsNode:
    """A value, and where it stands: `text[start:end]`. `items` are those of an object or list, in their order."""

    value: Any
    start: int
    end: int = 0
    key: str | None = None  # of a member of an object, which begins with its key
    begin: int = 0
    items: list[SettingsNode] = field(default_factory=list)

    def get(self, key: str) -> SettingsNode | None:
        """The member of an object."""
        return next((item for item in self.items if item.key == key), None)


def parse_settings(text: str) -> SettingsNode:
    """The object that a file holds; ValueError with a sentence where it holds none."""
    bare = _without_comments(text)
    try:
        value = json.loads(bare, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it does not hold an object")
    return _Reader(bare).node(0)


def insert(text: str, inside: SettingsNode, value: Any, key: str | None = None) -> str:
    """The text with a value behind the last one of an object (with its key) or of a list."""
    newline = "\r\n" if "\r\n" in text else "\n"
    whole = text[inside.start : inside.end]
    one_line = "\n" not in whole and bool(inside.items)
    unit = _unit(text)
    outer = _indent_of(text, inside.end - 1) if "\n" in whole else _indent_of(text, inside.start)
    inner = _indent_of(text, inside.items[0].begin) if inside.items and not one_line else outer + unit
    written = json.dumps(value, ensure_ascii=False, indent=None if one_line else unit)
    written = written.replace("\n", newline + inner)
    if key is not None:
        written = f"{json.dumps(key, ensure_ascii=False)}: {written}"
    close = inside.end - 1
    if one_line:
        last = inside.items[-1].end
        return f"{text[:last]}, {written}{text[last:]}"
    if inside.items:
        last = inside.items[-1].end
        before = f"{text[:last]},{text[last:close].rstrip()}"
    else:
        before = text[:close].rstrip()
    return f"{before}{newline}{inner}{written}{newline}{outer}{text[close:]}"


def remove(text: str, inside: SettingsNode, index: int) -> str:
    """The text without one value of an object or list, and the comma that belonged to it."""
    bare = _without_comments(text)
    items = inside.items
    begin, end = items[index].begin, items[index].end
    if len(items) == 1:
        interior = text[inside.start + 1 : begin] + text[end : inside.end - 1]
        kept = "" if not interior.strip() else text[inside.start + 1 : begin].rstrip() + text[end : inside.end - 1]
        return text[: inside.start + 1] + kept + text[inside.end - 1 :]
    if index == len(items) - 1:
        comma = bare.index(",", items[index - 1].end)
        return text[:comma] + text[comma + 1 : begin].rstrip() + text[end:]
    comma = bare.index(",", end)
    between = text[comma + 1 : items[index + 1].begin]
    if between.strip():  # a comment that belongs to what follows
        return text[:begin].rstrip() + text[comma + 1 :]
    return text[:begin] + text[items[index + 1].begin :]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _without_comments(text: str) -> str:
    """Blanks in place of comments, so that everything stands where it stood."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') else re.sub(r"[^\r\n]", " ", found)

    return COMMENT.sub(blank, text)


def _indent_of(text: str, position: int) -> str:
    """The blanks at the beginning of the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """What one level is indented by: that of the first indented line."""
    first = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return first.group(1) if first else "  "


class _Reader:
    """Walks the tokens of JSON that json.loads has accepted."""

    def __init__(self, bare: str):
        self.bare = bare
        self.tokens = list(TOKEN.finditer(bare))
        self.next = 0

    def node(self, depth: int) -> SettingsNode:
        if depth > MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        token = self._take()
        node = SettingsNode(None, token.start(), token.end(), None, token.start())
        if token.group() not in "{[":
            node.value = json.loads(token.group())
            return node
        close = "}" if token.group() == "{" else "]"
        while self._peek() != close:
            if self._peek() == ",":
                self._take()
            node.items.append(self._member(depth) if close == "}" else self.node(depth + 1))
        node.end = self._take().end()
        node.value = {item.key: item.value for item in node.items} if close == "}" else [i.value for i in node.items]
        return node

    def _member(self, depth: int) -> SettingsNode:
        key = self._take()
        self._take()  # the colon
        item = self.node(depth + 1)
        item.key, item.begin = json.loads(key.group()), key.start()
        return item

    def _take(self) -> re.Match[str]:
        self.next += 1
        return self.tokens[self.next - 1]

    def _peek(self) -> str:
        return self.tokens[self.next].group()
