"""Programs: from the words of a command to its effects, according to effects.toml.

A few programs take other commands, code or a language of their own as arguments; READERS has a function for each.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.acts.act import NOTHING, Act, ActScope, ActTarget, Effect
from gradproof.gate.acts.knowledge import Deed, WordPart, knowledge
from gradproof.gate.acts.options import HARMLESS, LOUD, QUIET, SAME, Parsed, parse
from gradproof.gate.acts.paths import (
    TILDE,
    UNKNOWN,
    from_home,
    is_loopback,
    looks_like_path,
    place,
    unglobbed,
    within,
)
from gradproof.gate.acts.shell import Reading
from gradproof.gate.acts.shell_state import MOST_HELD, NO_INPUT, Output, State
from gradproof.gate.acts.targets import WORK_OF_ACT, fetch_and_run, of_url, resolved, touch
from gradproof.gate.acts.word import Word

MOST_WORDS = 256


BIN = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/", "/usr/local/sbin/", "/opt/homebrew/bin/")


BIN += ("/usr/libexec/", "/System/Library/")


SERVICES = ("/etc/init.d/", "/etc/rc.d/", "/usr/local/etc/rc.d/")  # scripts that take start, stop and the like


ASKS_ITSELF = {"--version", "--help", "-V", "-h", "version", "help", "--usage", "-help"}


HARMLESS_TEXT = {"date", "whoami", "nproc", "uname", "arch", "tput", "wc", "seq", "hostname", "stat", "du", "getconf"}


SHARED = (
    "main",
    "master",
    "develop",
    "development",
    "trunk",
    "production",
    "prod",
    "staging",
    "stable",
    "release",
    "HEAD",
)


LISTS = {"ls", "ll", "la", "dir", "tree", "du", "exa", "eza", "lsd"}  # the folder they run in, where none is named


COPIES = ("cp", "mv", "ln", "install", "rsync")


LABELLED = ("bazel", "bazelisk", "buck2", "pants")  # to which //src is no path


FILTERS = {"grep", "egrep", "fgrep", "sort", "head", "tail", "uniq"}  # print some of the lines that they read


CommandReader = Callable[["Command"], "Output | None"]


READERS: dict[str, CommandReader] = {}


BUILTINS: dict[str, CommandReader] = {}


def reader(name: str) -> Callable[[CommandReader], CommandReader]:
    """Makes a function the reader of that name in effects.toml."""

    def keep(function: CommandReader) -> CommandReader:
        READERS[name] = function
        return function

    return keep


def builtin(*names: str) -> Callable[[CommandReader], CommandReader]:
    def keep(function: CommandReader) -> CommandReader:
        BUILTINS.update(dict.fromkeys(names, function))
        return function

    return keep


@dataclass
class Command:
    """One command as it is run: the program, its words, what it is fed with."""

    reading: Reading
    program: str
    words: list[Word]
    state: State
    stdin: Output = NO_INPUT
    walk: Any = None
    deed: Deed = field(default_factory=Deed)
    verb: str = ""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    def act(
        self, effect: Effect, scope: ActScope, target: ActTarget = NOTHING, *, marks: Sequence[str] = (), why: str = ""
    ) -> Act:
        """Adds an act; where the command runs elsewhere, its scope is there."""
        if self.state.elsewhere is not None and scope not in ("unknown", "remote"):
            scope, host = self.state.elsewhere
            target = ActTarget("host", host, target.folder, target.amount, str(target) if target.name else "")
        if scope == "local" and target.kind == "host" and _is_port(target.within, self.reading.around.port):
            scope = "own"
        self.reading.pay(WORK_OF_ACT)
        done = Act(effect, self.program, scope, self.verb, target, self.state.via, frozenset(marks), why)
        self.reading.acts.append(done)
        return done

    def unknown(self, why: str) -> None:
        self.reading.unknown(self.program, why, self.state)

    def touch(self, effect: Effect, word: Word, *, folder: bool = False, marks: Sequence[str] = ()) -> list[Act]:
        """An act on a path."""
        return touch(self.reading, effect, self.program, word, self.state, verb=self.verb, folder=folder, marks=marks)

    def said(self, word: Word) -> str:
        """A word as a program prints it: with the home that ~ stands for, which is not known elsewhere."""
        if len(word.texts) != 1 or (self.state.elsewhere is not None and word.texts[0].startswith(TILDE)):
            return UNKNOWN
        return unglobbed(from_home(word.texts[0], self.reading.around.home))

    def explain(self, *words: Word | None) -> None:
        """These words are what an act says already; a correction does not compare them once more."""
        self.reading.explained.update(text for word in words if word is not None for text in word.texts)

    def shell(self, text: str, state: State | None = None, stdin: Output = NO_INPUT) -> Output:
        return self.reading.shell(text, state or self.state, stdin)

    def again(self, words: Sequence[Word], state: State | None = None, stdin: Output | None = None) -> Output:
        """Runs other words as a command: what a wrapper wraps."""
        if not words:
            return Output()
        return run(self.reading, list(words), state or self.state, self.stdin if stdin is None else stdin, self.walk)

    def beside(self, **changes: Any) -> State:
        """A state of its own, with changes."""
        return replace(self.state.copy(), **changes)


def _is_port(within: str, port: int) -> bool:
    """Whether what is reached on this machine is the gate's own port."""
    return bool(port) and (within == f":{port}" or within.startswith(f":{port}/"))


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
        _carry_over(command)
    _detail(command, before)
    reading.explained = around
    acts = reading.acts[before:]
    if printed is None:
        return Output.of(acts, stdin)
    return printed


