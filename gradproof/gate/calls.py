"""A tool call: read from JSON in its various forms, and written as one text.

Read are `{"tool", "arguments"}`, `{"name", "arguments"}`, MCP's `tools/call` request, a hook's `{"tool_name",
"tool_input"}` and `{"command"}`, which is a Bash call. What is wrong with a call is one sentence. The text:

    Bash                        the tool
    command: rm -rf build       each argument, nested ones with dots in their names; long ones keep head and tail
    @ /home/me/project          the working directory
    < Read file_path: a.txt     the last few calls, newest first

Secrets are placeholders in that text. A line break inside a value is written ↵, so no value can imitate a line.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.gate.secrets import Redactor

MOST_BYTES = 2 * 2**20  # of a whole call
MOST_DEPTH = 32  # of its arguments
MOST_PATH = 4096  # characters of its folder
MOST_VALUES = 20_000  # names, texts, numbers, lists and objects in it
MOST_NAME = 256  # characters of a tool's or an argument's name
HEAD, TAIL = 400, 160  # characters of an argument that are kept
PAST_HEAD, PAST_TAIL = 80, 40  # of an argument of an earlier call
PAST = 3  # earlier calls
MOST_ARGUMENTS = 32  # that are written
MOST_WORDS = 1000  # of a list, at each end: with the blanks between them more characters than are kept
MARGIN = 512  # characters redacted beyond a cut, so that no half of a secret is left at it


KEYS = ("tool", "arguments", "cwd", "history", "session", "actor", "schema", "annotations")
NAMED_KEYS = ("name", *KEYS[1:])
COMMAND_KEYS = ("command", *KEYS[2:])
MCP_KEYS = ("jsonrpc", "id", "method", "params", *KEYS[2:])
PARAMS_KEYS = ("name", "arguments", "_meta")
HOOK_KEYS = (
    *("tool_name", "tool_input", "session_id", "transcript_path", "permission_mode", "hook_event_name", "tool_use_id"),
    *("timestamp", "mcp_context", "original_request_name", "tool_response", "duration_ms", "error", "is_interrupt"),
    *("prompt_id", "effort", "agent_id", "agent_type", *KEYS[2:]),
)


@dataclass(frozen=True)
class Call:
    """What an agent wants to do: `arguments` is plain data, `history` the calls before it, oldest first; `annotations`
    are what an MCP server says of its tool."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cwd: str = ""
    history: tuple[Call, ...] = ()
    session: str = ""
    actor: str = ""
    annotations: Mapping[str, Any] = field(default_factory=dict)


class LabelledCall(NamedTuple):
    """A call that somebody judged."""

    call: Call
    label: str
    group: str


def parse(call: str | bytes | Mapping[str, Any]) -> Call:
    """A call from JSON or plain data; ValueError with one sentence for anything else. `{"command": …}` without a tool
    is a Bash command."""
    if not isinstance(call, str | bytes | Mapping):
        raise ValueError(f"a call must be JSON or a dict with tool and arguments, not {type(call).__name__}")
    fields = call if isinstance(call, Mapping) else decoded(call)
    _check(fields)
    return _call(fields, past=True)


def labelled(line: bytes) -> LabelledCall:
    """A call with its `label`, allow or block, and its `group`, if it has one; ValueError as for `parse`."""
    fields = dict(decoded(line))
    label, group = fields.pop("label", None), fields.pop("group", "")
    if label not in ("allow", "block"):
        said = repr(label[:MOST_NAME]) if isinstance(label, str) else _kind(label)
        raise ValueError(f"the label must be allow or block, not {said}")
    return LabelledCall(parse(fields), label, str(group))


