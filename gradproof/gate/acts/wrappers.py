"""Programs that run other programs: sudo, env, timeout, xargs, ssh, nohup and similar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradproof.gate.acts.act import ActScope, ActTarget
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.knowledge import Deed, knowledge
from gradproof.gate.acts.options import parse
from gradproof.gate.acts.paths import ACTIVE, STAR, UNKNOWN, is_loopback, may_be_secret, unglobbed
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.word import Word, below

ASKS_NOTHING = ("-n", "--non-interactive", "-S", "--stdin", "-k", "-A")  # how sudo asks for a password


@reader("wrapper")
def wrapper(command: Command) -> Output | None:
    """Skips the wrapper's own options and words, and reads the rest as a command."""
    own = knowledge().wrappers[command.program]
    deed = Deed(values=frozenset(own.get("values", "").split()))
    parsed = parse(command.words, deed, stop=not own.get("anywhere"))
    state = command.beside()
    state.cwds, state.variables = command.state.cwds, command.state.variables
    if own.get("persists") and parsed.has(*own["persists"].split()):
        command.act("persist", "home" if parsed.has("--user") else "system")
    if parsed.has(*own.get("reads", "").split()):
        command.state = command.beside(via=command.state.via | {"privileged"})
        command.act("read", "local")
        return None
    if own.get("privileged"):
        state.via = state.via | {"privileged"}
        said = [f"{name} {value.text if value else ''}" for name, value in parsed.options if name not in ASKS_NOTHING]
        state.context = state.context | {f"{command.program} {text}" for text in said}
    words = parsed.positional
    folder = parsed.value(*own.get("chdir", "").split())
    if folder is not None:
        state.cwds = tuple(_folder(text) for text in folder.texts)
    code = parsed.value(*own.get("code", "").split())
    if code is not None:
        return command.shell(code.text, state, command.stdin)
    if own.get("assigns"):
        words = _assignments(command, words, state)
    words = words[own.get("skip", 0) :]
    if len(words) > 1 and words[0].text in own.get("code", "").split():  # `flock FILE -c CODE`
        return command.shell(words[1].text, state, command.stdin)
    if own.get("joined"):
        return command.shell(" ".join(word.text for word in words), state, command.stdin) if words else None
    if not words:
        if own.get("privileged") or own.get("shell"):
            command.state = state
            command.act("execute", "system" if own.get("privileged") else "local")
        if command.program == "env":  # all variables, among them those that hold tokens
            command.act("read", "local")
            return Output(secret=True, piped=True)
        return None
    return command.again(words, state)


def _folder(text: str) -> str:
    return text if text.startswith("/") else UNKNOWN


def _assignments(command: Command, words: list[Word], state) -> list[Word]:
    """`env A=b C=d program`."""
    from gradproof.gate.acts.variables import assigned

    while words and "=" in words[0].text and words[0].text.partition("=")[0].isidentifier():
        name, _, value = words[0].text.partition("=")
        state.context = state.context | {f"{name}={value}"}
        assigned(command.reading, name, [Word((value,), words[0].fetched, words[0].secret)], state)
        words = words[1:]
    return words


@reader("xargs")
def xargs(command: Command) -> Output | None:
    """The words come from what it is fed with."""
    deed = replace(
        command.deed,
        values=command.deed.values | frozenset({"-n", "-P", "-L", "-s", "-d", "-E", "-a", "--arg-file", "--max-procs"}),
    )
    deed = replace(deed, values=deed.values | {"-I", "-i", "--replace"}, flags={"-0": "read"})
    parsed = parse(command.words, deed, stop=True)
    words = parsed.positional or [Word(("echo",))]
    stdin = command.stdin
    for file in parsed.values("-a", "--arg-file"):
        acts = command.touch("read", file)
        stdin = Output(None, "", any(act.scope == "secret" for act in acts), True)
    if stdin.text is not None and UNKNOWN not in stdin.text:
        fed = [Word((piece,), stdin.fetched, stdin.secret) for piece in stdin.text.split()[:64]]
    else:
        fed = [Word(below(stdin.names) or (UNKNOWN,), stdin.fetched, stdin.secret)]
    mark = parsed.value("-I", "-i", "--replace")
    if mark is not None:
        texts = tuple(text for word in fed for text in word.texts)[:32] or (UNKNOWN,)
        words = [_replaced(word, mark.text or "{}", texts) for word in words]
    else:
        words = [*words, *fed]
    return command.again(words, stdin=replace(stdin, text=None))