def _carry_over(command: Command) -> None:
    """What a file holds that this call wrote or fetched, its copy holds as well."""
    state = command.state
    if not state.written and not state.fetched:
        return
    *sources, destination = [word for word in command.words if not word.text.startswith("-")] or [Word()]
    for path in (path for word in sources for path in resolved(command.reading, word, state)):
        for copy in resolved(command.reading, destination, state):
            for there in (copy, f"{copy}/{path.rpartition('/')[2]}"):
                if path in state.written:
                    state.written[there] = state.written[path]
                if host := fetched_from(state, path):
                    state.fetched[there] = host


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
            command.act(*says[word.text], ActTarget("none", word.text))
    if not acts:
        command.act("execute", "unknown", why="a program without a name")
    for word in arguments:
        _argument(command, word, "execute")


RECIPES = frozenset(  # files that say what a program of a folder runs
    (
        *(
            "Makefile",
            "makefile",
            "GNUmakefile",
            "justfile",
            "Taskfile.yml",
            "Rakefile",
            "CMakeLists.txt",
            "package.json",
        ),
        *("setup.py", "pyproject.toml", "conftest.py", "build.gradle", "pom.xml", "build.rs", "Cargo.toml", "tox.ini"),
    )
)


def recipe_from(state: State, folder: str) -> str:
    """The host that a folder came from in this call, or the file that says what is run there."""
    recipes = (host for path, host in state.fetched.items() if path.rpartition("/")[0] == folder and _is_recipe(path))
    return fetched_from(state, folder) or next(recipes, "")


def _is_recipe(path: str) -> bool:
    return path.rpartition("/")[2] in RECIPES


def fetched_from(state: State, path: str) -> str:
    """The host that a file, or a folder that it lies in, came from in this call."""
    if not state.fetched:
        return ""
    return next((host for known, host in state.fetched.items() if within(path, known)), "")


def replace_words(command: Command, words: list[Word], state: State, program: str) -> Command:
    return Command(command.reading, program, words, state, command.stdin, command.walk)


