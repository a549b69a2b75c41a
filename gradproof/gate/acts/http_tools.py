"""Tools that make an HTTP request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradproof.gate.acts.act import ActTarget
from gradproof.gate.acts.arguments import (
    BODY_ARGUMENTS,
    METHOD_ARGUMENTS,
    PATH_ARGUMENTS,
    URL_ARGUMENTS,
    carries_key,
    leaves,
    path_word,
)
from gradproof.gate.acts.command import Command
from gradproof.gate.acts.requests import METHODS, request
from gradproof.gate.acts.tool_names import FORMS, NAME_PARTS, WEB_TOOLS
from gradproof.gate.acts.word import Word

MADE_LATER = re.compile(r"\$[({]|`")


def is_http(name: str, arguments: Mapping[str, Any]) -> bool:
    has_url = any(URL_ARGUMENTS.match(key) and isinstance(arguments[key], str) for key in arguments)
    if FORMS.search(name):
        return False
    return has_url and (
        bool(_method(arguments))
        or bool(re.search(r"http|request|fetch|curl|api|url|web|browse|navigate|download|scrape|crawl", name))
    )


def http_tool(command: Command, name: str, arguments: Mapping[str, Any]) -> None:
    method = _method(arguments)
    body = next((key for key, value in leaves("", arguments) if value and BODY_ARGUMENTS & set(key.split("."))), None)
    if not method:
        acted = [part for part in NAME_PARTS.findall(name) if part.upper() in METHODS]
        method = acted[0].upper() if acted else "POST" if body and name not in WEB_TOOLS else "GET"
    done, secret = False, carries_key(arguments)
    for key, value in leaves("", arguments):
        if URL_ARGUMENTS.match(key.rsplit(".", 1)[-1]) and isinstance(value, str) and value:
            url = Word((value,), substituted=bool(MADE_LATER.search(value)))
            request(command, method, url, payload=body is not None, secret_payload=secret)
            done = True
        elif PATH_ARGUMENTS.match(key.rsplit(".", 1)[-1]) and str(value).startswith(("/", "~", "../", "./")):
            command.touch("write", path_word(value))
    if not done:  # a search
        command.act("read", "remote", ActTarget("host", name))


def _method(arguments: Mapping[str, Any]) -> str:
    """The method of a request, by whatever name it is given and however deep."""
    for key, value in leaves("", arguments):
        if key.rpartition(".")[2].lower().replace("_", "") in METHOD_ARGUMENTS and isinstance(value, str):
            return value.upper()
    return ""