def read_labelled(path: Path) -> Iterator[LabelledCall]:
    """JSON lines, each as `labelled` reads it; empty ones do not count. ValueError with the line's number."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield labelled(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None


def text(call: Call, key: bytes | Redactor = b"") -> str:
    """The one text that is learned, compared and stored; secrets in it are placeholders under this key."""
    redactor = Redactor.of(key)
    lines = [_name(call.tool, redactor), *_arguments(call, HEAD, TAIL, redactor)]
    if call.cwd:
        lines.append(f"@ {_kept(call.cwd, PAST_HEAD, PAST_TAIL, '', redactor)}")
    for past in reversed(call.history[-PAST:]):
        lines.append(f"< {_name(past.tool, redactor)} {' '.join(_arguments(past, PAST_HEAD, PAST_TAIL, redactor))}")
    return "\n".join(lines)


def decoded(call: str | bytes) -> Mapping[str, Any]:
    """JSON, with the sizes and the encoding checked before it is read."""
    size = len(call) if isinstance(call, bytes) else len(call.encode("utf-8", "surrogatepass"))
    if size > MOST_BYTES:
        raise ValueError(f"the call has {size:,} bytes; at most {MOST_BYTES:,} are read")
    try:
        whole = call.decode("utf-8") if isinstance(call, bytes) else call
    except UnicodeDecodeError as error:
        raise ValueError(f"the call is not valid UTF-8: byte {error.start} cannot be read") from None
    _check_count(whole)
    try:
        decoded = json.loads(whole, object_pairs_hook=_once, parse_int=_integer, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"the call is nested too deeply; at most {MOST_DEPTH} levels are read") from None
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        raise ValueError(f"the call is not valid JSON: {said} at character {error.pos + 1}") from None
    if not isinstance(decoded, dict):
        raise ValueError(f"a call must be a JSON object with tool and arguments, not {_kind(decoded)}")
    return decoded


def _check_count(whole: str) -> None:
    """Refuses JSON of very many values before it is read; a long text is one value, whatever is in it."""
    if len(whole) < 2 * MOST_VALUES:
        return
    unescaped = whole.replace("\\\\", "").replace('\\"', "") if "\\" in whole else whole
    quotes = unescaped.count('"')
    between = "".join(unescaped.split('"')[::2]) if quotes <= 2 * MOST_VALUES else ""
    if not between or sum(map(between.count, "[{,:")) > MOST_VALUES:
        raise ValueError(f"the call has more than {MOST_VALUES:,} values, which is too many")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers of a repeated key may see two different calls, so there is none."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the call has the key {twice[:MOST_NAME]!r} twice")
    return fields


def _integer(digits: str) -> int:
    if len(digits) > MOST_NAME:
        raise ValueError(f"the call holds a number of {len(digits):,} digits; at most {MOST_NAME} are read")
    return int(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"the call holds {name}, which is not a JSON value")


def _check(call: Mapping[str, Any]) -> None:
    """Depth, total length and the characters of all strings, level by level."""
    size, count, level = 0, 0, [call]
    for depth in itertools.count():
        count += len(level)
        if count > 2 * MOST_VALUES:  # names count as well
            raise ValueError(f"the call has more than {MOST_VALUES:,} values, which is too many")
        if depth > MOST_DEPTH:
            raise ValueError(f"the call is nested too deeply; at most {MOST_DEPTH} levels are read")
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):  # first: there are thousands of them, and of the others few
                size += _checked_length(value)
            elif isinstance(value, Mapping):
                if not all(isinstance(name, str) for name in value):
                    raise ValueError("the names in a call must be strings")
                below += value
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
            elif value is not None and not isinstance(value, bool | int | float):
                raise ValueError(f"a call holds plain data (text, numbers, lists, objects), not {type(value).__name__}")
        if size > MOST_BYTES:
            raise ValueError(f"the call has more than {MOST_BYTES:,} bytes of text, which is too many")
        if not below:
            return
        level = below


def _checked_length(value: str) -> int:
    if "\x00" in value:
        raise ValueError("the call contains a null byte, which is not allowed in an argument")
    try:
        return len(value) if value.isascii() else len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueError("the call contains half a surrogate pair, which is not valid UTF-8") from None


def _plain(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """One of the shapes as `{"tool", "arguments", …}`; ValueError names a key that none of them has."""
    if fields.get("method") == "tools/call" or "jsonrpc" in fields:
        _check_keys(fields, MCP_KEYS)
        params = fields.get("params")
        if fields.get("method") != "tools/call" or not isinstance(params, Mapping):
            raise ValueError("of MCP's requests, only tools/call with params is a call")
        _check_keys(params, PARAMS_KEYS)
        return {**fields, "tool": params.get("name"), "arguments": params.get("arguments", {})}
    if "tool_name" in fields:
        _check_keys(fields, HOOK_KEYS)
        own = {"tool": fields["tool_name"], "arguments": fields.get("tool_input", {})}
        return {"session": fields.get("session_id"), **fields, **own}
    if "name" in fields and "tool" not in fields:
        _check_keys(fields, NAMED_KEYS)
        return {**fields, "tool": fields["name"]}
    if "command" in fields and "tool" not in fields:
        _check_keys(fields, COMMAND_KEYS)
        command = fields["command"]
        if not isinstance(command, str) and not (
            isinstance(command, list) and all(isinstance(w, str) for w in command)
        ):
            raise ValueError(f"the call's command must be a string or a list of words, not {_kind(command)}")
        return {**fields, "tool": "Bash", "arguments": {"command": command}}
    _check_keys(fields, KEYS)
    return fields


def _check_keys(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in fields:
        if key not in known:
            others = [name for name in (*known, *(() if "tool" in fields else ("command",))) if name not in fields]
            near = get_close_matches(key, others, 2, 0.5)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; the keys are {', '.join(known)}"
            raise ValueError(f"a call has no key {key[:MOST_NAME]!r}{hint}")


def _call(fields: Mapping[str, Any], past: bool) -> Call:
    fields = _plain(fields)
    tool, arguments = fields.get("tool"), fields.get("arguments", {})
    cwd, history = fields.get("cwd") or "", fields.get("history") or ()
    annotations = fields.get("annotations") or {}
    if tool is None:
        raise ValueError("a call must have a tool, or a command")
    if not isinstance(tool, str) or not tool or len(tool) > MOST_NAME:
        raise ValueError(f"the call's tool must be a name of 1 to {MOST_NAME} characters, not {_kind(tool)}")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the call's arguments must be an object of names and values, not {_kind(arguments)}")
    if not isinstance(cwd, str):
        raise ValueError(f"the call's cwd must be text, not {_kind(cwd)}")
    if len(cwd) > MOST_PATH:
        raise ValueError(f"the call's cwd has {len(cwd):,} characters; the limit is {MOST_PATH:,}")
    if not isinstance(history, list | tuple):
        raise ValueError(f"the call's history must be a list of calls, not {_kind(history)}")
    if not isinstance(annotations, Mapping):
        raise ValueError(f"the call's annotations must be an object, not {_kind(annotations)}")
    session, actor = (_word(fields, key) for key in ("session", "actor"))
    earlier = tuple(_past(before) for before in history[-PAST:]) if past else ()
    return Call(tool, dict(arguments), cwd, earlier, session, actor, dict(annotations))


def _word(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key) or ""
    if not isinstance(value, str) or len(value) > MOST_NAME:
        raise ValueError(f"the call's {key} must be text of at most {MOST_NAME} characters")
    return value


def _past(earlier: Any) -> Call:
    """An earlier call: an object, or a Bash command as text."""
    if isinstance(earlier, str):
        return Call("Bash", {"command": earlier})
    if isinstance(earlier, Mapping):
        return _call(earlier, past=False)
    raise ValueError(f"the call's history holds calls or commands, not {_kind(earlier)}")


def _arguments(call: Call, head: int, tail: int, redactor: Redactor) -> list[str]:
    written = []
    for name, value in leaves("", call.arguments, joined=True):
        if len(written) == MOST_ARGUMENTS:
            written.append("…")
            break
        written.append(f"{_name(name, redactor)}: {_kept(value, head, tail, name, redactor)}")
    return written


def leaves(name: str, value: Any, joined: bool = False) -> Iterator[tuple[str, str]]:
    """The scalars of nested data, each with its dotted name; lists of words as one command line where `joined`, since
    only beside its option a word is known to be a secret."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for inner, part in value.items():
            yield from leaves((f"{name}.{inner}" if name else inner)[-MOST_NAME - MARGIN :], part, joined)
    elif joined and isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value):
        yield name, shlex.join(value if len(value) <= 2 * MOST_WORDS else [*value[:MOST_WORDS], *value[-MOST_WORDS:]])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(name, part, joined)
    else:
        yield name, json.dumps(value)


def _name(name: str, redactor: Redactor) -> str:
    """Without white space, so that a name cannot end a line; a secret is not a name."""
    return redactor.text("_".join(name[: MOST_NAME + MARGIN].split()))[:MOST_NAME]


def _kept(value: str, head: int, tail: int, name: str, redactor: Redactor) -> str:
    """Head and tail of a value, redacted before they are cut. The name tells what is a secret, as in password=…"""
    if len(value) > head + tail + 2 * MARGIN:
        before, after = (redactor.value(name, part) for part in (value[: head + MARGIN], value[-tail - MARGIN :]))
        kept = f"{before[:head]}…{after[-tail:]}"
    else:
        kept = redactor.value(name, value)
        kept = kept if len(kept) <= head + tail else f"{kept[:head]}…{kept[-tail:]}"
    return "↵".join(kept.splitlines())


def _kind(value: Any) -> str:
    """What a value is, in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
