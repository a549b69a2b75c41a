"""Tool calls in their various forms, and the acts of each kind of tool.

Shell commands are read as shell, whatever the tool is called; file tools by their path, SQL and HTTP by what they are
given, any other tool by the verb in its name and by the names of its arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

from gradproof.gate.acts import programs
from gradproof.gate.acts.act import Act, ActScope, ActTarget, Effect
from gradproof.gate.acts.databases import in_database, statements
from gradproof.gate.acts.knowledge import knowledge
from gradproof.gate.acts.paths import TILDE, Surroundings, is_loopback, may_be_secret
from gradproof.gate.acts.programs import Command, run
from gradproof.gate.acts.requests import METHODS, request
from gradproof.gate.acts.shell import MOST_WORK, Reading
from gradproof.gate.acts.shell_state import NO_INPUT, Output, State
from gradproof.gate.acts.targets import of_url, resolved
from gradproof.gate.acts.unread import unread
from gradproof.gate.acts.variables import assigned
from gradproof.gate.acts.word import UnreadableError, Word

SHELL_NAMES = {"bash", "shell", "sh", "cmd", "terminal", "console", "exec_command", "run_command", "execute_command"}
SHELL_NAMES |= {
    "run_shell_command",
    "run_terminal_cmd",
    "run_in_terminal",
    "execute_bash",
    "local_shell",
    "command",
    "zsh",
}
PROGRAM_ARGUMENTS = ("program", "executable", "exe", "binary")
WORD_ARGUMENTS = ("args", "arguments", "argv", "params", "parameters")
INPUT_ARGUMENTS = ("stdin", "input", "standard_input")
ENVIRONMENT_ARGUMENTS = ("env", "environment", "environ", "env_vars", "environment_variables", "envs")
SHELL_ARGUMENTS = ("command", "cmd", "script", "commands", "shell_command", "bash_command", "commandline", "cmdline")
PATH_ARGUMENTS = re.compile(
    r"(?i)^(?:file|path|file_?path|dir|directory|folder|filename|notebook_path|root|target_file|absolute_path|relative_workspace_path|paths|files|.*_path|.*_dir|.*_file|attachments?|source|destination|src|dst|old_path|new_path|target|dest|output|save_as)$"
)
URL_ARGUMENTS = re.compile(r"(?i)^(?:url|uri|endpoint|link|href|webhook|webhook_url|base_url|.*_url)$")
TO_ARGUMENTS = re.compile(
    r"(?i)^(?:to|recipient|recipients|cc|bcc|email|emails|channel|channel_id|user|users|user_id|phone|address|attendees|assignee|beneficiary|destination_account|account|account_id|iban|to_account|payee|chat_id|room)$"
)
AMOUNT_ARGUMENTS = re.compile(
    r"(?i)^(?:amount|amount_cents|total|price|value|sum|quantity|amount_usd|cents|payment_amount)$"
)
SQL_ARGUMENTS = re.compile(r"(?i)^(?:sql|query|queries|statement|statements|sql_query|sqlquery)$")
SHORT_SQL_ARGUMENTS = re.compile(r"(?i)^(?:q|command|text|input|expression)$")
SQL_TOOLS = re.compile(
    r"(?i)sql|postgres|mysql|sqlite|database|(?:^|_)db(?:_|$)|bigquery|snowflake|redshift|clickhouse|duckdb|supabase"
)
FILE_TOOLS: dict[str, Effect] = {
    **dict.fromkeys(
        ("read", "view", "cat", "open_file", "notebookread", "read_file", "read_text_file", "ls", "list_directory"),
        "read",
    ),
    "read_many_files": "read",
    **dict.fromkeys(
        ("grep", "glob", "search_files", "codebase_search", "list_dir", "directory_tree", "file_search", "grep_search"),
        "read",
    ),
    **dict.fromkeys(
        (
            "write",
            "edit",
            "multiedit",
            "notebookedit",
            "create_file",
            "write_file",
            "edit_file",
            "str_replace",
            "insert",
        ),
        "write",
    ),
    **dict.fromkeys(
        ("apply_patch", "create_directory", "str_replace_editor", "str_replace_based_edit_tool", "search_replace"),
        "write",
    ),
    **dict.fromkeys(("delete_file", "remove_file", "delete", "delete_directory"), "delete"),
}
NAMELESS = ("grep", "glob", "ls", "apply_patch", "read_many_files")  # whose paths stand elsewhere
WEB_TOOLS: dict[str, Effect] = {
    **dict.fromkeys(
        ("webfetch", "web_fetch", "fetch", "websearch", "web_search", "google_web_search", "navigate", "browse"), "read"
    ),
    **dict.fromkeys(("browser_navigate", "open_url", "goto", "puppeteer_navigate", "http_get"), "read"),
}
INTERNAL = {
    "todowrite",
    "todoread",
    "todo_write",
    "task",
    "exitplanmode",
    "exit_plan_mode",
    "think",
    "sequentialthinking",
    "askuserquestion",
}
INTERNAL |= {
    "bashoutput",
    "enterplanmode",
    "skill",
    "listmcpresources",
    "readmcpresource",
    "slashcommand",
    "save_memory",
}
STOPS = {"killshell", "killbash", "kill_shell", "taskstop"}
# What agents' own tools do inside the agent. Only under these very names: a server's tool may be called the same.
AGENTS_OWN = {"agent", "taskcreate", "taskget", "taskupdate", "tasklist", "taskoutput", "toolsearch", "reportfindings"}
AGENTS_OWN |= {"write_todos", "ask_user", "activate_skill", "update_topic", "invoke_agent", "complete_task"}
AGENTS_OWN |= {"tracker_create_task", "tracker_update_task", "tracker_add_dependency", "enter_plan_mode"}
PUBLISHING = {"artifact", "projects"}  # of agents, to a service
FOLDER_ARGUMENTS = ("cwd", "workdir", "working_directory", "directory", "dir_path", "working_dir", "workingdirectory")
LOCAL_SERVERS = (
    "filesystem",
    "memory",
    "time",
    "sequential-thinking",
    "sequentialthinking",
    "git",
    "ide",
    "everything",
)
MONEY = re.compile(
    r"(?i)(?:^|_|\b)(?:pay|payment|payments|payout|payouts|charge|charges|transfer|purchase|buy|order|checkout|refund|wire|withdraw|donate|invoice_pay|stripe|paypal|bank|trade|subscribe|remit)(?:_|\b|$)"
)
FILE_URL = re.compile(r"(?i)^file:(?://(?:localhost)?)?(?=/)")
HOSTED = re.compile(r"github|gitlab|bitbucket|gist|drive|dropbox|onedrive|sharepoint|notion|s3|cloud|ftp|ssh|remote")
PLACES_THERE = frozenset(("repo", "owner", "repository", "bucket"))
METHOD_ARGUMENTS = ("method", "verb", "httpmethod", "requestmethod")
BODY_ARGUMENTS = frozenset(("body", "data", "json", "payload", "form", "content"))
ACTION_ARGUMENTS = ("action", "operation", "op", "method")
MADE_LATER = re.compile(r"\$[({]|`")
HOLDS_SECRETS = re.compile(
    r"(?i)secret|passw|credential|vault|keychain|bitwarden|lastpass|keepass|api_?key|private_?key"
)
SAVES = re.compile(r"(?i)screenshot|export|save|download|dump|record")
CARRIES = re.compile(r"(?i)upload|attach")
RUNS_PYTHON = re.compile(r"(?i)python|jupyter|ipython|notebook|ide|execute_?code|code_?interpreter|repl")
FORMS = re.compile(r"(?i)fill|submit|click|type|press|upload|select_option|drag|evaluate")
KEYS = r"-----BEGIN [A-Z ]*PRIVATE KEY|\bAKIA[A-Z0-9]{16}\b|\bgh[pousr]_\w{30,}|\bsk_live_\w{16,}|\bxox[abp]-\w{8,}"
FREE_TEXT = re.compile(
    r"(?i)^(?:text|body|content|contents|message|subject|description|summary|comment|prompt|reason|note|new_string|old_string"
    r"|file_text|new_str|old_str|html|markdown|caption|name|title|timeout|limit|offset|explanation)$"
)
JOINED = frozenset(("and", "then", "replace"))
STAGES = frozenset(("$where", "$function", "$accumulator", "$out", "$merge"))  # of MongoDB's queries
CHANGES_GRAPH = re.compile(r"(?i)\b(?:delete|remove|drop|set|merge|create|call|load)\b")
BROWSERS = re.compile(r"(?i)evaluate|puppeteer|playwright|browser|javascript")
PATH_EFFECTS = ("read", "write", "delete", "execute", "change_rights")
MOVES = re.compile(r"(?i)move|rename")
MAIL = re.compile(r"(?i)mail|message|slack|discord|teams|telegram|sms|whatsapp|notify|tweet|invite")
NAME_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
SEVERITY: tuple[Effect, ...] = (
    "spend",
    "delete",
    "change_rights",
    "publish",
    "send",
    "stop",
    "execute",
    "install",
    "write",
    "read",
)
MOST_ARGUMENTS, MOST_FAR = 256, 64  # that are read, and beyond those that are read if they lead out of the project
ARGUMENTS_PER_WORK = 40
MOST_NAME = 1024  # characters of a dotted name, the last ones
DROPPED = object()
PROGRAM = re.compile(r"[\w./+@:,=~-]+")
WORK_OF_PAST = 6  # share of the work of a call, one in so many, that reading an earlier one is worth


def read_call(
    tool: str,
    arguments: Mapping[str, Any],
    around: Surroundings,
    annotations: Mapping[str, Any] | None = None,
    history: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> list[Act]:
    """The acts of a call, each once; at least one. `history` are the tools and arguments of the calls before it."""
    programs.load()
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


def is_shell(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call holds a shell command."""
    name = base_name(tool)
    if name in SHELL_NAMES or _started(arguments):
        return True
    if tool.lower() == "slashcommand":  # of the agent, not of a shell
        return False
    command = next((arguments[key] for key in SHELL_ARGUMENTS if key in arguments), None)
    if command is None:
        return False
    if name in ("str_replace_editor", "str_replace_based_edit_tool"):
        return False
    return isinstance(command, str | list | Mapping) and (name not in FILE_TOOLS or "path" not in arguments)