def _replaced(word: Word, mark: str, texts: tuple[str, ...]) -> Word:
    if not any(mark in text for text in word.texts):
        return word
    return replace(word, texts=tuple(text.replace(mark, fed) for text in word.texts for fed in texts))


SSH_QUIET = frozenset(f"ssh -{letter} " for letter in "tTqvn46")


@reader("ssh")
def ssh(command: Command) -> Output | None:
    """A command on another machine; without one, a session there."""
    parsed = parse(command.words, command.deed, stop=True)
    for option in parsed.values("-o"):
        if option.text.lower().startswith(("proxycommand", "localcommand", "permitlocalcommand")):
            command.shell(option.text.partition("=")[2] or option.text.partition(" ")[2], command.beside())
    if not parsed.positional:
        return None
    host, *words = parsed.positional
    name = host.text.rsplit("@", 1)[-1].removeprefix("ssh://").split(":")[0].lower()
    scope: ActScope = "unknown" if UNKNOWN in name else "local" if is_loopback(name) else "remote"
    if scope == "unknown":
        command.act("execute", "unknown", ActTarget("host", name.replace(UNKNOWN, "?")))
    user = {f"ssh as {host.text.rpartition('@')[0].replace(UNKNOWN, '?')}"} if "@" in host.text else set()
    chosen = {f"ssh {flag} {value.text.replace(UNKNOWN, '?') if value else ''}" for flag, value in parsed.options}
    state = command.beside(
        via=command.state.via | {"elsewhere"},
        elsewhere=(scope, name.replace(UNKNOWN, "?")),
        cwds=(f"/{UNKNOWN}",),
        context=command.state.context | user | {option for option in chosen if option not in SSH_QUIET},
    )
    if command.stdin.secret or any(word.secret for word in words):
        command.act("send", scope, ActTarget("host", name), marks=("payload:secret",))
    elif "pipe" in command.state.via and command.stdin.text is None:
        command.act("send", scope, ActTarget("host", name))
    if any(flag in ("-L", "-R", "-D", "-N", "-f") for flag, _ in parsed.options) and not words:
        command.act("send", scope, ActTarget("host", name))
        return None
    if not words:
        feed = command.stdin
        if feed.text is not None:
            command.shell(feed.text, state)
            return None
        command.act("execute", scope, ActTarget("host", name))
        return None
    before = len(command.reading.acts)
    output = command.shell(" ".join(word.text for word in words), state, command.stdin)
    if len(command.reading.acts) == before:
        command.act("read", scope, ActTarget("host", name))
    return replace(output, text=None, fetched=name if scope == "remote" else "")


@reader("find")
def find(command: Command) -> Output | None:
    """Start folders, then tests and actions."""
    texts = command.texts
    tests = (i for i, text in enumerate(texts) if text in ("(", "!") or (text.startswith("-") and len(text) > 1))
    start = next(tests, len(texts))
    while start and texts[start - 1] in ("-H", "-L", "-P"):
        start -= 1
    roots = [word for word in command.words[:start] if word.text not in ("-H", "-L", "-P")] or [Word((".",))]
    names, paths = _asked(command.words, "-name", "-iname"), _asked(command.words, "-path", "-ipath", "-wholename")
    narrow = bool(names) and all(name.strip("*?") not in ("", ".") for name in names)
    listed = _joined(roots, [name for name in (*names, *paths) if may_be_secret(name)])
    inside = True
    for word in roots:
        inside &= all(act.scope in ("project", "temp") for act in command.touch("read", word))
    if not inside and listed:  # keys are looked for elsewhere
        command.touch("read", Word(listed))
    i = start
    while i < len(texts):
        if texts[i] == "-delete":
            for word in roots:
                _matched(command, word, narrow)
        elif texts[i] in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((j for j in range(i + 1, len(texts)) if texts[j] in (";", "+", "\\;")), len(texts))
            named = _joined(roots, names) if narrow else ()
            matched = listed or named or tuple(text for word in roots for text in _below(word, narrow))
            words = [_replaced(word, "{}", matched) for word in command.words[i + 1 : end]]
            command.again(words, stdin=Output())
            i = end
        elif texts[i] in ("-fprint", "-fprintf", "-fls", "-fprint0") and i + 1 < len(texts):
            command.touch("write", command.words[i + 1])
            i += 1
        i += 1
    if narrow and inside:
        return Output(names=_joined(roots, names), piped=True)
    return Output(names=(*listed, *(text for word in roots for text in word.texts)), piped=True)