def _strange(command: Command) -> Output | None:
    """A program that nobody knows: it runs, with the scope of its arguments."""
    if _asks_itself(command):
        return None
    scope: ActScope = "project" if command.reading.around.project else "local"
    command.act("execute", scope)
    for word in command.words:
        _argument(command, word, "execute")
    return None


def _argument(command: Command, word: Word, effect: Effect) -> None:
    """A word of a program that is not known: a path, a URL or a host lends it its scope."""
    text = word.text
    value = text.partition("=")[2] if text.startswith("-") else text
    if not word.known:
        command.act(effect, "unknown", why="an argument that is made while the call runs")
    elif "://" in value:
        target, scope = of_url(value)
        command.act(effect, scope, target)
    elif looks_like_path(word.texts[0]) and not text.startswith("-") and " " not in text:
        command.touch(effect, word)
    elif value.startswith(("/", "~", "../")) and " " not in value:
        command.touch(effect, Word((TILDE + value[1:] if value.startswith("~") else value,)))


def _asks_itself(command: Command) -> bool:
    """`--version`, `--help`: a program that only tells about itself."""
    texts = command.texts
    if texts and len(texts) <= 2 and texts[-1] in ASKS_ITSELF:
        command.act("read", "local")
        return True
    return False


def perform(command: Command, deed: Deed) -> Output | None:
    """What the knowledge says that this command does."""
    command.deed = deed
    if _asks_itself(command):
        return None
    if deed.reader:
        return READERS[deed.reader](command)
    if deed.verbs:
        return _verb(command, deed)
    return apply(command, deed, parse(command.words, deed))


def _verb(command: Command, deed: Deed) -> Output | None:
    """The verb is the first word that is not an option, or the first two."""
    parsed = parse(command.words, deed, stop=True)
    words = parsed.positional
    texts = [word.text for word in words[:3]]
    for size in (3, 2, 1):
        verb = " ".join(texts[:size])
        if len(texts) >= size and verb in deed.verbs:
            command.verb, command.words = verb, words[size:]
            break
    else:
        size, verb = min(1, len(texts)), "*" if texts else ""
        command.verb, command.words = " ".join(texts[:1]).replace(UNKNOWN, "?"), words[size:]
    inner = deed.verbs.get(verb)
    turned = any(name in deed.flags for name, _ in parsed.options)
    if deed.effect is not None and (turned or (not texts and parsed.options)):
        return apply(command, replace(deed, verbs={}), parsed)
    if inner is None:
        if not texts:
            command.act("read", "local")
            return None
        strange = Deed(effect="execute", scope="project", args=(WordPart("execute", "path", True),))
        inner = deed.verbs.get("*", replace(deed, verbs={}) if deed.effect is not None else strange)
    _options(command, deed, parsed)
    there = parsed.value("-H", "--host", "-c", "--context") if command.program in ("docker", "podman") else None
    if there is not None and there.text not in ("default", "desktop-linux", "colima", "orbstack"):
        command.state = command.beside(elsewhere=("remote", there.text))
    if parsed.options:
        command.state = command.beside(context=command.state.context | _leading(parsed))
    command.deed = inner
    if _asks_itself(command):
        return None
    if inner.reader:
        return READERS[inner.reader](command)
    return apply(command, inner, parse(command.words, inner))


def _leading(parsed: Parsed) -> frozenset[str]:
    """Options before a verb: a context, a profile, a folder."""
    return frozenset(f"{name}={value.text if value else ''}" for name, value in parsed.options if name not in QUIET)


