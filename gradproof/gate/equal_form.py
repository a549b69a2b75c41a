"""Removes formatting that reveals where a call was recorded, but not what it does.

Line breaks become `; `, shebangs and comments go, and `#{x}` is written `x`. A model that is trained and scored on such
calls cannot tell sources apart by how they were printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradproof.gate.calls import Call

PLACEHOLDER = re.compile(r"#\{([^}\n]*)\}")
SHEBANG = re.compile(r"\A#![^\n]*\n?")
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#(?!\{)[^\n]*$")
BREAKS = re.compile(r"\s*\n\s*")


def equal_form(call: Call) -> Call:
    """The call as it would be written in one line."""
    return replace(call, arguments=_value(call.arguments))


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {name: _value(inner) for name, inner in value.items()}
    return [_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def one_line(text: str) -> str:
    """A text without the marks of its source."""
    text = COMMENT.sub("", SHEBANG.sub("", text))
    return BREAKS.sub("; ", PLACEHOLDER.sub(r"\1", text).strip())


def trivial(call: Call) -> bool:
    """The rule on form alone that catches most calls to block of the public sets: a line break, or `#{`."""
    return any("\n" in text.strip() or "#{" in text for text in _texts(call.arguments))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for one in inner for text in _texts(one)]
