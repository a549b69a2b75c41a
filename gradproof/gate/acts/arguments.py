"""Arguments of a tool: what their names say, and what is found in their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from gradproof.gate.acts.paths import TILDE
from gradproof.gate.acts.word import Word

SHELL_ARGUMENTS = ("command", "cmd", "script", "commands", "shell_command", "bash_command", "commandline", "cmdline")
PROGRAM_ARGUMENTS = ("program", "executable", "exe", "binary")
WORD_ARGUMENTS = ("args", "arguments", "argv", "params", "parameters")
INPUT_ARGUMENTS = ("stdin", "input", "standard_input")
ENVIRONMENT_ARGUMENTS = ("env", "environment", "environ", "env_vars", "environment_variables", "envs")
FOLDER_ARGUMENTS = ("cwd", "workdir", "working_directory", "directory", "dir_path", "working_dir", "workingdirectory")
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
METHOD_ARGUMENTS = ("method", "verb", "httpmethod", "requestmethod")
BODY_ARGUMENTS = frozenset(("body", "data", "json", "payload", "form", "content"))
ACTION_ARGUMENTS = ("action", "operation", "op", "method")
PLACES_THERE = frozenset(("repo", "owner", "repository", "bucket"))
FREE_TEXT = re.compile(
    r"(?i)^(?:text|body|content|contents|message|subject|description|summary|comment|prompt|reason|note|new_string|old_string"
    r"|file_text|new_str|old_str|html|markdown|caption|name|title|timeout|limit|offset|explanation)$"
)
FILE_URL = re.compile(r"(?i)^file:(?://(?:localhost)?)?(?=/)")
KEYS = r"-----BEGIN [A-Z ]*PRIVATE KEY|\bAKIA[A-Z0-9]{16}\b|\bgh[pousr]_\w{30,}|\bsk_live_\w{16,}|\bxox[abp]-\w{8,}"
MOST_NAME = 1024  # characters of a dotted name, the last ones


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


def values_of(arguments: Mapping[str, Any], pattern: re.Pattern[str]) -> list[str]:
    return [
        str(value)
        for key, value in leaves("", arguments)
        if pattern.match(key.rsplit(".", 1)[-1]) and value not in ("", None)
    ]


def amount_of(arguments: Mapping[str, Any]) -> float | None:
    for key, value in leaves("", arguments):
        if AMOUNT_ARGUMENTS.match(key.rsplit(".", 1)[-1]):
            try:
                return float(str(value).replace(",", "").strip("$€£ "))
            except ValueError:
                return None
    return None


def path_word(text: str) -> Word:
    """A path that no shell expands; a leading ~ is meant as a home all the same."""
    text = FILE_URL.sub("", text)
    return Word((TILDE + text[1:] if text.startswith("~") else text,))


def carries_key(arguments: Mapping[str, Any]) -> bool:
    """Whether a private key or a token of a well-known form is among the arguments."""
    keys = _keys()
    return any(isinstance(value, str) and keys.search(value) for _, value in leaves("", arguments))


@cache
def _keys() -> Any:
    """In linear time, however long a text is."""
    import re2

    return re2.compile(KEYS)