def apply(command: Command, deed: Deed, parsed: Parsed) -> Output | None:
    """Effects of the words by their places, of the options, and of the whole."""
    effect_of, place_of = _turned(command, deed, parsed)
    folder = any(name in deed.folder for name, _ in parsed.options)
    marks = marked(deed, parsed)
    before = len(command.reading.acts)
    _options(command, deed, parsed)
    if deed.effect == "execute":
        lead_out(command, deed, parsed)
    for part, word in assigned_parts(deed.args, parsed.positional):
        _part(command, part, word, effect_of, folder, marks)
    for word in command.words if deed.says else ():
        if word.text in deed.says:
            command.act(*deed.says[word.text], ActTarget("none", word.text), marks=marks)
    if deed.effect is None and before == len(command.reading.acts):
        if _should_act(command, deed):
            command.unknown("what it acts on was not found")
        elif command.program in LISTS and not parsed.positional:
            here(command, "read")
    if deed.effect is not None:
        effect: Effect = effect_of or deed.effect
        scope = place_of or deed.scope or "project"
        if scope == "project":
            here(command, effect, marks)
        else:
            command.act(effect, scope, ActTarget("none", deed.target), marks=marks)
    sent_along(command, parsed, before)
    return printed(command, parsed)


def _turned(command: Command, deed: Deed, parsed: Parsed) -> tuple[Effect | None, ActScope | None]:
    """The effect that flags, an assignment or the lack of words turn this into; what changes something comes first."""
    flags = [name for name, _ in parsed.options if name in deed.flags]
    flags.sort(key=lambda name: deed.flags[name] == "read")
    if deed.assignment is not None and any("=" in word.text for word in parsed.positional):
        return deed.assignment, None
    if flags:
        return deed.flags[flags[0]], deed.flag_scopes.get(flags[0])
    if deed.alone is not None and not parsed.positional:
        return deed.alone
    if _looks_up(deed) and any(word.substituted or not word.known for word in parsed.positional):
        return "send", None
    return None, None


def _looks_up(deed: Deed) -> bool:
    """Asks hosts, and does nothing else: whatever a name or address is made of reaches them."""
    parts = [part for part in deed.args if part.effect is not None]
    return bool(parts) and all(part.effect == "read" and part.kind in ("host", "url") for part in parts)


def sent_along(command: Command, parsed: Parsed, first: int) -> None:
    """What is sent by a command that reads a secret, or is given one, carries it."""
    acts = command.reading.acts
    if not any(act.effect == "send" for act in acts[first:]):
        return
    hidden = command.stdin.secret or any(word.secret for word in parsed.positional)
    if hidden or any(act.effect == "read" and act.scope == "secret" for act in acts[first:]):
        secret = frozenset({"payload:secret"})
        acts[first:] = [act.but(marks=act.marks | secret) if act.effect == "send" else act for act in acts[first:]]


def _should_act(command: Command, deed: Deed) -> bool:
    """A program that changes things was given words, but nothing that it changes was found among them."""
    changes = any(part.effect not in (None, "read") for part in deed.args)
    return changes and any(not text.startswith(("/dev/", "-")) for text in command.texts)


def marked(deed: Deed, parsed: Parsed) -> list[str]:
    return [f"flag:{name.lstrip('-')}" for name, _ in parsed.options if name in deed.marks]


def here(command: Command, effect: Effect, marks: Sequence[str] = ()) -> None:
    """An act on the folder that the command runs in."""
    if command.state.elsewhere is not None:
        command.act(effect, "local", marks=marks)
        return
    for cwd in command.state.cwds:
        if not cwd:
            stays: ActScope = "project" if effect in ("read", "write") else "outside"
            command.act(effect, stays, ActTarget("path", "."), marks=marks)
            continue
        if UNKNOWN in cwd:
            command.act(effect, "unknown", ActTarget("path", "?"), marks=marks)
            continue
        if effect in ("execute", "install") and (host := recipe_from(command.state, cwd)):
            command.reading.acts.append(fetch_and_run(command.program, host, command.state))
            continue
        around = command.reading.around
        inside = around.project and within(cwd, around.project)
        located = place(cwd, effect if not inside else "write", around, cwd)
        if located is not None:
            command.act(effect, "project" if inside else located[1], located[0], marks=marks)


