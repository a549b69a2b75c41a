"""Splits the words of a command into options with their values and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradproof.gate.acts.knowledge import Deed
from gradproof.gate.acts.paths import (
    UNKNOWN,
)
from gradproof.gate.acts.word import Word

QUIET = frozenset(
    [
        "-v",
        "--verbose",
        "-q",
        "--quiet",
        "--silent",
        "--no-pager",
        "--color",
        "--no-color",
        "--progress",
        "--no-progress",
        "--loglevel",
        "-y",
        "--yes",
        "--assume-yes",
        "--non-interactive",
        "-auto-approve",
    ]
)


LOUD = {"docker": frozenset(["-v"])}  # flags that are not what they are elsewhere: `docker rm -v` removes volumes


HARMLESS = {  # flags that do not change what a program does to its target
    "rm": frozenset(["-r", "-R", "--recursive", "-f", "--force", "-d", "--dir", "-i"]),
    **dict.fromkeys(
        ("cp", "mv", "ln", "mkdir", "chmod", "chown"),
        frozenset(["-f", "--force", "-p", "-n", "-i", "-R", "-r", "--recursive", "--parents"]),
    ),
    "curl": frozenset(
        [
            "-s",
            "-S",
            "-f",
            "-L",
            "-i",
            "--silent",
            "--show-error",
            "--fail",
            "--location",
            "--compressed",
            "--fail-with-body",
            "--include",
            "-sS",
            "-fsSL",
        ]
    ),
    "wget": frozenset(["-nv", "--no-verbose", "-c", "--continue"]),
    "rsync": frozenset(
        [
            "-a",
            "--archive",
            "-z",
            "--compress",
            "-h",
            "--human-readable",
            "-r",
            "-t",
            "--times",
            "-l",
            "--links",
            "--partial",
            "-P",
            "--stats",
        ]
    ),
    "scp": frozenset(["-C", "-p", "-r", "-B"]),
    "git": frozenset(
        ["-u", "--set-upstream", "-D", "-d", "--delete", "-f", "--force", "--hard"]
    ),  # what they do is in the acts
    "cat": frozenset(["-n", "-b", "-A", "-e", "-s"]),
    "docker": frozenset(["-t", "--timeout", "--time"]),
    "kill": frozenset(f"-{letter}" for letter in "0123456789ABCEGHIKLMNOPRSTUVXs"),
    **dict.fromkeys(("psql", "mysql", "sqlite3"), frozenset(["-A", "-t", "-X", "-batch", "-q", "-w", "-N", "-B"])),
    "aws": frozenset(["--only-show-errors", "--no-cli-pager", "--no-progress", "--no-paginate"]),
    "terraform": frozenset(["-no-color", "-auto-approve", "-input"]),
    "kubectl": frozenset(["--wait", "--now", "--grace-period", "--timeout"]),
}


SAME = {  # long and short names of one option
    **{
        "--recursive": "-r",
        "-R": "-r",
        "--force": "-f",
        "--namespace": "-n",
        "--request": "-X",
        "--header": "-H",
        "--delete": "-d",
    },
    **{
        "--data": "-d",
        "--data-raw": "-d",
        "--data-binary": "-d",
        "--message": "-m",
        "--user": "-u",
        "--output": "-o",
        "--signal": "-s",
    },
    **{
        "--command": "-c",
        "--execute": "-e",
        "--host": "-h",
        "--dbname": "-d",
        "--port": "-p",
        "--file": "-f",
        "--all": "-a",
        "--hard": "--hard",
    },
}


@dataclass
class Parsed:
    """Words sorted into options, with their values, and the rest."""

    options: list[tuple[str, Word | None]]
    positional: list[Word]

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)

    def value(self, *names: str) -> Word | None:
        return next((value for name, value in self.options if name in names and value is not None), None)

    def values(self, *names: str) -> list[Word]:
        return [value for name, value in self.options if name in names and value is not None]


def parse(words: Sequence[Word], deed: Deed, *, stop: bool = False) -> Parsed:
    """Options as getopt reads them. With `stop`, the first word that is not an option ends them."""
    options: list[tuple[str, Word | None]] = []
    positional: list[Word] = []
    i = 0
    while i < len(words):
        word, text = words[i], words[i].text
        i += 1
        if text == "--":
            positional += words[i:]
            break
        number = text[1:].isdigit() and text[0] == "-" and text not in deed.flags
        if not text.startswith(("-", "+")) or text in ("-", "+") or number:
            positional.append(word)
            if stop:
                positional += words[i:]
                break
        elif deed.attached and text.startswith(deed.attached):
            name = next(name for name in deed.attached if text.startswith(name))
            options.append((name, Word((_marked(word, len(name)),), word.fetched, word.secret)))
        elif text.startswith("--") or deed.takes_value(text) or text.partition("=")[0] in deed.flags:
            name, equals, _ = text.partition("=")
            value = Word(tuple(t.partition("=")[2] for t in word.texts), word.fetched, word.secret) if equals else None
            if value is None and deed.takes_value(name) and i < len(words):
                value, i = words[i], i + 1
            options.append((name, value))
        elif text.startswith("-"):
            i = _letters(words, i, word, deed, options)
        else:
            positional.append(word)
    return Parsed(options, positional)


def _letters(words: Sequence[Word], i: int, word: Word, deed: Deed, options: list[tuple[str, Word | None]]) -> int:
    """`-rf`, `-n5`, `-ofile`; a letter that comes again says nothing new."""
    text = word.text
    for letter in dict.fromkeys(text[1:]):
        name = f"-{letter}"
        if deed.takes_value(name):
            at = text.index(letter, 1)
            glued = text[at + 1 :]
            if glued:
                options.append((name, Word((_marked(word, at + 1),), word.fetched, word.secret)))
            elif i < len(words):
                options.append((name, words[i]))
                i += 1
            else:
                options.append((name, None))
            return i
        options.append((name, None))
    if len(text) > 2:
        options.append((text, None))  # as one long option behind a single dash, too
    return i


def _marked(word: Word, start: int) -> str:
    return word.texts[0][start:] if len(word.texts) == 1 else UNKNOWN


# running