def _started(arguments: Mapping[str, Any]) -> list[str]:
    """A program and its arguments, given as such: `{"argv": [...]}`, `{"program": "rm", "args": [...]}`."""
    argv = arguments.get("argv")
    if isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv):
        return argv
    program = next((arguments[key] for key in PROGRAM_ARGUMENTS if isinstance(arguments.get(key), str)), None)
    words = _program_words(arguments)
    return [program, *words] if program is not None and words is not None else []


def _program_words(arguments: Mapping[str, Any]) -> list[str] | None:
    """The words that a program is to be run with, in an argument of their own."""
    for key in WORD_ARGUMENTS:
        given = arguments.get(key)
        if isinstance(given, list) and all(isinstance(word, str) for word in given):
            return given
        if isinstance(given, str):
            return given.split()
    return None


def base_name(tool: str) -> str:
    """`mcp__server__tool` is the tool; names are compared in lower case."""
    return re.split(r"__|\.|/|:", tool)[-1].lower().replace("-", "_")


def server_name(tool: str) -> str:
    parts = tool.split("__")
    return parts[1].lower() if len(parts) > 2 and parts[0] == "mcp" else ""


def _read(reading: Reading, tool: str, arguments: Mapping[str, Any]) -> None:
    name = base_name(tool)
    state = reading.state()
    command = Command(reading, tool, [], state)
    if is_shell(tool, arguments):
        if BROWSERS.search(tool):  # a script for a page, which is no shell
            command.act("execute", "remote")
        return _shell(reading, tool, arguments, state)
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
    if name in FILE_TOOLS and (
        any(PATH_ARGUMENTS.match(key) for key in arguments)
        or name in ("grep", "glob", "ls", "apply_patch", "read_many_files")
    ):
        return _file(command, name, arguments)
    if _is_sql(tool, arguments):
        return _sql(command, tool, arguments)
    if name in WEB_TOOLS or _is_http(name, arguments):
        return _http(command, name, arguments)
    return _other(command, tool, arguments)