def _options(command: Command, deed: Deed, parsed: Parsed) -> None:
    for name, value in parsed.options:
        if value is None:
            continue
        part = deed.options.get(name)
        if part is not None:
            _part(command, part, value, None, False, ())
        elif name.startswith("--out") and name not in deed.values and looks_like_path(value.texts[0]):
            command.touch("write", value)


def lead_out(command: Command, deed: Deed, parsed: Parsed) -> None:
    """What a program that runs code is pointed to outside the project, by options that nobody knows. System folders
    apart: compilers and libraries lie there."""
    given = [value for name, value in parsed.options if value is not None and name not in deed.options]
    for word in given if deed.args else [*given, *parsed.positional]:
        path = word.text
        label = command.program in LABELLED and path.startswith("//")
        if not word.known or label or not word.starts("/", "~", "../") or " " in path:
            continue
        before = len(command.reading.acts)
        command.touch("execute", Word((TILDE + path[1:] if path.startswith("~") else path,)))
        kept = [act for act in command.reading.acts[before:] if act.scope in ("home", "outside", "secret", "own")]
        command.reading.acts[before:] = kept


def assigned_parts(parts: Sequence[WordPart], words: Sequence[Word]) -> Iterator[tuple[WordPart, Word]]:
    """Which word is what: a part with * takes what the parts behind it leave."""
    parts = list(parts)
    for at, part in enumerate(parts):
        if part.many:
            behind = len(parts) - at - 1
            end = max(at, len(words) - behind)
            yield from ((part, word) for word in words[at:end])
            yield from zip(parts[at + 1 :], words[end:], strict=False)
            return
        if at >= len(words):
            return
        yield part, words[at]


def _part(
    command: Command, part: WordPart, word: Word, effect_of: Effect | None, folder: bool, marks: Sequence[str]
) -> None:
    if part.kind == "command":
        command.again(command.words[command.words.index(word) :] if word in command.words else [word])
        return
    if part.kind == "code":
        READERS["code"](replace_words(command, [word], command.state, "sh"))
        return
    if part.effect is None:
        return
    effect = effect_of if effect_of is not None and part.effect in ("read", "write") else part.effect
    locate(command, effect, part.kind, word, folder, marks)


def locate(
    command: Command, effect: Effect, kind: str, word: Word, folder: bool = False, marks: Sequence[str] = ()
) -> None:
    """An act on what a word of some kind names."""
    if kind in ("path", "folder"):
        command.touch(effect, word, folder=folder or kind == "folder", marks=marks)
        return
    command.reading.explained.update(word.texts)
    for text in word.texts:
        text = unglobbed(text)
        if kind == "host" and text.startswith("+"):  # dig's options
            continue
        if UNKNOWN in text and kind not in ("package", "name", "process"):
            command.act(effect, "unknown", ActTarget("none", text.replace(UNKNOWN, "?")), marks=marks)
        elif kind == "url":
            target, scope = of_url(text)
            command.act(effect, scope, target, marks=marks)
        elif kind in ("host", "hostpath"):
            of_host(command, effect, text, kind, marks)
        elif kind == "process":
            everything = text in ("-1", "0", ".", ".*", "*", "1")
            scope = "unknown" if UNKNOWN in text else "root" if everything else "local"
            command.act(effect, scope, ActTarget("process", text.replace(UNKNOWN, "?")), marks=marks)
        elif kind == "device":
            command.act(effect, "device", ActTarget("path", text), marks=marks)
        elif kind == "resource":
            command.act(effect, "remote", ActTarget("resource", text), marks=marks)
        elif kind in ("service", "user"):
            command.act(effect, "system", ActTarget("resource", text), marks=marks)
        elif kind == "package":
            command.act(effect, "system", ActTarget("package", text.replace(UNKNOWN, "?")), marks=marks)
        elif kind == "container":
            command.act(effect, "local", ActTarget("resource", text), marks=marks)
        elif kind == "database":
            target, scope = of_url(text) if "://" in text else (ActTarget("table", text), "local")
            command.act(effect, scope, target, marks=marks)
        else:
            command.act(effect, "local", ActTarget("none", text), marks=marks)


