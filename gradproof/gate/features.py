"""The features of an act beyond its letters, as numbers.

Letters tell how a command is written; features tell what it does and what belongs together in it:

    wget -O /usr/lib/a.py http://10.0.0.1/a.py    write, system, write in system, wget, path, in /usr, in /usr/lib;
                                                  wget with -O, with a URL of an address; -O before in /usr; …

They come from the act as it was read (`acts/`), its effect, scope, target and way, and from the words of its one
command. `line` writes an act for the store, `features` reads that line again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np

from gradproof.gate.acts.act import Act

NUMBERS = 2**20
MARK = "act: "
MOST_WORDS, MOST_LETTERS = 96, 120  # of a command, of a field
WORD = re.compile(r"""https?://[^\s'"|;&<>()]+|[\w./~$*{}%+@:,=\-\\]+|[|;&<>()`]+""")
ADDRESS, NUMBER, DIGITS = re.compile(r"\d+(?:\.\d+){3}"), re.compile(r"[\d.:,+-]+"), re.compile(r"\d+")
ENDING, NAME = re.compile(r"\.\w{1,5}$"), re.compile(r"[^.]+\.[a-zA-Z]\w{0,4}")
SPACE = re.compile(r"\s+")


def line(act: Act) -> str:
    """An act in one line."""
    target = act.target
    marks = sorted(mark for mark in act.marks if not mark.startswith("where:"))
    how = " ".join((*(f"via:{via}" for via in sorted(act.via)), *(f"mark:{mark}" for mark in marks)))
    why = act.why.split(":")[0]
    fields = (act.effect, act.scope, act.program, act.verb, target.kind, str(target), how, why)
    return MARK + "\t".join(SPACE.sub(" ", field[: 2 * MOST_LETTERS])[:MOST_LETTERS] for field in fields)


def features(text: str) -> np.ndarray:
    """feature_H, ascending, each number once: of a text that ends in such a line; none of any other."""
    return np.array(sorted({number for _, number in named_features(text)}), dtype=np.int64)


def named_features(text: str) -> Iterator[tuple[str, int]]:
    """Each feature and its number."""
    said, _, act = text.rpartition(f"\n{MARK}")
    if not said:
        return
    effect, scope, program, verb, kind, target, how, why, *_ = (*act.split("\t"), *[""] * 8)
    for name in {*_of_act(effect, scope, program, verb, kind, target, how.split(), why), *_said(said, program)}:
        yield name, crc32(name.encode()) % NUMBERS


def _of_act(
    effect: str, scope: str, program: str, verb: str, kind: str, target: str, how: Sequence[str], why: str
) -> Iterator[str]:
    yield from (
        effect,
        scope,
        f"{effect} in {scope}",
        f"by {program}",
        f"by {program} {verb}",
        f"{program} to {effect}",
    )
    yield f"{effect} {kind}"
    for way in how:
        yield from (way, f"{effect} in {scope} {way}")
    if why:
        yield f"unknown: {why}"
    if kind == "path":
        parts = target.split("/")
        for n in (2, 3, 4):
            if len(parts) >= n:
                yield from ((within := f"in {'/'.join(parts[:n])}"), f"{effect} {within}")
        yield f"path {target}"
        for ending in _ending(target):
            yield from (ending, f"{effect} {ending}")


def _said(said: str, program: str) -> frozenset[str]:
    """Of a tool's arguments, which are the same for all acts of a call, no more than once."""
    return _of_tool(said) if not said.startswith("Bash\n") else frozenset(_of_words(said, program))


@lru_cache(4)
def _of_tool(said: str) -> frozenset[str]:
    return frozenset(_of_words(said, ""))


def _of_words(said: str, program: str) -> Iterator[str]:
    """The words of a command or of a tool's arguments: what sorts they are, and which stand together. What stands
    before the program, such as sudo, is told by the act."""
    tool, *lines = said.split("\n")
    for argument in lines:
        name, _, value = argument.partition(": ")
        words = WORD.findall(value.replace("↵", " "))[:MOST_WORDS]
        if tool == "Bash":
            names = [word.rsplit("/", 1)[-1] for word in words]
            before, words = f"runs {program}", words[names.index(program) + 1 if program in names else 0 :]
        else:
            program = before = f"{tool} {name}"
        yield before
        for word in words:
            own = sorts(word)
            for sort in own:
                yield from (f"word {sort}", f"{program} with {sort}", f"{before} before {sort}")
            before = own[0]


def sorts(word: str) -> list[str]:
    """What an argument is, the most general first; at least one."""
    if "://" in word:
        host, _, path = word.split("://", 1)[1].partition("/")
        strange = ADDRESS.match(host) or host.startswith("$")
        return ["url", "url of an address" if strange else "url of a name", *(f"url {end}" for end in _ending(path))]
    if ADDRESS.match(word):
        return ["address"]
    if NUMBER.fullmatch(word):
        return ["number"]
    plain = DIGITS.sub("0", word)
    if word.startswith(("/", "~", "$HOME")):
        folders = word.split("/")
        within = [f"in {'/'.join(folders[:n])}" for n in (2, 3) if len(folders) >= n] or [word]
        return [*within, *([plain] if len(folders) > 3 else []), *_ending(word)]
    if word.startswith("-"):
        return [plain.partition("=")[0]]
    if "/" in word:
        return ["near", *_ending(word)]
    return [plain, *(_ending(word) if NAME.fullmatch(word) else [])]


def _ending(path: str) -> list[str]:
    match = ENDING.search(path)
    return [f"ends in {match[0]}"] if match else []
