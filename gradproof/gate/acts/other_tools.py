"""Any other tool: by the verb in its name, and by the names of its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.arguments import (
    ACTION_ARGUMENTS,
    FILE_URL,
    PATH_ARGUMENTS,
    SHELL_ARGUMENTS,
    TO_ARGUMENTS,
    URL_ARGUMENTS,
    amount_of,
    carries_key,
    leaves,
    path_word,
    values_of,
)
from gradproof.gate.acts.command import READERS, Command, replace_words
from gradproof.gate.acts.file_tools import is_hosted
from gradproof.gate.acts.knowledge import knowledge
from gradproof.gate.acts.paths import is_loopback
from gradproof.gate.acts.targets import of_url
from gradproof.gate.acts.tool_names import (
    CARRIES,
    FORMS,
    HOLDS_SECRETS,
    LOCAL_SERVERS,
    MAIL,
    MONEY,
    MOVES,
    NAME_PARTS,
    RUNS_PYTHON,
    SAVES,
    SEVERITY,
    base_name,
    named_effect,
    server_name,
)
from gradproof.gate.acts.word import Word

STAGES = frozenset(("$where", "$function", "$accumulator", "$out", "$merge"))  # of MongoDB's queries
CHANGES_GRAPH = re.compile(r"(?i)\b(?:delete|remove|drop|set|merge|create|call|load)\b")
PATH_EFFECTS = ("read", "write", "delete", "execute", "change_rights")


def other_tool(command: Command, tool: str, arguments: Mapping[str, Any]) -> None:
    """By the verb in its name; what it touches by the names of its arguments."""
    name, server = base_name(tool), server_name(tool)
    words = [part.lower() for part in NAME_PARTS.findall(re.split(r"__|\.|/|:", tool)[-1])]
    effect, verb = named_effect(words)
    whole = f"{server}_{name}"
    if MONEY.search(whole) and effect not in ("read", "delete"):
        effect = "spend"
    if effect in ("write", "execute", "publish") and MAIL.search(name) and effect != "publish":
        effect = (
            "send"
            if re.search(r"(?i)send|post|reply|forward|notify|invite|create_message|mail|sms|tweet", name)
            else effect
        )
    if effect == "write" and re.search(r"(?i)merge|release|deploy", name):
        effect = "publish"
    if effect == "write" and CARRIES.search(name):
        effect = "send"
    effect, verb = _as_told(arguments, effect, verb)
    if FORMS.search(name) and any(URL_ARGUMENTS.match(key) for key in arguments):
        effect = "send"
    moves = bool(MOVES.search(name)) and effect == "write"
    command.program, command.verb = tool, verb
    amount = amount_of(arguments)
    if effect == "spend":
        to = " ".join(values_of(arguments, TO_ARGUMENTS))
        command.act("spend", "remote", ActTarget("recipient", to.lower(), amount=amount))
        return
    acted, hosted = False, is_hosted(server, arguments)
    if effect == "read" and HOLDS_SECRETS.search(f"{server}_{name}".replace("1password", "vault")):
        command.act("read", "secret", ActTarget("resource", tool))
        acted = True
    said = {part for key, _ in leaves("", arguments) for part in key.split(".")}
    if not STAGES.isdisjoint(said):  # a search that runs code, or writes what it finds
        command.unknown("a query that may do anything")
    if "cypher" in name and CHANGES_GRAPH.search(" ".join(str(value) for _, value in leaves("", arguments))):
        effect = "delete"
    for key, value in leaves("", arguments):
        leaf = key.rsplit(".", 1)[-1]
        if not isinstance(value, str) or not value:
            continue
        if effect == "execute" and leaf == "code":
            _code(command, tool, arguments, value)
        if (
            effect == "read"
            and leaf in ("resource", "kind", "resource_type", "resourceType")
            and HOLDS_SECRETS.search(value)
        ):
            command.act("read", "secret", ActTarget("resource", value))
        if leaf in SHELL_ARGUMENTS:
            command.reading.shell(value, command.state)
            acted = True
        elif URL_ARGUMENTS.match(leaf) and FILE_URL.match(value):
            command.touch(effect if effect in PATH_EFFECTS else "read", path_word(value))
            acted = True
        elif URL_ARGUMENTS.match(leaf) and ("://" in value or "." in value):
            target, scope = of_url(value)
            command.act(effect, scope, target)
            acted = True
        elif PATH_ARGUMENTS.match(leaf) and _is_path(leaf, value, server):
            here_effect: Effect = effect if effect in PATH_EFFECTS else "read"
            if effect == "read" and SAVES.search(name):
                here_effect = "write"
            if moves and leaf.lower() in ("source", "src", "old_path", "from", "path"):
                here_effect = "delete"
            command.touch(here_effect, path_word(value), folder=moves)
            acted = acted or (effect not in ("send", "publish") and not (hosted and effect != "read"))
    recipients = values_of(arguments, TO_ARGUMENTS)
    if effect == "send":
        hidden = carries_key(arguments) or any(act.scope == "secret" for act in command.reading.acts)
        marks = ["payload:secret"] if hidden else []
        for to in recipients or ([""] if not acted else []):
            command.act("send", "remote", ActTarget("recipient", to.lower()), marks=marks)
        return
    if not acted:
        local = server in LOCAL_SERVERS or is_loopback(str(arguments.get("host", "")))
        scope: ActScope = "local" if local or (effect == "read" and not server) else "remote"
        if scope == "remote" and effect in ("write", "publish", "execute") and carries_key(arguments):
            command.act("send", "remote", ActTarget("resource", tool), marks=["payload:secret"])
        if effect == "execute" and verb == "":
            scope = "unknown" if not server else "remote"
        named = [
            str(arguments[key])
            for key in sorted(arguments)
            if isinstance(arguments[key], str | int)
            and re.search(r"(?i)id$|name$|owner|repo|number|key|project|namespace|title|branch", key)
        ]
        command.act(effect, scope, ActTarget("resource", "/".join(named)[:200], amount=amount))


def _as_told(arguments: Mapping[str, Any], effect: Effect, verb: str) -> tuple[Effect, str]:
    """`{"action": "delete"}` says more than the name of a tool does, where it is worse."""
    verbs = knowledge().verbs
    for key, value in leaves("", arguments):
        if key.rpartition(".")[2].lower() in ACTION_ARGUMENTS and isinstance(value, str) and len(value) < 40:
            for part in NAME_PARTS.findall(value):
                told = verbs.get(part.lower())
                if told in SEVERITY and SEVERITY.index(told) < (SEVERITY.index(effect) if effect in SEVERITY else 99):
                    effect, verb = told, part.lower()
    return effect, verb


def _code(command: Command, tool: str, arguments: Mapping[str, Any], text: str) -> None:
    """Code that a tool runs: Python, unless something else is said."""
    language = str(arguments.get("language") or ("python" if RUNS_PYTHON.search(tool) else "")).lower()
    if language.startswith(("py", "ipy")):
        READERS["code"](replace_words(command, [Word((text,))], command.state, "code.py"))
    else:
        command.unknown("code in a language that is not known")


def _is_path(key: str, value: str, server: str) -> bool:
    if (
        key.lower().startswith("attachment")
        or server == "filesystem"
        or key.lower()
        in (
            "path",
            "file_path",
            "filepath",
            "filename",
            "directory",
            "notebook_path",
            "target_file",
        )
    ):
        return "://" not in value
    return value.startswith(("/", "~", "./", "../"))
