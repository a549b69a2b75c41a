"""Database clients: the location of the database, and the effects of the statements."""

from __future__ import annotations

import re

from gradproof.gate.acts.act import ActScope, ActTarget
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.options import parse
from gradproof.gate.acts.paths import UNKNOWN, is_loopback
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.sql import DIALECTS, MOST_SQL, SQL_PER_WORK, WORK_OF_SQL, SqlAct, read_sql
from gradproof.gate.acts.targets import of_url
from gradproof.gate.acts.word import Word

META = re.compile(r"(?m)^[^\S\n]*\\(\S*)(.*)$|^[^\S\n]*\.(\w+)(.*)$")
REDIS = {
    "read": "get mget keys scan info ttl type exists llen lrange hget hgetall hkeys smembers scard zrange dbsize ping "
    "memory client-list lindex strlen pttl monitor time lastsave object zscore xrange",
    "delete": "del unlink flushdb flushall expire expireat rename getdel spop lpop rpop hdel srem zrem xdel ltrim",
    "stop": "shutdown",
    "change_rights": "acl auth",
    "unknown": "eval evalsha script config module debug slaveof replicaof migrate fcall function",
}
REDIS_VERBS = {verb: effect for effect, verbs in REDIS.items() for verb in verbs.split()}
MONGO = re.compile(
    r"(?i)\.\s*(drop\w*|delete\w*|remove|insert\w*|update\w*|replace\w*|save|rename\w*|createIndex\w*|bulkWrite)\s*\("
)


def in_database(target: ActTarget, database: str) -> str:
    """A database with its host, and its port where that is given."""
    return f"{target.name}{database}" if database.startswith(":") else f"{target.name}/{database}"


def where(command: Command, hosts: list[Word], database: str) -> tuple[ActScope, str]:
    """The scope of a database, and its name with its host."""
    for word in hosts:
        text = word.text
        if UNKNOWN in text:
            return "unknown", "?"
        if "://" in text:
            target, scope = of_url(text)
            return scope, in_database(target, target.within)
        if text and not text.startswith("/"):
            return ("local" if is_loopback(text) else "remote"), f"{text}/{database}"
    if command.state.elsewhere is not None:
        return command.state.elsewhere[0], database
    return "local", database


def statements(command: Command, text: str, scope: ActScope, database: str) -> None:
    """Adds the acts of SQL in a database."""
    for act in _read(command, text, DIALECTS.get(command.program, "")):
        if act.effect == "unknown":
            command.unknown(act.why)
            continue
        command.verb = act.verb
        table = f"{database}.{act.table}" if act.table else database
        command.act(act.effect, scope, ActTarget("table", table), marks=[f"where:{act.where}"] if act.where else [])


def _read(command: Command, text: str, dialect: str) -> list[SqlAct]:
    command.reading.pay(WORK_OF_SQL + min(len(text), MOST_SQL) / SQL_PER_WORK)
    return read_sql(text, dialect)


@reader("sql")
def sql(command: Command) -> Output | None:
    """psql, mysql, sqlite3 and their like: statements from an option, a heredoc, a pipe or a file."""
    parsed = parse(command.words, command.deed)
    hosts = parsed.values("-h", "--host", "-S", "--server")
    inline = parsed.values("-c", "--command", "-e", "--execute", "-Q", "-q", "-cmd")
    names = [word for word in parsed.positional]
    urls = [word for word in names if "://" in word.text or "host=" in word.text]
    variable = command.state.variables.get("PGHOST") or command.state.variables.get("MYSQL_HOST") or []
    database = next((word.text for word in parsed.values("-d", "--dbname", "-D", "--database")), "")
    if "://" in database:
        urls.append(Word((database,)))
    for file in parsed.values("-init"):
        command.touch("execute", file)
    if command.program in ("sqlite3", "duckdb"):
        return _sqlite(command, names, inline)
    for word in urls:
        if match := re.search(r"host=(\S+)", word.text):
            hosts = [*hosts, Word((match[1],))]
    if not database:
        database = next((word.text for word in names if word not in urls), "")
    if UNKNOWN in database and not hosts:
        urls.append(Word((UNKNOWN,)))
    scope, name = where(command, [*urls, *hosts, *variable], database.replace(UNKNOWN, "?"))
    command.explain(*urls, *hosts, *inline, *names, *parsed.values("-d", "--dbname", "-D", "--database"))
    for file in parsed.values("-f", "--file", "-i", "-o", "--output"):
        command.touch("execute" if not parsed.value("-o") else "write", file)
    texts = [text for word in inline for text in word.texts]
    if command.stdin.text is not None and not inline:
        texts.append(command.stdin.text)
    for text in texts:
        _meta(command, text)
        statements(command, META.sub("", text), scope, name)
    if not texts:
        if command.stdin.piped or command.stdin.fetched:
            command.unknown("SQL that comes out of a pipe")
        elif parsed.value("-f", "--file") is None:
            command.act("read" if parsed.has("-l", "--list") else "execute", scope, ActTarget("table", name))
        elif scope != "local":
            command.act("execute", scope, ActTarget("table", name))
    return None


