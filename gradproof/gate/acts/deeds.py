"""Deeds: what effects.toml says of a program, applied to the words of a command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.command import READERS, Command, replace_words
from gradproof.gate.acts.knowledge import Deed, WordPart
from gradproof.gate.acts.options import QUIET, Parsed, parse
from gradproof.gate.acts.paths import TILDE, UNKNOWN, looks_like_path
from gradproof.gate.acts.places import here, locate
from gradproof.gate.acts.printed import printed
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.word import Word

ASKS_ITSELF = {"--version", "--help", "-V", "-h", "version", "help", "--usage", "-help"}
LISTS = {"ls", "ll", "la", "dir", "tree", "du", "exa", "eza", "lsd"}  # the folder they run in, where none is named
LABELLED = ("bazel", "bazelisk", "buck2", "pants")  # to which //src is no path


def perform(command: Command, deed: Deed) -> Output | None:
    """What the knowledge says that this command does."""
    command.deed = deed
    if asks_itself(command):
        return None
    if deed.reader:
        return READERS[deed.reader](command)
    if deed.verbs:
        return _verb(command, deed)
    return apply(command, deed, parse(command.words, deed))


def asks_itself(command: Command) -> bool:
    """`--version`, `--help`: a program that only tells about itself."""
    texts = command.texts
    if texts and len(texts) <= 2 and texts[-1] in ASKS_ITSELF:
        command.act("read", "local")
        return True
    return False


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
    if asks_itself(command):
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