# shell


def _shell(reading: Reading, tool: str, arguments: Mapping[str, Any], state: State) -> None:
    given = next((arguments[key] for key in SHELL_ARGUMENTS if key in arguments), None)
    if given is None:
        given = _started(arguments) or next(
            (v for v in arguments.values() if isinstance(v, str | list | Mapping)), None
        )
    fed = next((arguments[key] for key in INPUT_ARGUMENTS if isinstance(arguments.get(key), str)), None)
    stdin = NO_INPUT if fed is None or fed is given else Output(fed, piped=True)
    named = [value for key, value in arguments.items() if key.lower() in FOLDER_ARGUMENTS and value]
    folders = sorted({value for value in named if isinstance(value, str)})
    if len(folders) != 1 and named:
        reading.unknown(tool, "which folder the command runs in")
    for folder in folders[:1]:
        inner = Command(reading, "cd", [Word((TILDE + folder[1:] if folder.startswith("~") else folder,))], state)
        programs.BUILTINS["cd"](inner)
    if isinstance(given, Mapping):
        _shell(reading, tool, given, state)
    elif isinstance(given, list) and all(isinstance(word, str) for word in given):
        if arguments.get("shell") not in (None, False):
            reading.shell(" ".join(given), state, stdin)
        elif given is arguments.get("commands"):
            for one in given:
                reading.shell(one, state, stdin)
        else:
            _words(reading, given, state, stdin)
    elif isinstance(given, list):
        for one in given:
            _shell(reading, tool, {"command": one} if not isinstance(one, Mapping) else one, state)
    elif isinstance(given, str):
        args = _program_words(arguments)
        written = next((arguments[key] for key in WORD_ARGUMENTS if isinstance(arguments.get(key), str)), "")
        if written:
            reading.shell(f"{given} {written}", state, stdin)
        elif args is not None and " " not in given:
            if PROGRAM.fullmatch(given):
                _words(reading, [given, *args], state, stdin)
            else:  # what no program is called is meant for a shell
                reading.shell(" ".join((given, *map(shlex.quote, args))), state, stdin)
        else:
            reading.shell(given, state, stdin)
        name = base_name(tool)  # a tool that is called like a program may be given its words alone
        if name in knowledge().programs and given.split()[:1] != [name]:
            reading.shell(f"{name} {given}", reading.state())
        for key in SHELL_ARGUMENTS:  # which of several is run, the tool knows
            if isinstance(other := arguments.get(key), str) and other != given:
                reading.shell(other, reading.state())
    elif given is None:
        if not arguments:
            reading.unknown(tool, "a shell without a command")
        else:
            reading.unknown(tool, "a command that is no text")
    else:
        reading.unknown(tool, "a command that is no text")
    reading.left_defined(state)
    for environment in (arguments[key] for key in ENVIRONMENT_ARGUMENTS if key in arguments):
        if isinstance(environment, list):
            pairs = (text.partition("=") for text in environment if isinstance(text, str))
            environment = {name: value for name, _, value in pairs}
        for name, value in environment.items() if isinstance(environment, Mapping) else ():
            if isinstance(value, str):
                assigned(reading, str(name), [Word((value,))], state)


