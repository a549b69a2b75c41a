"""JSON-RPC messages as plain data: parsed from a line, classified, and written back.

Typed models drop fields that they do not know, so nothing is typed here. What a client sends is read strictly, and
what is sent on is written anew from what was read: so a server reads what the gate has judged. Two readers may
disagree about a repeated key, about `Method` beside `method` (some match names without regard to case), or about a
message that is both a request and a response; such a message is refused and goes nowhere.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

JsonMessage = dict[str, Any]
JsonRpcId = int | str

MOST_BATCH = 100  # messages in one array
MOST_DEPTH = 200  # of nesting: less than what any writer of JSON can still write
ENVELOPE = ("jsonrpc", "id", "method", "params", "result", "error")
CALL_PARAMS = ("name", "arguments", "_meta", "task", "inputResponses", "requestState")
CALL, LIST = "tools/call", "tools/list"


class RefusedError(ValueError):
    """A message that goes nowhere; `id` is that of the request where it could be read."""

    def __init__(self, code: int, said: str, id: JsonRpcId | None = None):
        super().__init__(said)
        self.code, self.id = code, id

    def reply(self) -> JsonMessage:
        return error(self.id, self.code, str(self))


def from_client(line: bytes) -> list[JsonMessage | RefusedError]:
    """The messages of a line, strictly read, or why one is refused; an array is a batch of protocol 2025-03-26."""
    try:
        text = line.decode("utf-8")  # json.loads would guess at other encodings
        decoded = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        return [RefusedError(PARSE_ERROR, "the message is nested too deeply")]
    except ValueError as wrong:  # no UTF-8 or no JSON as well
        return [RefusedError(PARSE_ERROR, f"the message cannot be read: {wrong}")]
    if _too_deep(text, decoded):
        return [RefusedError(PARSE_ERROR, f"the message is nested too deeply; at most {MOST_DEPTH} levels are read")]
    if not isinstance(decoded, list):
        return [_checked(decoded)]
    if not 0 < len(decoded) <= MOST_BATCH:
        return [RefusedError(INVALID_REQUEST, f"a batch holds 1 to {MOST_BATCH} messages, not {len(decoded)}")]
    return [_checked(message) for message in decoded]


def from_server(line: bytes) -> list[JsonMessage]:
    """The messages of a line of a server's output; ValueError where it holds none. Read leniently: what is sent on is
    what was read, so there is only one reading."""
    try:
        text = line.decode("utf-8")
        decoded = json.loads(text)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if _too_deep(text, decoded):
        raise ValueError("the message is nested too deeply")
    messages = decoded if isinstance(decoded, list) else [decoded]
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise ValueError("a message is a JSON object")
    return messages


def line(message: JsonMessage) -> bytes:
    """One line of JSON."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can hold
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def is_request(message: JsonMessage) -> bool:
    return "method" in message and "id" in message


def is_response(message: JsonMessage) -> bool:
    return "method" not in message and ("result" in message or "error" in message)


def key(id: Any) -> tuple[str, JsonRpcId] | None:
    """An id as the key of a table, in which 1, 1.0, true and "1" are four things; None for what is not an id."""
    return (type(id).__name__, id) if isinstance(id, int | str) and not isinstance(id, bool) else None


def error(id: JsonRpcId | None, code: int, said: str) -> JsonMessage:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": said}}


def result(id: JsonRpcId, content: Mapping[str, Any]) -> JsonMessage:
    return {"jsonrpc": "2.0", "id": id, "result": dict(content)}


def refusal(id: JsonRpcId, said: str) -> JsonMessage:
    """A call that did not run: a tool result, which the agent reads, and no protocol error."""
    said_as_text = {"type": "text", "text": said}
    return result(id, {"resultType": "complete", "content": [said_as_text], "isError": True})


def notification(method: str, params: Mapping[str, Any]) -> JsonMessage:
    return {"jsonrpc": "2.0", "method": method, "params": dict(params)}


def depth(value: Any) -> int:
    """How many levels of lists and objects there are."""
    levels, level = 0, [value]
    while inner := [part for part in level if isinstance(part, dict | list)]:
        levels += 1
        level = [part for whole in inner for part in (whole.values() if isinstance(whole, dict) else whole)]
    return levels


def _too_deep(text: str, decoded: Any) -> bool:
    return text.count("[") + text.count("{") > MOST_DEPTH and depth(decoded) > MOST_DEPTH


def _checked(message: Any) -> JsonMessage | RefusedError:
    if not isinstance(message, dict):
        return RefusedError(INVALID_REQUEST, "a message is a JSON object")
    id = message.get("id") if key(message.get("id")) is not None else None
    try:
        _check_envelope(message)
        if "method" in message:
            _check_method(message)
    except RefusedError as wrong:
        wrong.id = id
        return wrong
    return message


def _check_envelope(message: JsonMessage) -> None:
    _check_names(message, ENVELOPE, "a message")
    if message.get("jsonrpc") != "2.0":
        raise RefusedError(INVALID_REQUEST, 'a message has "jsonrpc": "2.0"')
    if "id" in message and key(message["id"]) is None and not ("error" in message and message["id"] is None):
        raise RefusedError(INVALID_REQUEST, "an id is a whole number or a string")
    kinds = ("method" in message) + ("result" in message) + ("error" in message)
    if kinds != 1 or ("method" not in message and "id" not in message):
        raise RefusedError(INVALID_REQUEST, "a message is a request, a notification or a response")


def _check_method(message: JsonMessage) -> None:
    method, params = message["method"], message.get("params")
    if not isinstance(method, str):
        raise RefusedError(INVALID_REQUEST, "a method is a string")
    if not isinstance(params, dict | None):
        raise RefusedError(INVALID_REQUEST, "the params of a method are an object")
    if method != CALL and _folded(method) == _folded(CALL):
        raise RefusedError(METHOD_NOT_FOUND, f"there is no method {method[:60]!r}; did you mean {CALL}?")
    if method == CALL:
        if not isinstance(params, dict) or not isinstance(params.get("name"), str):
            raise RefusedError(INVALID_REQUEST, f"{CALL} has params with the name of a tool")
        _check_names(params, CALL_PARAMS, f"{CALL}'s params")
        if not isinstance(params.get("arguments"), dict | None):
            raise RefusedError(INVALID_REQUEST, "the arguments of a tool are an object")


def _check_names(fields: JsonMessage, known: tuple[str, ...], what: str) -> None:
    """Refuses a name that a careless reader would take for a known one."""
    folded = {_folded(name): name for name in known}
    for name in fields:
        if name not in known and _folded(name) in folded:
            raise RefusedError(INVALID_REQUEST, f"{what} has no {name[:60]!r}; did you mean {folded[_folded(name)]!r}?")


def _folded(name: str) -> str:
    """Letters and digits alone, in one case: `Tools / Call` is `toolscall`."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in plain if character.isalnum())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:60]!r} occurs twice")
    return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number
