"""Interpreters: code given as an argument, a heredoc or a pipe, and scripts by name.

Shell is read as shell and Python by its syntax tree. Of other languages only what can do no harm is taken for read:
code without any call that runs programs, or touches files or the network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gradproof.gate.acts.act import Act, ActTarget
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.knowledge import Deed, knowledge
from gradproof.gate.acts.options import parse
from gradproof.gate.acts.paths import UNKNOWN, is_descriptor
from gradproof.gate.acts.places import act_on_argument, here
from gradproof.gate.acts.programs import execute_file, run
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.unread import unread
from gradproof.gate.acts.word import Word

SHELL = Deed(values=frozenset({"-o", "-O", "+o", "+O", "--rcfile", "--init-file"}))
PYTHON = Deed(values=frozenset({"-W", "-X"}))
OTHER = Deed(values=frozenset({"-r", "--require", "-I", "-M", "-l"}))
CODE = {
    "perl": ("-e", "-E"),
    "ruby": ("-e",),
    "node": ("-e", "--eval", "-p", "--print"),
    "php": ("-r",),
    "lua": ("-e",),
    "julia": ("-e", "-E", "--eval", "--print"),
    "tcl": ("-c",),
    "gnuplot": ("-e",),
}
CODE |= {"r": ("-e",), "powershell": ("-c", "-Command", "-command", "-EncodedCommand", "-enc"), "awk": ()}
RISKY = re.compile(
    r"(?i)\b(?:system|exec\w*|spawn\w*|popen|fork|eval|require\s*\(?\s*['\"](?:child_process|fs|net|http|https|dgram|os|"
    r"socket|open3|fileutils)|child_process|unlink\w*|rmdir\w*|rm_rf?|rmSync|writeFile\w*|appendFile\w*|createWriteStream|"
    r"File\.(?:write|delete|open|unlink)|IO\.\w+|Dir\.\w+|FileUtils|socket|connect|fetch|Net::|LWP|open|opendir|rename\w*|"
    r"chmod|chown|kill|passthru|shell_exec|proc_open|file_put_contents|curl_\w+|fsockopen|import\s*\(|Function|Deno\.\w+|"
    r"Bun\.\w+|process\.(?:kill|env|binding)|ENV|os\.(?:execute|remove|rename)|io\.\w+|invoke-\w+|iex|iwr)\b|`|%x|qx"
)
MOST_CODE = 8 * 2**10
HARMLESS_REQUIRE = re.compile(r"require\(\s*['\"](?:\./[\w./-]+\.json|path|util|url|assert|crypto|os)['\"]\s*\)")


@reader("interpreter")
def interpreter(command: Command) -> Output | None:
    language = knowledge().interpreters[command.program]
    if language == "sh":
        return _shell(command)
    if language == "python":
        return _python(command)
    return _other(command, language)


def _shell(command: Command) -> Output | None:
    parsed = parse(command.words, SHELL, stop=True)
    if any("c" in name.lstrip("-") and not name.startswith("--") and len(name) <= 5 for name, _ in parsed.options):
        if not parsed.positional:
            return None
        code, *parameters = parsed.positional
        state = command.beside(via=command.state.via | {"interpreter"}, parameters=tuple(parameters[1:]))
        if code.fetched:
            _fetch_and_run(command, code.fetched)
        if command.program in ("fish", "csh", "tcsh", "nu", "xonsh"):
            command.unknown("the syntax of another shell")
        if code.substituted:
            command.unknown("a command that is made while it runs")
        if code.texts == (UNKNOWN,):
            command.unknown("a command that is made while it runs")
            return None
        return [command.shell(text, state, command.stdin) for text in code.texts][-1]
    reads = not parsed.positional or parsed.has("-s") or parsed.positional[0].text in ("-", "/dev/stdin")
    if reads:
        return fed(command)
    return _file(command, parsed.positional)


def _file(command: Command, words: list[Word]) -> Output | None:
    file = words[0]
    if is_descriptor(file.texts[0]):
        return fed(replace(command, stdin=Output(file.inner, file.fetched, file.secret, True)))
    execute_file(command, file, words[1:])
    return None


@reader("fed")
def fed(command: Command) -> Output | None:
    """A shell that runs what it is fed with."""
    feed = command.stdin
    state = command.beside(via=command.state.via | {"interpreter"})
    if feed.fetched:
        _fetch_and_run(command, feed.fetched)
        return None
    if feed.substituted:
        command.unknown("commands that are decoded first")
    if feed.text is not None and feed.text.replace(UNKNOWN, "").strip():
        return command.shell(feed.text, state)
    if (feed.piped and feed.text is None) or (feed.text is not None and UNKNOWN in feed.text):
        command.unknown("commands that come out of a pipe")
        return None
    here(command, "execute")
    return None


def _fetch_and_run(command: Command, host: str) -> None:
    target = ActTarget("host", host)
    command.reading.acts.append(
        Act("fetch_and_run", command.program, "remote", command.verb, target, command.state.via | {"interpreter"})
    )


@reader("code")
def code(command: Command) -> Output | None:
    """The text of a script, in the language of its first line or its name; shell otherwise."""
    text = command.words[0].text
    first = text.split("\n", 1)[0]
    if command.program.endswith(".py") or (first.startswith("#!") and "python" in first):
        return _python_code(command, text)
    if first.startswith("#!") and not re.search(r"\b(?:ba|z|da|k|a)?sh\b", first):
        language = next((name for name in CODE if name in first), "node")
        return _scan(command, text, language)
    return command.shell(text, command.state, command.stdin)


def _python(command: Command) -> Output | None:
    texts = command.texts
    for i, word in enumerate(command.words):
        text = texts[i]
        if text == "-c" or (
            text.startswith("-") and not text.startswith("--") and text.endswith("c") and i + 1 < len(texts)
        ):
            given = command.words[i + 1] if i + 1 < len(texts) else Word()
            if given.fetched:
                _fetch_and_run(command, given.fetched)
            for one in given.texts:
                _python_code(command, one)
            return None
        if text == "-m" or (text.startswith("-m") and not text.startswith("--")):
            rest = command.words[i + 1 :] if text == "-m" else [Word((text[2:],)), *command.words[i + 1 :]]
            return _module(command, rest)
        if not text.startswith("-") or text == "-":
            if text in ("-", "/dev/stdin"):
                break
            return _file(command, command.words[i:])
        del word
    feed = command.stdin
    if feed.fetched:
        _fetch_and_run(command, feed.fetched)
    elif feed.text is not None and feed.text.strip():
        _python_code(command, feed.text)
    elif feed.piped:
        command.unknown("code that comes out of a pipe")
    else:
        here(command, "execute")
    return None


def _module(command: Command, words: list[Word]) -> Output | None:
    """`python -m pip …` is pip; other modules run here."""
    if not words:
        return None
    name = words[0].text
    known = knowledge()
    if name in known.programs or name in known.wrappers:
        return run(command.reading, words, command.state, command.stdin, command.walk)
    command.verb = name.replace(UNKNOWN, "?")
    here(command, "execute")
    for word in words[1:]:
        act_on_argument(command, word, "execute")
    return None


def _python_code(command: Command, text: str) -> Output | None:
    from gradproof.gate.acts.python import read_python

    state, acts = command.beside(via=command.state.via | {"interpreter"}), command.reading.acts
    before = len(acts)
    read_python(replace(command, state=state), text)
    acts[before:] = [act.but(text="") for act in acts[before:]]  # what is told is the code, not what it starts
    return None


def _other(command: Command, language: str) -> Output | None:
    options = CODE.get(language, ("-e",))
    if language == "node" and command.texts[:1] == ["eval"]:  # deno
        command.words = [Word(("-e",)), *command.words[1:]]
    command.words = _parted(command.words, options)
    texts = command.texts
    for i, text in enumerate(texts):
        glued = re.match(r"-[a-zA-Z]*[eE]$", text) if language in ("perl", "ruby") else None
        if text in options or glued:
            if i + 1 >= len(texts):
                return None
            given = command.words[i + 1]
            if given.fetched:
                _fetch_and_run(command, given.fetched)
            edits = language in ("perl", "ruby") and any(re.match(r"-[a-zA-Z0-9]*i", t) for t in texts)
            _scan(command, given.text, language)
            for word in command.words[i + 2 :]:
                command.touch("write" if edits else "read", word)
            return None
    parsed = parse(command.words, OTHER, stop=True)
    if not parsed.positional or parsed.positional[0].text == "-":
        feed = command.stdin
        if feed.fetched:
            _fetch_and_run(command, feed.fetched)
        elif feed.text is not None and feed.text.strip():
            _scan(command, feed.text, language)
        elif feed.piped:
            command.unknown("code that comes out of a pipe")
        else:
            here(command, "execute")
        return None
    if language == "powershell":
        command.unknown("the syntax of another shell")
    return _file(command, parsed.positional)


def _parted(words: list[Word], options: Sequence[str]) -> list[Word]:
    """`--eval=CODE` as two words."""
    parted: list[Word] = []
    for word in words:
        name, equals, _ = word.text.partition("=")
        if equals and name in options:
            parted += [Word((name,)), replace(word, texts=tuple(text.partition("=")[2] for text in word.texts))]
        else:
            parted.append(word)
    return parted


def _scan(command: Command, text: str, language: str) -> None:
    """Code of another language: read only where it calls nothing that acts."""
    state = command.beside(via=command.state.via | {"interpreter"})
    inner = replace(command, state=state)
    if len(text) > MOST_CODE:
        inner.unknown("more code than is read")
        command.reading.acts += unread(text[MOST_CODE:], state)
        text = text[:MOST_CODE]
    if language == "powershell" or UNKNOWN in text or RISKY.search(HARMLESS_REQUIRE.sub("", text)):
        inner.unknown(f"{language} code that may do anything")
        for path in re.findall(r"['\"]((?:/|~/|\.\./)[^'\"\n]{0,200})['\"]", text)[:8]:
            inner.touch("execute", Word((path.replace("~", "\ue003", 1) if path.startswith("~") else path,)))
        for quoted in re.findall(r"(?:system|exec\w*|spawn\w*|popen|qx)\s*\(?\s*['\"]([^'\"\n]{1,500})['\"]", text)[:4]:
            command.shell(quoted, state)
        return
    here(inner, "execute")