def _words(reading: Reading, words: Sequence[str], state: State, stdin: Output = NO_INPUT) -> None:
    """A list: one command as words, or a list of whole commands."""
    if (len(words) > 1 and all(" " in word for word in words)) or (len(words) == 1 and not PROGRAM.fullmatch(words[0])):
        for text in words:
            reading.shell(text, state, stdin)
        return
    if words:
        run(reading, [Word((word,)) for word in words], state, stdin, None)


# files


def _file(command: Command, name: str, arguments: Mapping[str, Any]) -> None:
    """A tool on files: its effect on each path that it is given."""
    effect = FILE_TOOLS[name]
    if name in ("str_replace_editor", "str_replace_based_edit_tool"):
        effect = "read" if arguments.get("command") == "view" else "write"
    if name == "insert" and not arguments.get("path"):
        return _other(command, command.program, arguments)
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
    if effect != "read" and _hosted(server_name(command.program), arguments):
        command.act(effect, "remote", ActTarget("resource", command.program))
    if (
        name == "glob"
        and isinstance(arguments.get("pattern"), str)
        and arguments["pattern"].startswith(("/", "~", ".."))
    ):
        command.touch("read", path_word(re.split(r"[*?\[{]", arguments["pattern"])[0]))
    if not touched:
        if effect == "read":
            programs.here(command, "read")
        else:
            command.unknown("a file without a name")
    return None


def path_word(text: str) -> Word:
    """A path that no shell expands; a leading ~ is meant as a home all the same."""
    text = FILE_URL.sub("", text)
    return Word((TILDE + text[1:] if text.startswith("~") else text,))


