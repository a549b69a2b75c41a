"""Shell builtins: cd, echo, printf, eval, source, set, alias, read, trap."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from gradproof.gate.acts.act import ActTarget
from gradproof.gate.acts.command import READERS, Command, builtin
from gradproof.gate.acts.paths import (
    TILDE,
    UNKNOWN,
    alternatives,
    is_descriptor,
    resolve,
)
from gradproof.gate.acts.programs import execute_file
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.shell_walk import INDEXED
from gradproof.gate.acts.targets import fetch_and_run
from gradproof.gate.acts.word import Word, below


@builtin("cd", "pushd", "chdir")
def _cd(command: Command) -> Output:
    words = [word for word in command.words if not word.text.startswith("-") or word.text == "-"]
    state, around = command.state, command.reading.around
    if state.elsewhere is not None:
        return Output("")
    if not words:
        state.cwds = (around.home,)
        return Output("")
    if "CDPATH" in state.variables and not words[0].starts("/", "~", "./", "../"):
        state.cwds = (UNKNOWN,)
        return Output("")
    folders = [resolve(text, cwd, around.home) for text, cwd in alternatives(words[0].texts, state.cwds)]
    if words[0].text == "-" or any(path is None for path in folders):
        state.cwds = (UNKNOWN,)
    else:
        state.cwds = tuple(dict.fromkeys(path for path in folders if path is not None))[:4]
    return Output("")


@builtin("popd")
def _popd(command: Command) -> Output:
    command.state.cwds = (UNKNOWN,)
    return Output("")


@builtin("echo")
def _echo(command: Command) -> Output:
    words = command.words
    escapes = False
    while words and words[0].text in ("-n", "-e", "-E", "-ne", "-en"):
        escapes = escapes or "e" in words[0].text
        words = words[1:]
    text = " ".join(command.said(word) for word in words)
    if escapes:
        text = _escaped(text)
    return _told(command, words, text + "\n")


@builtin("printf")
def _printf(command: Command) -> Output:
    words = command.words
    if words and words[0].text == "-v":
        _evaluated(command)
        if len(words) > 1:
            command.state.variables[words[1].text] = [Word((UNKNOWN,))]
        return Output("")
    if words and words[0].text == "--":
        words = words[1:]
    if not words:
        return Output("")
    shape, *rest = [command.said(word) for word in words]
    text = _escaped(shape)
    if "%" in text:
        pieces = iter(rest)
        filled: list[str] = []
        while True:
            filled.append(_filled(text, pieces))
            if len(filled) > 64 or not rest or (rest := list(pieces)) == []:
                break
            pieces = iter(rest)
        text = "".join(filled)
    return _told(command, words, text)


def _filled(shape: str, pieces: Iterator[str]) -> str:
    def put(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        piece = next(pieces, "")
        return _escaped(piece) if match[0].endswith("b") else piece

    return re.sub(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])", put, shape)


def _escaped(text: str) -> str:
    from gradproof.gate.acts.word import ANSI, ansi_escape

    return ANSI.sub(ansi_escape, text)


def _told(command: Command, words: Sequence[Word], text: str) -> Output:
    fetched = next((word.fetched for word in words if word.fetched), "")
    secret = any(word.secret for word in words)
    return Output(text, fetched, secret, True)


@builtin("pwd")
def _pwd(command: Command) -> Output:
    cwds = command.state.cwds
    one = len(cwds) == 1 and cwds[0] and command.state.elsewhere is None
    return Output(cwds[0] if one else None, piped=True)


@builtin("eval")
def _eval(command: Command) -> Output:
    for word in command.words:
        if word.fetched:
            command.reading.acts.append(fetch_and_run("eval", word.fetched, command.state))
    text = " ".join(word.text for word in command.words)
    if any(word.substituted for word in command.words):
        command.program = "eval"
        command.unknown("a command that is made while it runs")
    if UNKNOWN in text and len(command.words) == 1 and command.words[0].texts == (UNKNOWN,):
        command.program = "eval"
        command.unknown("a command that is made while it runs")
        return Output()
    return command.shell(text, command.state, command.stdin)


@builtin("source", ".")
def _source(command: Command) -> Output:
    if not command.words:
        return Output()
    file = command.words[0]
    if file.inner is not None or is_descriptor(file.texts[0]):
        feed = Output(file.inner, file.fetched, file.secret, True)
        READERS["fed"](replace(command, program="source", stdin=feed, words=[]))
        return Output()
    if file.texts[0] == "/dev/stdin":
        READERS["fed"](replace(command, program="source", words=[]))
        return Output()
    command.program = "source"
    if re.search(r"(?:^|/)\.?v?env[^/]*/(?:bin|Scripts)/activate$", file.text) and not file.starts("/", "~", ".."):
        command.state.venv = True
    execute_file(command, file, command.words[1:])
    return Output()


@builtin("coproc")
def _coproc(command: Command) -> Output:
    """`coproc nc host 1`, `coproc NAME { …; }`: runs on beside what follows, which may write to it."""
    command.reading.connected = True
    named = command.texts[1:2] == ["{"]
    command.again(command.words[2 if named else command.texts[:1] == ["{"] :])
    return Output(piped=True)


@builtin("set", "shopt")
def _set(command: Command) -> Output:
    texts = command.texts
    if not texts and command.program == "set":
        return Output(secret=True, piped=True)  # all variables
    if "history" in texts and not {"+o", "-ou", "-uo"}.isdisjoint(texts):
        command.act("stop", "system", ActTarget("resource", "shell history"))
    if any(text.startswith("-") and "e" in text and not text.startswith("--") for text in texts) or "errexit" in texts:
        command.state.strict = True
    if "--" in texts:
        command.state.parameters = tuple(command.words[texts.index("--") + 1 :])
    return Output("")


@builtin("alias")
def _alias(command: Command) -> Output:
    for word in command.words:
        name, equals, value = word.text.partition("=")
        if equals:
            command.state.aliases[name] = value
    return Output("")


def _evaluated(command: Command) -> None:
    """Some builtins evaluate the index in `name[index]`, and run what is substituted there."""
    for word in command.words:
        if any(INDEXED.search(text) for text in word.texts):
            command.unknown("an index that runs a command")


@builtin("read", "mapfile", "readarray", "getopts", "let", "select")
def _read(command: Command) -> Output:
    _evaluated(command)
    texts = command.texts
    if command.program in ("mapfile", "readarray") and "-C" in texts[:-1]:
        command.shell(texts[texts.index("-C") + 1], command.beside())
    for word in command.words:
        if word.known and word.text.isidentifier():
            source = command.stdin
            texts = below(source.names) or (UNKNOWN,)
            command.state.variables[word.text] = [Word(texts, source.fetched, source.secret)]
    return Output("")


@builtin("history")
def _history(command: Command) -> Output:
    for option, file in pairwise(command.words):
        if option.text in ("-w", "-a"):
            command.touch("write", file)
    if any(re.fullmatch(r"-[a-z]*[cd][a-z]*\d*", text) for text in command.texts):
        command.touch("delete", Word((f"{TILDE}/.bash_history",)))
    return Output("")


@builtin("fc")
def _fc(command: Command) -> Output | None:
    """Runs a command of the history again, unless it lists them."""
    if not any(text.startswith("-") and "l" in text for text in command.texts):
        command.unknown("a command of the history")
    return Output()


@builtin("trap")
def _trap(command: Command) -> Output:
    words = [word for word in command.words if not word.text.startswith("-")]
    if words and words[0].text:
        command.shell(words[0].text, command.beside())
    return Output("")


@builtin("hash")
def _hash(command: Command) -> Output:
    """`hash -p FILE NAME`: NAME is FILE from now on."""
    texts = command.texts
    if "-p" in texts and len(texts) > texts.index("-p") + 2:
        command.state.aliases.update(dict.fromkeys(texts[texts.index("-p") + 2 :], texts[texts.index("-p") + 1]))
    return Output("")


@builtin("complete", "bind")
def _on_key(command: Command) -> Output:
    """Commands that a key or a completion will run."""
    texts = command.texts
    for option in ("-C", "-x"):
        if option in texts[:-1]:
            code = texts[texts.index(option) + 1]
            command.shell(code.partition(":")[2] if command.program == "bind" else code, command.beside())
    return Output("")


@builtin("enable")
def _enable(command: Command) -> Output:
    """`enable -f FILE NAME` loads a builtin from a library."""
    texts = command.texts
    if "-f" in texts[:-1]:
        execute_file(command, command.words[texts.index("-f") + 1], [])
    return Output("")


@builtin("test", "[", "wait", "local", "declare", "typeset", "readonly", "export", "unset")
def _evaluates(command: Command) -> Output:
    _evaluated(command)
    return Output("")


@builtin(
    *("true", "false", ":", "exit", "return", "break", "continue", "shift", "jobs", "fg", "bg"),
    *("type", "umask", "ulimit", "times", "disown", "unalias", "help"),
    *("dirs", "sleep", "clear", "reset", "tput", "compgen"),
)
def _nothing(command: Command) -> Output:
    return Output("")
