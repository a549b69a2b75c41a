"""Asks the person at the client by elicitation, in the form of the negotiated protocol version.

    2025-06-18     a request `elicitation/create` to the client, a form
    2025-11-25     the same, a form or a URL, which the client says in its capabilities
    2026-07-28     no requests to the client: the call is answered `input_required`, with the question and a state;
                   the client asks, and calls again with the answer and the state

A form is answered at the client. A URL leads to the console, and only what is said there counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS, is_version_at_least

from gradproof.gate.mcp_proxy.messages import JsonMessage

Mode = Literal["form", "url"]
Said = Literal["once", "always", "deny", "opened", "nothing"]

QUESTION = "gradproof"  # its key among the input requests of a call
ONCE, ALWAYS, DENY = "allow this call", "allow such calls from now on", "deny"
ANSWERS: dict[str, Said] = {ONCE: "once", ALWAYS: "always", DENY: "deny"}
MOST_REASON, MOST_NAME, MOST_VALUE = 600, 120, 400  # characters shown of each
MOST_ARGUMENTS = 8  # that are shown
MOST_CLIENT = 60  # characters of a client's name


class ClientOffer(NamedTuple):
    """What a client said of itself: the version it speaks, and the ways in which it can ask a person."""

    version: str = ""
    modes: tuple[Mode, ...] = ()

    @property
    def stateless(self) -> bool:
        """Whether nothing can be asked but in the answer of a call."""
        return self.version in MODERN_PROTOCOL_VERSIONS


def offer(version: Any, capabilities: Any) -> ClientOffer:
    """By the negotiated version; of a version that is not known nothing is assumed."""
    if not isinstance(version, str) or version not in (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS):
        return ClientOffer()
    elicitation = capabilities.get("elicitation") if isinstance(capabilities, Mapping) else None
    if not isinstance(elicitation, Mapping) or not is_version_at_least(version, "2025-06-18"):
        return ClientOffer(version)
    if version == "2025-06-18":
        return ClientOffer(version, ("form",))
    modes: list[Mode] = [mode for mode in ("form", "url") if isinstance(elicitation.get(mode), Mapping)]
    return ClientOffer(version, tuple(modes) if modes or elicitation else ("form",))  # {} is a form


def offer_of_call(call: JsonMessage) -> ClientOffer | None:
    """As a call of a stateless session states it; None where it does not, as in sessions that were initialized."""
    meta = call.get("params", {}).get("_meta")
    if not isinstance(meta, Mapping) or meta.get(PROTOCOL_VERSION_META_KEY) not in MODERN_PROTOCOL_VERSIONS:
        return None
    return offer(meta[PROTOCOL_VERSION_META_KEY], meta.get(CLIENT_CAPABILITIES_META_KEY))


def client_of_call(call: JsonMessage) -> str:
    """What the client of a stateless session calls itself."""
    meta = call.get("params", {}).get("_meta")
    return name_of(meta.get(CLIENT_INFO_META_KEY)) if isinstance(meta, Mapping) else ""


def name_of(info: Any) -> str:
    return one_line(str(info.get("name", "")), MOST_CLIENT) if isinstance(info, Mapping) else ""


def form(message: str, version: str) -> dict[str, Any]:
    """The params of an elicitation by a form of one field."""
    field = {"type": "string", "title": "Run this call?", "enum": [ONCE, ALWAYS, DENY]}
    schema = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
    mode = {"mode": "form"} if is_version_at_least(version, "2025-11-25") else {}
    return {**mode, "message": message, "requestedSchema": schema}


def url(message: str, version: str, address: str, id: str) -> dict[str, Any]:
    """The params of an elicitation by a page."""
    named = {} if version in MODERN_PROTOCOL_VERSIONS else {"elicitationId": id}
    return {"mode": "url", "message": message, "url": address, **named}


def input_required(params: Mapping[str, Any], state: str) -> dict[str, Any]:
    """The result of a call that waits for a person, where the client calls again."""
    question = {"method": "elicitation/create", "params": dict(params)}
    return {"resultType": "input_required", "inputRequests": {QUESTION: question}, "requestState": state}


def said(answer: Any, mode: Mode) -> Said:
    """What a person said; `nothing` where the question was dismissed, or was answered by what is not an answer."""
    action = answer.get("action") if isinstance(answer, Mapping) else None
    if action == "decline":
        return "deny"
    if action != "accept":
        return "nothing"
    if mode == "url":
        return "opened"
    content = answer.get("content")
    chosen = content.get("answer") if isinstance(content, Mapping) else None
    return ANSWERS.get(chosen, "nothing") if isinstance(chosen, str) else "nothing"


def question(server: str, tool: str, arguments: Mapping[str, Any], reason: str) -> str:
    """What a person is asked. The call is written by the agent, so each value is one line, and what is cut says so."""
    lines = [f"Gradproof asks before the tool {one_line(tool, MOST_NAME)} of {server} runs.", ""]
    lines += [f"Reason: {one_line(reason, MOST_REASON)}"]
    shown = list(arguments.items())[:MOST_ARGUMENTS]
    lines += [f"  {one_line(name, MOST_NAME)} = {one_line(repr(value), MOST_VALUE)}" for name, value in shown]
    left = len(arguments) - len(shown)
    lines += [f"  and {left} more arguments, which are not shown"] if left else []
    return "\n".join(lines)


def one_line(text: str, most: int) -> str:
    """Without line breaks, control characters and marks that turn the direction of writing; head and tail of a long
    text."""
    if len(text) > most:
        head, tail = most * 3 // 4, most // 4
        text = f"{text[:head]} [… {len(text) - head - tail:,} characters …] {text[-tail:]}"
    return "".join(character if character.isprintable() else "·" for character in text)
