"""SQL, parsed with sqlglot: the tables that are read, changed and dropped.

Whatever sqlglot does not take apart (DO, CALL, EXEC, another dialect, nesting too deep) is `unknown`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.acts.act import Effect
from gradproof.gate.acts.paths import UNKNOWN

MOST_SQL = 4 * 2**10
MOST_NESTING = 48
SQL_PER_WORK = 25.0  # characters; taking SQL apart is slow
WORK_OF_SQL = 3.0  # for any text
DIALECTS = {"psql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite3": "sqlite", "bq": "bigquery"}
READS = (
    "Select",
    "Union",
    "Except",
    "Intersect",
    "Show",
    "Describe",
    "Use",
    "Set",
    "Transaction",
    "Commit",
    "Rollback",
)
READS += ("Pragma", "Values", "Table", "Subquery", "With", "Analyze", "Semicolon")
PLAIN = re.compile(
    r"(?is)^\s*(?:explain(?:\s+analyze)?\s+)?(?:show|describe|desc|begin|commit|rollback|end|vacuum|use|set|pragma|\\[dlcxtqi?][\w+]*)\b"
)
TOUCHES = re.compile(
    r"(?i)\b(?:pg_read_file|pg_ls_dir|lo_import|lo_export|load_file|into\s+(?:out|dump)file|xp_cmdshell|sys_exec|sys_eval|dblink\w*|load_extension|readfile|writefile"
    r"|pg_terminate_backend|pg_cancel_backend|pg_reload_conf|pg_rotate_logfile|pg_(?:read|stat|write)\w*_file|lo_put|lo_unlink|lo_create|lo_from_bytea|set_config|setval|pg_drop_replication_slot|pg_promote|query_to_xml"
    r"|http_(?:get|post|put|patch|delete)|utl_http|utl_file|sp_oacreate|sp_configure|openrowset|opendatasource|read_text|read_blob"
    r"|set\s+(?:global|persist|password))\b"
)
COPY, PROGRAM = re.compile(r"(?i)\bcopy\b"), re.compile(r"(?i)\b(?:to|from)\s+program\b")


class SqlAct(NamedTuple):
    """One statement: its effect, its verb and its table; `why` for what could not be read; `where` stands for the
    condition under which rows are changed, the values that columns are compared with for equality left out."""

    effect: Effect
    verb: str
    table: str = ""
    why: str = ""
    where: str = ""


def read_sql(text: str, dialect: str = "") -> list[SqlAct]:
    """What the statements of a text do; an empty text does nothing."""
    if not text.strip():
        return []
    acts: list[SqlAct] = []
    if UNKNOWN in text:
        acts.append(SqlAct("unknown", "", why="SQL that is made while it runs"))
    if len(text) > MOST_SQL:
        acts.append(SqlAct("unknown", "", why="more SQL than is read"))
        text = text[:MOST_SQL].rpartition(";")[0] or text[:MOST_SQL]
    if _depth(text) > MOST_NESTING:
        return [*acts, SqlAct("unknown", "", why="SQL that is nested too deeply")]
    copy = COPY.search(text)
    if (copy and PROGRAM.search(text, copy.end())) or TOUCHES.search(text):
        acts.append(SqlAct("unknown", "", why="SQL that reaches files or programs"))
    return [*acts, *_statements(text.replace(UNKNOWN, "x"), dialect)]


def _depth(text: str) -> int:
    depth = most = 0
    for mark in re.findall(r"[()\[\]]|\bcase\b|\bend\b|\bnot\b", text, re.IGNORECASE):
        depth += 1 if mark in "([" or mark.lower() in ("case", "not") else -1
        most = max(most, depth)
    return most


@cache
def _sqlglot() -> tuple[Any, type[Exception]]:
    """The library and its error; what it does not understand is nothing to log."""
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    return sqlglot, SqlglotError


def _statements(text: str, dialect: str) -> Iterator[SqlAct]:
    sqlglot, SqlglotError = _sqlglot()
    try:
        parsed = sqlglot.parse(text, dialect=dialect or None)
    except (SqlglotError, RecursionError, ValueError, IndexError, TypeError, AttributeError, KeyError):
        yield SqlAct("unknown", "", why="SQL that cannot be parsed")
        return
    for statement in parsed:
        if statement is not None:
            try:
                yield from _statement(statement)
            except RecursionError:
                yield SqlAct("unknown", "", why="SQL that is nested too deeply")


def _statement(node: Any) -> Iterator[SqlAct]:
    from sqlglot import exp

    kind = type(node).__name__
    if isinstance(node, exp.Command):
        verb = str(node.this).upper()
        if verb in ("SHOW", "EXPLAIN", "VACUUM", "ANALYZE", "DESCRIBE", "BEGIN", "END", "LISTEN", "CHECKPOINT"):
            rest = str(node.expression).lower()
            runs = (verb == "EXPLAIN" and "analyze" in rest) or (verb == "VACUUM" and "into " in rest)
            why = f"SQL's {verb}, which runs what it explains or writes a file" if runs else ""
            yield SqlAct("unknown" if runs else "read", verb.lower(), why=why)
        elif verb in ("GRANT", "REVOKE"):
            yield SqlAct("change_rights", verb.lower())
        else:
            yield SqlAct("unknown", verb.lower(), why=f"SQL's {verb}, which may do anything")
        return
    yield from _inner(node)
    table = _table(node)
    if isinstance(node, exp.Drop | exp.TruncateTable):
        yield SqlAct(
            "delete",
            "truncate"
            if isinstance(node, exp.TruncateTable)
            else f"drop {str(node.args.get('kind') or '').lower()}".strip(),
            table,
        )
    elif isinstance(node, exp.Delete):
        limited = node.args.get("where") and not _always(node)
        yield SqlAct("delete", "delete" if limited else "delete all", table, where=_condition(node) if limited else "")
    elif isinstance(node, exp.Update):
        limited = node.args.get("where") and not _always(node)
        condition = _condition(node) if limited else ""
        yield SqlAct("write" if limited else "delete", "update" if limited else "update all", table, where=condition)
    elif isinstance(node, exp.Insert):
        yield SqlAct("write", "insert", table)
    elif isinstance(node, exp.Merge):
        deletes = re.search(r"(?i)\bthen\s+delete\b", node.sql()) is not None
        yield SqlAct("delete" if deletes else "write", "merge", table)
    elif isinstance(node, exp.Create):
        kind_of = str(node.args.get("kind") or "").upper()
        if kind_of in ("FUNCTION", "PROCEDURE", "TRIGGER", "EVENT"):
            yield SqlAct("persist", f"create {kind_of.lower()}", table)
        elif node.args.get("replace") or kind_of in ("USER", "ROLE"):
            yield SqlAct(
                "change_rights" if kind_of in ("USER", "ROLE") else "write", f"create {kind_of.lower()}", table
            )
        else:
            yield SqlAct("write", f"create {kind_of.lower()}".strip(), table)
    elif isinstance(node, exp.Alter):
        drops = any(isinstance(action, exp.Drop) for action in node.args.get("actions") or [])
        yield SqlAct("delete" if drops else "write", "alter", table)
    elif isinstance(node, exp.Grant) or kind == "Revoke":
        yield SqlAct("change_rights", "grant" if isinstance(node, exp.Grant) else "revoke", table)
    elif isinstance(node, exp.Copy):
        yield SqlAct("unknown", "copy", table, "SQL that reaches files or programs")
    elif kind == "Kill":
        yield SqlAct("stop", "kill")
    elif kind in READS:
        yield from (
            [SqlAct("write", "select into", _table(node))] if node.find(exp.Into) else [SqlAct("read", "select", table)]
        )
    elif kind in ("Attach", "Detach"):
        yield SqlAct("unknown", kind.lower(), why="SQL that reaches files or programs")
    else:
        yield SqlAct("unknown", kind.lower(), why=f"SQL's {kind}, which is not known")


def _inner(node: Any) -> Iterator[SqlAct]:
    """Changes inside a WITH, which a select may hide."""
    from sqlglot import exp

    for changed in node.find_all(exp.Delete, exp.Update, exp.Insert):
        if changed is not node:
            yield from (act for act in _statement_alone(changed))


def _statement_alone(node: Any) -> Iterator[SqlAct]:
    from sqlglot import exp

    table = _table(node)
    if isinstance(node, exp.Insert):
        yield SqlAct("write", "insert", table)
    else:
        limited = node.args.get("where") and not _always(node)
        delete = isinstance(node, exp.Delete)
        name = ("delete" if delete else "update") + ("" if limited else " all")
        condition = _condition(node) if limited else ""
        yield SqlAct("delete" if delete or not limited else "write", name, table, where=condition)


def _always(node: Any) -> bool:
    """`WHERE 1 = 1`, `WHERE true`: no restriction."""
    from sqlglot import exp

    where = node.args["where"].this
    if isinstance(where, exp.Boolean | exp.Literal):
        return True
    if any(isinstance(part, exp.Column) for part in where.walk()):
        either = isinstance(where, exp.Or) and any(
            not any(isinstance(part, exp.Column) for part in side.walk()) for side in (where.left, where.right)
        )
        same = isinstance(where, exp.EQ | exp.GTE | exp.LTE) and where.left == where.right
        present = isinstance(where, exp.Not) and isinstance(where.this, exp.Is)
        return either or same or present
    return True


def _condition(node: Any) -> str:
    """A digest of the condition, and of which columns change: what it compares may be personal."""
    from sqlglot import exp

    def plain(part: Any) -> Any:
        same = isinstance(part.parent, exp.EQ) and isinstance(part.parent.left, exp.Column)
        return exp.Placeholder() if isinstance(part, exp.Literal) and same else part

    changed = [part.left.sql() for part in node.expressions if isinstance(part, exp.EQ)]  # of an update
    said = "\0".join((*changed, node.args["where"].this.transform(plain).sql()))
    return blake2b(said.lower().encode(), digest_size=8).hexdigest()


def _table(node: Any) -> str:
    from sqlglot import exp

    table = node.find(exp.Table)
    return table.sql().split(" ")[0].strip('"`').lower() if table is not None else ""