def _sqlite(command: Command, names: list[Word], inline: list[Word]) -> None:
    file, *texts = names or [Word((":memory:",))]
    command.explain(*texts, *inline)
    given = [text for word in (*texts, *inline) for text in word.texts]
    if command.stdin.text is not None and not given:
        given.append(command.stdin.text)
    elif command.stdin.piped and not given:
        command.unknown("SQL that comes out of a pipe")
    for text in given:
        _meta(command, text)
        for act in _read(command, META.sub("", text), "sqlite" if command.program == "sqlite3" else "duckdb"):
            if act.effect == "unknown":
                command.unknown(act.why)
                continue
            command.verb = act.verb
            if act.effect == "read":
                command.touch("read", file)
            else:
                for done in command.touch("write", file):
                    command.act(act.effect, done.scope, ActTarget("table", f"{done.target.name}.{act.table}"))
    if not given:
        command.touch("read" if file.text == ":memory:" else "execute", file)


def _meta(command: Command, text: str) -> None:
    r"""psql's `\! command`, sqlite's `.shell`, mysql's `\!` and `source`."""
    for match in META.finditer(text):
        verb, rest = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
        if verb.startswith("!") or verb in ("shell", "system"):
            command.shell(f"{verb.lstrip('!') if verb.startswith('!') else ''} {rest}", command.beside())
        elif verb in (
            "i",
            "ir",
            "include",
            "copy",
            "o",
            "out",
            "w",
            "write",
            "read",
            "import",
            "load",
            "output",
            "save",
            "backup",
            "g",
            "gexec",
            "restore",
            *(
                "once",
                "excel",
                "log",
                "trace",
                "clone",
                "archive",
                "ar",
                "open",
                "cd",
                "e",
                "edit",
                "sha3sum",
                "dump-to",
            ),
            *("lo_import", "lo_export", "setenv", "s", "ef", "ev", "copy", "prompt", "watch", "pager", "tee", "source"),
        ):
            command.unknown("a client's command that reaches files")


@reader("redis")
def redis(command: Command) -> Output | None:
    parsed = parse(command.words, command.deed, stop=True)
    hosts = parsed.values("-h") + [word for word in parsed.values("-u")]
    scope, name = where(command, hosts, "redis")
    words = parsed.positional
    verb = words[0].text.lower() if words else ""
    command.verb = verb
    if not words:
        if command.stdin.text is not None:
            for line in command.stdin.text.splitlines():
                first = line.split()[:1]
                effect = REDIS_VERBS.get(first[0].lower(), "write") if first else "read"
                command.act(effect, scope, ActTarget("table", name)) if effect != "unknown" else command.unknown(line)  # type: ignore[arg-type]
        else:
            command.act("execute", scope, ActTarget("table", name))
        return None
    if verb == "config" and len(words) > 1 and words[1].text.lower() == "get":
        command.act("read", scope, ActTarget("table", name))
        return None
    effect = REDIS_VERBS.get(verb, "write")
    if effect == "unknown":
        command.unknown(f"redis {verb}, which may do anything")
    else:
        keys = "*" if verb in ("flushall", "flushdb") else " ".join(word.text for word in words[1:3])
        command.act(effect, scope, ActTarget("table", f"{name}/{keys}".replace(UNKNOWN, "?")))  # type: ignore[arg-type]
    return None


@reader("mongo")
def mongo(command: Command) -> Output | None:
    parsed = parse(command.words, command.deed)
    hosts = [*parsed.values("--host"), *(word for word in parsed.positional if "://" in word.text or "." in word.text)]
    scope, name = where(command, hosts, "mongo")
    code = parsed.value("--eval")
    text = code.text if code is not None else command.stdin.text
    if text is None:
        command.act("execute", scope, ActTarget("table", name))
        return None
    verbs = [match[1].lower() for match in MONGO.finditer(text)]
    if UNKNOWN in text or re.search(r"(?i)\b(?:eval|load|runProgram|adminCommand|runCommand|fs\.)", text):
        command.unknown("mongo code that may do anything")
    for verb in verbs or ["find"]:
        removes = verb.startswith(("drop", "delete", "remove"))
        command.verb = verb
        command.act("delete" if removes else "read" if verb == "find" else "write", scope, ActTarget("table", name))
    return None
