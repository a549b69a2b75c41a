"""Programs: from the words of a command to its effects, by the reader or the entry in effects.toml for its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.acts.act import ActScope, ActTarget
from gradproof.gate.acts.command import BUILTINS, READERS, Command, replace_words
from gradproof.gate.acts.deeds import asks_itself, perform
from gradproof.gate.acts.held_files import carry_over, fetched_from
from gradproof.gate.acts.knowledge import knowledge
from gradproof.gate.acts.options import HARMLESS, LOUD, QUIET, SAME, parse
from gradproof.gate.acts.paths import TILDE, UNKNOWN, looks_like_path, unglobbed
from gradproof.gate.acts.places import act_on_argument
from gradproof.gate.acts.shell import Reading
from gradproof.gate.acts.shell_state import Output, State
from gradproof.gate.acts.targets import fetch_and_run, of_url, resolved, touch
from gradproof.gate.acts.word import Word

MOST_WORDS = 256
BIN = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/", "/usr/local/sbin/", "/opt/homebrew/bin/")
BIN += ("/usr/libexec/", "/System/Library/")
SERVICES = ("/etc/init.d/", "/etc/rc.d/", "/usr/local/etc/rc.d/")  # scripts that take start, stop and the like
COPIES = ("cp", "mv", "ln", "install", "rsync")


def run(reading: Reading, words: list[Word], state: State, stdin: Output, walk: Any) -> Output:
    """Reads one command; returns what it prints, as far as that is known."""
    name = words[0]
    reading.pay(1 + len(words) / 20)
    if len(words) > MOST_WORDS:
        reading.unknown(unglobbed(name.texts[0]), f"more than {MOST_WORDS} arguments", state)
        words = words[:MOST_WORDS] + [word for word in words[MOST_WORDS:] if _far(word)]
    if len(name.texts) > 1 and len(name.texts) <= 8:
        for text in name.texts:
            run(reading, [Word((text,)), *words[1:]], state, stdin, walk)
        return Output()
    if not name.known:
        return _nameless(reading, words, state, stdin)
    text = name.text
    if not text:
        return Output()
    before = len(reading.acts)
    if name.substituted:
        reading.unknown(text, "a program whose name is made while the call runs", state)
    command = Command(reading, text, words[1:], state, stdin, walk)
    around, reading.explained = reading.explained, set()
    printed = _run(command, text)
    if command.program in COPIES:
        carry_over(command)
    _detail(command, before)
    reading.explained = around
    acts = reading.acts[before:]
    if printed is None:
        return Output.of(acts, stdin)
    return printed


def _far(word: Word) -> bool:
    """Whether a word may lead out of the folder that it is used in."""
    return any(text.startswith(("/", TILDE)) or ".." in text or UNKNOWN in text for text in word.texts)


def _nameless(reading: Reading, words: list[Word], state: State, stdin: Output) -> Output:
    """A program whose name is made while the call runs."""
    if words[0].fetched:
        reading.acts.append(fetch_and_run("sh", words[0].fetched, state))
    reading.unknown("sh", "a program whose name is not known", state)
    for word in words[1:]:
        if looks_like_path(word.texts[0]):
            touch(reading, "execute", "sh", word, state)
    return Output()


def _run(command: Command, text: str) -> Output | None:
    state = command.state
    if text in state.functions and command.walk is not None:
        for walk, body in state.functions[text]:
            walk.call(body, state, command.words, command.stdin)
        return None
    if text in state.aliases:
        inner = command.beside(parameters=tuple(command.words))
        aliased = inner.aliases.pop(text)
        command.reading.called.add(text)
        return command.shell(f'{aliased} "$@"' if command.words else aliased, inner, command.stdin)
    if text in BUILTINS:
        return BUILTINS[text](command)
    name = _program(command, text)
    if name is None:
        return None
    known = knowledge()
    command.program = name
    if name in known.wrappers:
        return READERS["wrapper"](command)
    if name in known.interpreters:
        return READERS["interpreter"](command)
    deed = known.programs.get(name)
    if deed is None:
        return _strange(command)
    return perform(command, deed)


def _program(command: Command, text: str) -> str | None:
    """The name by which a program is known; None where it was a file, and that is read."""
    if "/" not in text:
        return text.removesuffix(".exe")
    base = text.rstrip("/").rsplit("/", 1)[-1] or text
    if re.search(r"(?:^|/)\.?v?env\d*/bin/|(?:^|/)\.?venv[^/]*/(?:bin|Scripts)/", text):
        command.state = command.beside(venv=True)
    if text.startswith(SERVICES):
        command.words = [Word((base,)), *command.words]
        return "service"
    known = knowledge()
    is_known = base in known.programs or base in known.wrappers or base in known.interpreters
    if is_known and (text.startswith(BIN) or "/bin/" in f"/{text}" or "/.bin/" in text or "/Scripts/" in text):
        return base
    command.program = base
    execute_file(command, Word((TILDE + text[1:] if text.startswith("~") else text,)), command.words)
    return None


def execute_file(command: Command, file: Word, arguments: Sequence[Word]) -> None:
    """A script or a program by its path: what was written to it in this call is read, what was fetched is named."""
    state = command.state
    if "://" in file.text and not file.starts("file:"):
        command.reading.acts.append(fetch_and_run(command.program, of_url(file.text)[0].name, state))
        return
    for path in resolved(command.reading, file, state):
        if host := fetched_from(state, path):
            command.reading.acts.append(fetch_and_run(command.program, host, state))
        elif path in state.written:
            inner = command.beside(via=state.via | {"interpreter"}, parameters=tuple(arguments))
            READERS["code"](replace_words(command, [Word((state.written[path],))], inner, path))
    acts = command.touch("execute", file)
    deed = knowledge().programs.get(file.text.rpartition("/")[2])  # `python manage.py flush`
    says = deed.says if deed is not None else {}
    for word in arguments:
        if word.text in says:
            effect, scope = says[word.text]
            command.act(effect, scope, ActTarget("none", word.text))
    if not acts:
        command.act("execute", "unknown", why="a program without a name")
    for word in arguments:
        act_on_argument(command, word, "execute")


def _strange(command: Command) -> Output | None:
    """A program that nobody knows: it runs, with the scope of its arguments."""
    if asks_itself(command):
        return None
    scope: ActScope = "project" if command.reading.around.project else "local"
    command.act("execute", scope)
    for word in command.words:
        act_on_argument(command, word, "execute")
    return None


def _detail(command: Command, first: int) -> None:
    """Notes with the acts since `first` what else the command said, and where and under what it ran."""
    acts, state = command.reading.acts, command.state
    fresh = [i for i in range(first, len(acts)) if acts[i].details is None]
    if not fresh:
        return
    name = command.program
    harmless = (QUIET - LOUD.get(name, frozenset())) | HARMLESS.get(name, frozenset())
    parsed = parse(command.words, command.deed)
    said = {
        SAME.get(name, name) + (f"={unglobbed(value.texts[0])}" if value is not None else "")
        for name, value in parsed.options
        if name not in harmless
        and not (value is not None and value.texts[0] in command.reading.explained)
        and not (
            len(name) > 2 and name[0] == "-" and name[1] != "-" and value is None and not command.deed.takes_value(name)
        )
    }
    said |= {
        unglobbed(word.texts[0]).removeprefix("0")
        for word in parsed.positional
        if word.texts[0] not in command.reading.explained
    }
    common = frozenset(said) | state.context
    for i in fresh:
        here_ = frozenset() if acts[i].target.kind == "path" else frozenset(f"in {cwd}" for cwd in state.cwds)
        acts[i] = acts[i].but(details=common | here_)


def load() -> None:
    """Brings in the readers of the other files, and the parser of SQL, which takes its time."""
    try:
        import sqlglot  # noqa: F401
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    from gradproof.gate.acts import (  # noqa: F401
        builtins,
        clouds,
        containers,
        databases,
        filters,
        git,
        interpreters,
        packages,
        requests,
        system,
        wrappers,
    )
