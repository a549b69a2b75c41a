"""The tools of a server: as listed now, and as first seen.

What a server says of a tool is read by the agent as an instruction, so a server that people have looked at and that
says something else later is reported. What was first seen outlives the proxy, in a file for each server command:

    {"server": "npx …",
     "tools": {"write_file": {"seen": "2026-…", "description": "…", "destructive": false, "digests": {…}}}}
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.files import write_atomically
from gradproof.gate.corrections import safe
from gradproof.gate.mcp_proxy.messages import depth

PARTS = ("title", "description", "inputSchema", "outputSchema", "annotations")
MOST_TOOLS = 2000  # that are remembered
MOST_SCHEMA, MOST_SCHEMA_DEPTH = 32 * 1024, 16  # that are told to the gate, which bounds what a call may hold
MOST_DESCRIPTION = 2000  # characters kept, to be read by a person
ODD = re.compile(r"[^A-Za-z0-9-]+|_+")

Tool = Mapping[str, Any]


class ToolChange(NamedTuple):
    """What a server says otherwise of a tool than when it was first seen."""

    tool: str
    parts: tuple[str, ...]
    seen: str

    def __str__(self) -> str:
        changed = " and ".join(self.parts)
        return f"the server has changed the {changed} of its tool {self.tool[:100]!r}, first seen {self.seen}"


class KnownTools:
    """`file` holds what was first seen; None keeps it in memory alone."""

    def __init__(self, file: Path | None, server: str):
        self.file, self.server = file, server
        self.now: dict[str, Tool] = {}
        self.fresh = False  # whether `now` is the whole list, and nothing was said of a change since
        self._first: dict[str, dict[str, Any]] = {}
        self._told: set[tuple[str, str]] = set()
        self._load()

    def listed(self, tools: Iterable[Any], whole: bool = False) -> list[ToolChange]:
        """Takes in what a server lists; `whole` replaces what it listed before. What has changed since it was first
        seen is told once for each new form."""
        named = {tool["name"]: tool for tool in tools if _is_tool(tool)}
        if whole:
            self.now, self.fresh = {}, True
        self.now.update(named)
        changes = [change for change in map(self._changed, named.values()) if change is not None]
        unseen = {name: _first(tool) for name, tool in named.items() if name not in self._first}
        if unseen and len(self._first) < MOST_TOOLS:
            self._first.update(unseen)
            self._save()
        return changes

    def get(self, name: str) -> Tool | None:
        return self.now.get(name)

    def annotations(self, name: str) -> dict[str, Any]:
        """As the server states them, but what it once called destructive stays so."""
        said = self.now[name].get("annotations")
        stated = dict(said) if isinstance(said, Mapping) else {}
        if self._first.get(name, {}).get("destructive") is True:
            stated |= {"destructiveHint": True, "readOnlyHint": False}
        return stated

    def schema(self, name: str) -> dict[str, Any] | None:
        """The input schema, where it is no larger than the gate reads."""
        schema = self.now[name].get("inputSchema")
        small = isinstance(schema, dict) and len(json.dumps(schema)) <= MOST_SCHEMA
        return schema if small and depth(schema) <= MOST_SCHEMA_DEPTH else None

    def qualified(self, server: str, name: str) -> str:
        """`mcp__server__tool`. Characters that separate in the gate's names are none of the tool's own: `a.think` is
        `a_think`, for no part of a name may pass for the whole."""
        return f"mcp__{server}__{_plain(name)}"

    def namesake(self, name: str) -> str | None:
        """Another tool that has the same name once odd characters are left out: what is said of one would hold for
        the other."""
        return next((other for other in self.now if other != name and _plain(other) == _plain(name)), None)

    def _changed(self, tool: Tool) -> ToolChange | None:
        first = self._first.get(tool["name"])
        if first is None:
            return None
        digests = _digests(tool)
        parts = tuple(part for part in PARTS if digests[part] != first["digests"].get(part))
        told = (tool["name"], json.dumps(digests))
        if not parts or told in self._told:
            return None
        self._told.add(told)
        return ToolChange(tool["name"], parts, first["seen"])

    def _load(self) -> None:
        if self.file is None:
            return
        with suppress(FileNotFoundError):
            try:
                tools = json.loads(self.file.read_text(encoding="utf-8"))["tools"]
                self._first = {name: first for name, first in tools.items() if isinstance(first["digests"], dict)}
            except (KeyError, TypeError, AttributeError, ValueError):
                raise ValueError(
                    f"{self.file}, which tells how the server's tools first were, cannot be read; repair or delete it"
                ) from None

    def _save(self) -> None:
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # For people, who recognise a command without its secrets.
            record = {"server": safe(self.server, secrets.token_bytes(16)), "tools": self._first}
            write_atomically(self.file, json.dumps(record, indent=1) + "\n", mode=0o600)


def file_for(folder: Path, server: str) -> Path:
    """Where what was first seen of a server is kept."""
    return folder / f"{hashlib.sha256(server.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


def _is_tool(tool: Any) -> bool:
    return isinstance(tool, Mapping) and isinstance(tool.get("name"), str)


def _first(tool: Tool) -> dict[str, Any]:
    annotations = tool.get("annotations")
    destructive = isinstance(annotations, Mapping) and annotations.get("destructiveHint") is True
    description = str(tool.get("description") or "")[:MOST_DESCRIPTION]
    seen = datetime.now(UTC).isoformat(timespec="seconds")
    return {"seen": seen, "description": description, "destructive": destructive, "digests": _digests(tool)}


def _digests(tool: Tool) -> dict[str, str]:
    return {part: _digest(tool.get(part)) for part in PARTS}


def _digest(part: Any) -> str:
    return "" if part is None else hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:32]


def _plain(name: str) -> str:
    return ODD.sub("_", name) or "_"
