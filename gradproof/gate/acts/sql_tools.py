"""Tools that are given SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gradproof.gate.acts.act import ActScope, ActTarget
from gradproof.gate.acts.arguments import SHORT_SQL_ARGUMENTS, SQL_ARGUMENTS, leaves
from gradproof.gate.acts.command import Command
from gradproof.gate.acts.databases import in_database, statements
from gradproof.gate.acts.targets import of_url
from gradproof.gate.acts.tool_names import SQL_TOOLS, server_name


def is_sql(tool: str, arguments: Mapping[str, Any]) -> bool:
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


def sql_tool(command: Command, tool: str, arguments: Mapping[str, Any]) -> None:
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