def _hosted(server: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a tool works on what lies at a service, such as a repository there, though it is given a path."""
    return bool(HOSTED.search(server)) or not PLACES_THERE.isdisjoint(map(str.lower, arguments))


# SQL and HTTP


def _is_sql(tool: str, arguments: Mapping[str, Any]) -> bool:
    given = list(_sql_texts(arguments))
    if any(key.lower().startswith("sql") for key, _ in given) or (given and SQL_TOOLS.search(tool)):
        return True
    return any(
        re.match(
            r"(?is)\s*(?:select\s.*\bfrom\b|insert\s+into\b|update\s+\S+\s+set\b|delete\s+from\b|truncate\s+table\b"
            r"|(?:drop|alter|create)\s+(?:table|database|schema|index|view|user|role)\b|with\s+\S+\s+as\b|grant\s.*\bto\b)",
            text,
        )
        for key, text in (*given, *_sql_texts(arguments, SHORT_SQL_ARGUMENTS))
    )


def _sql_texts(arguments: Mapping[str, Any], names: re.Pattern[str] = SQL_ARGUMENTS) -> Iterator[tuple[str, str]]:
    """Arguments that may hold SQL, however deep."""
    for key, value in leaves("", arguments):
        own = key.rpartition(".")[2]
        if names.match(own) and isinstance(value, str):
            yield own, value


def _sql(command: Command, tool: str, arguments: Mapping[str, Any]) -> None:
    scope: ActScope = "remote"
    database = str(
        arguments.get("database") or arguments.get("db") or arguments.get("schema") or server_name(tool) or ""
    )
    for key in ("host", "hostname", "server", "connection", "connection_string", "dsn", "url", "database_url"):
        value = arguments.get(key)
        if isinstance(value, str) and value:
            target, scope = of_url(value)
            database = in_database(target, database or target.within)
    if (
        "sqlite" in tool.lower()
        or "duckdb" in tool.lower()
        or database in (":memory:",)
        or "local" in re.split(r"[_\W]", tool.lower())
    ):
        scope = "local"
    for _, value in list(_sql_texts(arguments)) or list(_sql_texts(arguments, SHORT_SQL_ARGUMENTS)):
        before = len(command.reading.acts)
        statements(command, value, scope, database)
        if len(command.reading.acts) == before:
            command.act("read", scope, ActTarget("table", database))


def _is_http(name: str, arguments: Mapping[str, Any]) -> bool:
    has_url = any(URL_ARGUMENTS.match(key) and isinstance(arguments[key], str) for key in arguments)
    if FORMS.search(name):
        return False
    return has_url and (
        bool(_method(arguments))
        or bool(re.search(r"http|request|fetch|curl|api|url|web|browse|navigate|download|scrape|crawl", name))
    )


def _http(command: Command, name: str, arguments: Mapping[str, Any]) -> None:
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


def carries_key(arguments: Mapping[str, Any]) -> bool:
    """Whether a private key or a token of a well-known form is among the arguments."""
    keys = _keys()
    return any(isinstance(value, str) and keys.search(value) for _, value in leaves("", arguments))


@cache
def _keys() -> Any:
    """In linear time, however long a text is."""
    import re2

    return re2.compile(KEYS)


# any other tool


def _other(command: Command, tool: str, arguments: Mapping[str, Any]) -> None:
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
    amount = _amount(arguments)
    if effect == "spend":
        to = " ".join(_values(arguments, TO_ARGUMENTS))
        command.act("spend", "remote", ActTarget("recipient", to.lower(), amount=amount))
        return
    acted, hosted = False, _hosted(server, arguments)
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
    recipients = _values(arguments, TO_ARGUMENTS)
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
        programs.READERS["code"](programs.replace_words(command, [Word((text,))], command.state, "code.py"))
    else:
        command.unknown("code in a language that is not known")


def named_effect(words: Sequence[str]) -> tuple[Effect, str]:
    """The worst verb among the first words of a name; a tool without a verb runs."""
    verbs = knowledge().verbs
    spoken: list[tuple[Effect, str]] = [(verbs[word], word) for word in words if word in verbs]
    if not spoken:
        return "execute", ""
    leading = [pair for pair in spoken if pair[1] in words[:1]]
    joined = not JOINED.isdisjoint(words)  # `list_and_forward` does both
    if (
        leading
        and leading[0][0] == "read"
        and not joined
        and not any(pair[0] in ("delete", "spend") for pair in spoken)
    ):
        return leading[0]
    return min(spoken, key=lambda pair: SEVERITY.index(pair[0]) if pair[0] in SEVERITY else 0)


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


def _amount(arguments: Mapping[str, Any]) -> float | None:
    for key, value in leaves("", arguments):
        if AMOUNT_ARGUMENTS.match(key.rsplit(".", 1)[-1]):
            try:
                return float(str(value).replace(",", "").strip("$€£ "))
            except ValueError:
                return None
    return None


def _values(arguments: Mapping[str, Any], pattern: re.Pattern[str]) -> list[str]:
    return [
        str(value)
        for key, value in leaves("", arguments)
        if pattern.match(key.rsplit(".", 1)[-1]) and value not in ("", None)
    ]


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The scalars of nested arguments, each with its dotted name."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}"[-MOST_NAME:] if name else str(key)[-MOST_NAME:], inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(name, inner)
    else:
        yield name, value
