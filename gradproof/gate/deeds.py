"""What the commands of a call do, as numbers: programs, the sorts of their arguments, and which stand together.

Letters tell how a call is written; deeds tell what belongs together in it, wherever it stands:

    wget -O /usr/lib/a.py http://10.0.0.1/a.py    runs wget; wget with -O, in /usr, in /usr/lib, ends in .py, a URL,
                                                  a URL of an address; -O before in /usr; …

A path is known by its first folders and its ending, a URL by whether its host has a name, a number is any number. An
argument of a tool that is no shell is an argument of that tool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from zlib import crc32

import numpy as np

NUMBERS = 2**17
WORD = re.compile(r"""https?://[^\s'"|;&<>()]+|[\w./~$*{}%+@:,=\-\\]+|[|;&<>()`]+""")
ADDRESS, NUMBER, DIGITS = re.compile(r"\d+(?:\.\d+){3}"), re.compile(r"[\d.:,+-]+"), re.compile(r"\d+")
ENDING, NAME = re.compile(r"\.\w{1,5}$"), re.compile(r"[^.]+\.[a-zA-Z]\w{0,4}")
ASSIGNED = re.compile(r"[^\W\d]\w*=")
WRAPPERS = {"sudo", "env", "nohup", "time", "command", "exec", "nice"}  # the program comes after them
SHELL = {"command", "cmd", "script", "shell"}  # arguments that are command lines


def deeds(text: str) -> np.ndarray:
    """deed_H, ascending: each number once; of a text as `calls.text` writes it. Where a call stands and what came
    before it are no deeds of its own."""
    tool, *lines = text.split("\n")
    done: set[str] = set()
    for line in lines:
        name, colon, value = line.partition(": ")
        if colon and name[:1] not in ("@", "<", ""):
            done.update(_done(value.replace("↵", " ; "), None if name in SHELL else f"{tool} {name}"))
    return np.array(sorted({crc32(deed.encode()) % NUMBERS for deed in done}), dtype=np.int64)


def _done(line: str, program: str | None) -> Iterator[str]:
    """The deeds of a command line; of an argument, where the program is given."""
    first, before, ran = program, "", ""
    for word in WORD.findall(line):
        if word[0] in "|;&()`<>":
            yield f"mark {word}"
            before = f"mark {word}"
            program = program if word[0] in "<>" else first
        elif program is None and word[0] != "-" and not ASSIGNED.match(word):
            name = word.rsplit("/", 1)[-1]
            yield f"runs {name}"
            before = f"runs {name}"
            if name not in WRAPPERS:
                yield f"{ran} then {name}"
                program = ran = name
        else:
            own = sorts(word)
            for sort in own:
                yield f"word {sort}"
                yield f"{program} with {sort}"
                yield f"{before} before {sort}"
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
