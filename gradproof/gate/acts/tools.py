"""Tool calls: the acts of a whole call, by the kind of its tool.

Shell commands are read as shell, whatever the tool is called; file tools by their path, SQL and HTTP by what they are
given, any other tool by the verb in its name and by the names of its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from gradproof.gate.acts.act import Act, ActTarget
from gradproof.gate.acts.arguments import (
    AMOUNT_ARGUMENTS,
    FREE_TEXT,
    PATH_ARGUMENTS,
    SHELL_ARGUMENTS,
    SQL_ARGUMENTS,
    TO_ARGUMENTS,
    URL_ARGUMENTS,
    leaves,
    path_word,
)
from gradproof.gate.acts.command import Command
from gradproof.gate.acts.file_tools import file_tool
from gradproof.gate.acts.http_tools import http_tool, is_http
from gradproof.gate.acts.other_tools import other_tool
from gradproof.gate.acts.paths import Surroundings
from gradproof.gate.acts.programs import load
from gradproof.gate.acts.shell import MOST_WORK, Reading
from gradproof.gate.acts.shell_tools import is_shell, shell_tool
from gradproof.gate.acts.sql_tools import is_sql, sql_tool
from gradproof.gate.acts.targets import resolved
from gradproof.gate.acts.tool_names import (
    AGENTS_OWN,
    BROWSERS,
    FILE_TOOLS,
    INTERNAL,
    LOCAL_SERVERS,
    NAMELESS,
    PUBLISHING,
    STOPS,
    WEB_TOOLS,
    base_name,
    server_name,
)
from gradproof.gate.acts.unread import unread
from gradproof.gate.acts.word import UnreadableError

MOST_ARGUMENTS, MOST_FAR = 256, 64  # that are read, and beyond those that are read if they lead out of the project
ARGUMENTS_PER_WORK = 40
DROPPED = object()
WORK_OF_PAST = 6  # share of the work of a call, one in so many, that reading an earlier one is worth


def read_call(
    tool: str,
    arguments: Mapping[str, Any],
    around: Surroundings,
    annotations: Mapping[str, Any] | None = None,
    history: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> list[Act]:
    """The acts of a call, each once; at least one. `history` are the tools and arguments of the calls before it."""
    load()
    reading = Reading(around)
    read_secret = _remember(reading, history)
    count = sum(1 for _ in leaves("", arguments))
    if count > MOST_ARGUMENTS:
        reading.unknown(tool, f"more than {MOST_ARGUMENTS} arguments")
        reading.left -= min(count / ARGUMENTS_PER_WORK, reading.left / 2)  # going through them has cost something
        arguments = _fewer(reading, arguments)
    try:
        _read(reading, tool, arguments)
    except (RecursionError, UnreadableError) as error:
        reading.unknown(tool, "nested too deeply" if isinstance(error, RecursionError) else "more than is read")
        reading.acts += unread(_rest(reading, arguments), reading.state())
    sends = any(act.effect in ("send", "spend") for act in reading.acts)
    said = _said(tool, arguments, sends)
    acts = list(dict.fromkeys(act if act.details is not None else act.but(details=said) for act in reading.acts))
    acts = _carrying(acts, reading.connected)
    if read_secret:
        acts = [act.but(marks=act.marks | {"payload:secret"}) if _leaves(act) else act for act in acts]
    if not acts:
        acts = [Act("read", tool if not is_shell(tool, arguments) else "sh", "local")]
    if annotations and annotations.get("destructiveHint") is True:
        acts = [_tightened(act) for act in acts]
    return acts


def _said(tool: str, arguments: Mapping[str, Any], sends: bool) -> frozenset[str]:
    """The arguments that are neither a target nor free text."""
    if is_shell(tool, arguments):
        return frozenset()
    explained = [PATH_ARGUMENTS, URL_ARGUMENTS, AMOUNT_ARGUMENTS, SQL_ARGUMENTS, FREE_TEXT]
    explained += [TO_ARGUMENTS] if sends else []
    return frozenset(
        f"{key}={str(value).upper() if key == 'method' else value}"
        for key, value in islice(leaves("", arguments), MOST_ARGUMENTS)
        if (_asks(key, value) or not any(pattern.match(key.rsplit(".", 1)[-1]) for pattern in explained))
        and not re.match(r"(?i)(?:body|data|json|payload|message|content)\.", key)
    )


def _asks(key: str, value: Any) -> bool:
    """A URL with a query, which says what else is meant."""
    return "?" in str(value) and URL_ARGUMENTS.match(key.rsplit(".", 1)[-1]) is not None


def _fewer(reading: Reading, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The first arguments, any command, and some of those that lead out of the project; of the others, what would be
    blocked is taken to be there."""
    left, far, dropped = MOST_ARGUMENTS, MOST_FAR, []

    def keeps(key: str, value: Any) -> bool:
        nonlocal left, far
        leads_out = isinstance(value, str) and (value.startswith(("/", "~")) or ".." in value)
        keep = left > 0 or key in SHELL_ARGUMENTS or (leads_out and far > 0)
        left, far = left - 1, far - (left <= 0 and leads_out)
        if not keep and isinstance(value, str):
            dropped.append(value)
        return keep

    def fewer(key: str, value: Any) -> Any:
        if isinstance(value, str):
            return value if keeps(key, value) else DROPPED
        if isinstance(value, Mapping):
            inner = {name: fewer(name, part) for name, part in value.items()}
            return {name: part for name, part in inner.items() if part is not DROPPED}
        if isinstance(value, list | tuple):
            return [part for part in (fewer(key, part) for part in value) if part is not DROPPED]
        return value if keeps(key, value) else DROPPED

    kept = fewer("", arguments)
    reading.acts += unread("\n".join(dropped), reading.state())
    return kept