def _asked(words: Sequence[Word], *tests: str) -> list[str]:
    """The patterns that names or paths are to match, without those that they are not to."""
    after = [i + 1 for i in range(len(words) - 1) if words[i].text in tests]
    wanted = [words[i] for i in after if words[i - 2].text not in ("!", "-not")]
    return [unglobbed(text) for word in wanted for text in word.texts]


def _joined(roots: Sequence[Word], patterns: Sequence[str]) -> tuple[str, ...]:
    """What a search in some folders by some patterns may find, as globs."""
    ends = [
        pattern.lstrip("*/").translate(ACTIVE) if "/" in pattern else pattern.translate(ACTIVE) for pattern in patterns
    ]
    return tuple(f"{text.rstrip('/')}/{end}" for word in roots for text in word.texts for end in ends)[:32]


def _below(word: Word, narrow: bool) -> list[str]:
    """What find hands to a command: files below a folder, or everything in it."""
    return [f"{text.rstrip('/')}/{STAR}{'.match' if narrow and text != '/' else ''}" for text in word.texts]


def _matched(command: Command, word: Word, narrow: bool) -> None:
    for text in _below(word, narrow):
        command.touch("delete", Word((text,)), folder=not narrow)


@reader("locate")
def locate(command: Command) -> Output | None:
    """Names of files anywhere: those of well-known secrets are looked for to be read."""
    words = parse(command.words, command.deed).positional
    listed = _joined([Word(("/",))], [word.text for word in words if may_be_secret(word.text)])
    if not listed:
        command.act("read", "local")
        return None
    command.touch("read", Word(listed))
    return Output(names=listed, piped=True)


RUNS = ("-x", "--exec", "-X", "--exec-batch")


@reader("fd")
def fd(command: Command) -> Output | None:
    """A pattern, folders, and a command for what is found in them."""
    texts = command.texts
    at = next((i for i, text in enumerate(texts) if text in RUNS), len(texts))
    words = parse(command.words[:at], command.deed).positional
    pattern, roots = words[:1], words[1:] or [Word((".",))]
    if parse(command.words[:at], command.deed).has("-e", "--extension") and len(words) == 1:
        pattern = []
    narrow = bool(pattern and pattern[0].text.strip(".*")) or "-e" in texts or "--extension" in texts
    listed = _joined(roots, [word.text for word in pattern if may_be_secret(word.text)])
    for word in roots:
        acts = command.touch("read", word)
        if listed and any(act.scope not in ("project", "temp") for act in acts):
            command.touch("read", Word(listed))
    if at < len(texts):
        matched = listed or tuple(text for word in roots for text in _below(word, narrow))
        given = [_replaced(word, "{}", matched) for word in command.words[at + 1 :] if word.text != ";"]
        command.again(given if given != command.words[at + 1 :] else [*given, Word(matched)], stdin=Output())
    return Output(names=listed or tuple(text for word in roots for text in word.texts), piped=True)


@reader("parallel")
def parallel(command: Command) -> Output | None:
    """GNU parallel: a command, `:::`, its arguments."""
    texts = command.texts
    end = next((i for i, text in enumerate(texts) if text.startswith(":::")), len(texts))
    given = command.words[end + 1 :]
    fed = tuple(text for word in given for text in word.texts)[:32] or below(command.stdin.names) or (UNKNOWN,)
    words = parse(command.words[:end], Deed(values=frozenset({"-j", "--jobs", "-n", "-N"})), stop=True).positional
    if not words:
        return None
    if len(words) == 1 and " " in words[0].text:
        for text in fed:
            inner = words[0].text
            command.shell(inner.replace("{}", text) if "{}" in inner else f"{inner} {text}", command.beside())
        return None
    marked = [_replaced(word, "{}", fed) for word in words]
    return command.again(marked if marked != words else [*words, Word(fed)])
