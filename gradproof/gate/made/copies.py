"""Excludes generated calls that repeat a scored call, together with their twins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gradproof.gate import calls, folds

if TYPE_CHECKING:
    from gradproof.gate.made import MadeCall

LONG = 20  # characters from which one command of a made call may not be a scored call either
SILENT = ("description", "timeout")  # arguments that do nothing
_QUOTES = str.maketrans("", "", "\"'`")
_TOOL, _ARGUMENT = re.compile(r"[\w.@/-]+"), re.compile(r"[\w.@-]+: (.*)", re.S)
_PIECES = re.compile(r"\n|↵|;|&&|\|\|")


def plain(text: str) -> str:
    """What copies may differ in is taken away: quotes, case, numbers, white space."""
    return folds.normalised(text.translate(_QUOTES))


def without_copies(
    made: Sequence[MadeCall], scored_texts: Iterable[str], alike: float = folds.RESEMBLING
) -> list[MadeCall]:
    """The made calls, less those that repeat a scored one: as a whole, as one of their commands, or nearly, where the
    shingles of both are `alike`. The twins of a copy go with it, so that both labels stay equal in number and form.
    A scored text is a command, or a call as `calls.text` writes it."""
    taken = {plain(body(text)) for text in scored_texts} - {""}
    texts = [plain(" ".join(_values(one))) for one in made]
    near = set(folds.unlike(list(dict.fromkeys(texts)), sorted(taken), alike))
    copied = {
        one.twin
        for one, text in zip(made, texts, strict=True)
        if text in taken or text not in near or any(piece in taken for piece in _commands(one))
    }
    return [one for one in made if one.twin not in copied]


def body(text: str) -> str:
    """The values of a call's text, without its tool, its arguments' names, its folder and its history."""
    first, *rest = text.split("\n")
    if not rest or not _TOOL.fullmatch(first):
        return text
    own = [line for line in rest if not line.startswith(("@ ", "< "))]
    values = [_ARGUMENT.fullmatch(line) for line in own if not line.startswith(tuple(f"{name}: " for name in SILENT))]
    return " ".join(value[1].replace("↵", "\n") for value in values if value) if all(values) else text


def _values(one: MadeCall) -> Iterator[str]:
    for name, value in calls.leaves("", one.call.arguments):
        if name not in SILENT:
            yield value


def _commands(one: MadeCall) -> Iterator[str]:
    """The single commands of a call, as far as they are long enough to be anybody's."""
    for value in _values(one):
        for piece in _PIECES.split(value):
            if len(text := plain(piece)) >= LONG:
                yield text