def _rest(reading: Reading, arguments: Mapping[str, Any]) -> str:
    """What was not read of a call: the rest of its one command, and its other arguments. Where it has not got as far,
    whatever the call says, and what it or the calls before it wrote."""
    rest = reading.rest()
    command = next((arguments[key] for key in SHELL_ARGUMENTS if key in arguments), None) if rest else None
    said = (value for _, value in leaves("", arguments) if isinstance(value, str) and value is not command)
    return "\n".join((rest, *said, *(() if rest else reading.written.values())))


def _carrying(acts: Sequence[Act], connected: bool) -> list[Act]:
    """What is sent after a secret was read may be that secret; where a connection stays open, before it as well."""
    first = next((i for i, act in enumerate(acts) if act.effect == "read" and act.scope == "secret"), None)
    if first is None:
        return list(acts)
    before = [] if connected else list(acts[:first])
    return [*before, *(_with_secret(act) if _sends(act) else act for act in acts[len(before) :])]


def _sends(act: Act) -> bool:
    """A request that writes to a host sends as well; what a command writes that runs there does not."""
    writes = act.effect == "write" and act.target.kind == "host" and "elsewhere" not in act.via
    return act.scope not in ("local", "project", "temp") and (act.effect == "send" or writes)


def _with_secret(act: Act) -> Act:
    return act.but(effect="send", marks=act.marks | {"payload:secret"})


def _leaves(act: Act) -> bool:
    return act.effect in ("send", "publish") and act.scope not in ("local", "project", "temp")


def _remember(reading: Reading, history: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """What earlier calls wrote, so that running it reads it; whether one of them read a secret."""
    secret = False
    for tool, arguments in history:
        name = base_name(tool)
        inner = Reading(reading.around)
        inner.written, inner.fetched, inner.seconds = reading.written, reading.fetched, reading.seconds
        inner.left, inner.past = MOST_WORK / WORK_OF_PAST, True
        with suppress(RecursionError, UnreadableError):  # what was read of it until then counts
            _read(inner, tool, arguments)
        reading.seconds = inner.seconds
        reading.pay_for_errors(inner.errors)
        secret = secret or any(act.effect == "read" and act.scope == "secret" for act in inner.acts)
        content = next(
            (
                arguments[k]
                for k in ("content", "new_string", "file_text", "text", "contents")
                if isinstance(arguments.get(k), str)
            ),
            None,
        )
        if FILE_TOOLS.get(name) == "write" and content is not None:
            for key, value in arguments.items():
                if PATH_ARGUMENTS.match(key) and isinstance(value, str):
                    for path in resolved(inner, path_word(value), inner.state()):
                        known = reading.written.get(path, "")
                        whole = name in ("write", "write_file", "create_file")
                        reading.written[path] = content if whole else f"{known}\n{content}"
    return secret


def _tightened(act: Act) -> Act:
    """A server that calls its tool destructive is believed; one that calls it harmless is not."""
    return (
        act.but(effect="delete", scope="unknown" if act.scope in ("local", "project") else act.scope)
        if act.effect in ("read", "write", "execute")
        else act
    )


def _read(reading: Reading, tool: str, arguments: Mapping[str, Any]) -> None:
    name = base_name(tool)
    state = reading.state()
    command = Command(reading, tool, [], state)
    if is_shell(tool, arguments):
        if BROWSERS.search(tool):  # a script for a page, which is no shell
            command.act("execute", "remote")
        return shell_tool(reading, tool, arguments, state)
    own = server_name(tool) in ("", *LOCAL_SERVERS)  # any other server may call its tool what it likes
    if (name in INTERNAL and own) or tool.lower() in AGENTS_OWN:
        command.act("read", "local")
        return None
    if tool.lower() in PUBLISHING:
        command.act("publish", "remote", ActTarget("resource", tool))
    if name in STOPS and own:
        command.act(
            "stop", "local", ActTarget("process", str(arguments.get("shell_id") or arguments.get("task_id") or ""))
        )
        return None
    if name in FILE_TOOLS and (name in NAMELESS or any(PATH_ARGUMENTS.match(key) for key in arguments)):
        if name == "insert" and not arguments.get("path"):
            return other_tool(command, tool, arguments)
        return file_tool(command, name, arguments)
    if is_sql(tool, arguments):
        return sql_tool(command, tool, arguments)
    if name in WEB_TOOLS or is_http(name, arguments):
        return http_tool(command, name, arguments)
    return other_tool(command, tool, arguments)