def of_host(command: Command, effect: Effect, text: str, kind: str, marks: Sequence[str] = ()) -> None:
    """`user@host`, `host:path`; without a colon, `hostpath` is a path here."""
    if kind == "hostpath" and "://" not in text:
        host, colon, inner = text.partition(":")
        if not colon or "/" in host:
            command.touch("read" if effect == "read" else "write", Word((text,)), folder=False, marks=marks)
            return
        host = host.rsplit("@", 1)[-1]
        scope: ActScope = "local" if is_loopback(host) else "remote"
        command.act(effect, scope, ActTarget("host", host.lower(), within=inner), marks=marks)
        return
    target, scope = of_url(text)
    command.act(effect, scope, target, marks=marks)


# what is printed


def printed(command: Command, parsed: Parsed) -> Output | None:
    """The text that a command prints, for the few whose text is known."""
    name, words, stdin = command.program, parsed.positional, command.stdin
    if name == "cat" and (not words or [word.text for word in words] == ["-"]):
        return stdin
    if name == "cat":
        return held(command, words)
    if name == "tee":
        for word in words:
            for path in resolved(command.reading, word, command.state):
                if stdin.fetched:
                    command.state.fetched[path] = stdin.fetched
                elif stdin.text is not None:
                    kept = command.state.written.get(path, "") if parsed.has("-a", "--append") else ""
                    command.state.written[path] = (kept + stdin.text)[:MOST_HELD]
        return stdin
    if name == "base64" and parsed.has("-d", "--decode", "-D") and stdin.text is not None and not words:
        return replace(stdin, text=_decoded(stdin.text), substituted=True)
    if name == "mktemp":
        return Output("/tmp/tmp.0000", piped=True)
    if name in ("basename", "dirname", "realpath", "readlink") and words and words[-1].known:
        return Output(_path_text(command, name, command.said(words[0])), piped=True)
    if name in HARMLESS_TEXT and all(word.known and not set("./~") & set(word.text) for word in words):
        return Output("0", piped=True)
    if name in FILTERS and stdin.names and not parsed.has("-o", "-c", "--only-matching", "--bytes"):
        return stdin
    if name == "ls" and not parsed.has("-l"):
        home = command.reading.around.home
        names = tuple(unglobbed(from_home(text, home)) for word in words for text in word.texts)
        return Output(names=names or (".",), piped=True)
    if name in ("which",) and len(words) == 1 and words[0].known:
        return Output(words[0].text, piped=True)
    return None


def held(command: Command, words: Sequence[Word]) -> Output | None:
    """The text of files, where this call wrote or fetched them."""
    state, texts = command.state, []
    for word in words:
        paths = resolved(command.reading, word, state)
        host = next((host for path in paths if (host := fetched_from(state, path))), "")
        if host:
            return Output(None, host, False, True)
        if len(paths) != 1 or paths[0] not in state.written:
            return None
        texts.append(state.written[paths[0]])
    return Output("".join(texts), piped=True) if sum(map(len, texts)) <= MOST_HELD else None


def _decoded(text: str) -> str | None:
    try:
        return base64.b64decode("".join(text.split()), validate=False).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None


def _path_text(command: Command, name: str, text: str) -> str | None:
    if UNKNOWN in text:
        return None
    if name == "basename":
        base = text.rstrip("/").rsplit("/", 1)[-1]
        return None if base in (".", "..", "") else base
    if name == "dirname":
        return text.rstrip("/").rsplit("/", 1)[0] if "/" in text.rstrip("/") else "."
    paths = resolved(command.reading, Word((text,)), command.state)
    return paths[0] if len(paths) == 1 else None


# builtins


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
