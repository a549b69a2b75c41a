"""Tools on files: an effect on each path that they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradproof.gate.acts.act import ActTarget
from gradproof.gate.acts.arguments import PATH_ARGUMENTS, PLACES_THERE, leaves, path_word
from gradproof.gate.acts.command import Command
from gradproof.gate.acts.paths import may_be_secret
from gradproof.gate.acts.places import here
from gradproof.gate.acts.tool_names import FILE_TOOLS, HOSTED, server_name


def file_tool(command: Command, name: str, arguments: Mapping[str, Any]) -> None:
    """A tool on files: its effect on each path that it is given."""
    effect = FILE_TOOLS[name]
    if name in ("str_replace_editor", "str_replace_based_edit_tool"):
        effect = "read" if arguments.get("command") == "view" else "write"
    touched = False
    for key, value in leaves("", arguments):
        own = key.rsplit(".", 1)[-1]
        named = PATH_ARGUMENTS.match(own) or (name == "read_many_files" and own == "include")
        if named and isinstance(value, str) and value:
            command.touch(effect, path_word(value), folder=name.endswith("directory"))
            touched = True
    if name == "apply_patch":
        text = "\n".join(value for _, value in leaves("", arguments) if isinstance(value, str))
        for match in re.finditer(r"(?m)^\*\*\* (Add|Update|Delete|Move to)(?: File)?: (.+)$", text):
            command.touch("delete" if match[1] == "Delete" else "write", path_word(match[2].strip()))
            touched = True
        for match in re.finditer(r"(?m)^\+\+\+ (?:b/)?(\S+)", text):
            command.touch("write", path_word(match[1]))
            touched = True
    for key in ("glob", "include"):
        if isinstance(pattern := arguments.get(key), str) and may_be_secret(pattern.rpartition("/")[2]):
            command.act("read", "secret", ActTarget("path", pattern))
    if effect != "read" and is_hosted(server_name(command.program), arguments):
        command.act(effect, "remote", ActTarget("resource", command.program))
    if (
        name == "glob"
        and isinstance(arguments.get("pattern"), str)
        and arguments["pattern"].startswith(("/", "~", ".."))
    ):
        command.touch("read", path_word(re.split(r"[*?\[{]", arguments["pattern"])[0]))
    if not touched:
        if effect == "read":
            here(command, "read")
        else:
            command.unknown("a file without a name")


def is_hosted(server: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a tool works on what lies at a service, such as a repository there, though it is given a path."""
    return bool(HOSTED.search(server)) or not PLACES_THERE.isdisjoint(map(str.lower, arguments))
