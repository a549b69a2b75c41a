"""Word: a word as the shell passes it to a program, after quoting, braces and splitting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from gradproof.gate.acts.paths import ACTIVE, ANY, RANGE, STAR, TILDE, UNKNOWN, unglobbed

MOST_ALTERNATIVES = 32  # that one word may stand for
MOST_BRACES = 12  # in one word
OPEN, CLOSE, COMMA = "\ue004", "\ue005", "\ue006"  # unquoted { } ,
MARKS = str.maketrans({"*": STAR, "?": ANY, "[": RANGE, "{": OPEN, "}": CLOSE, ",": COMMA})
BRACES = str.maketrans({OPEN: "{", CLOSE: "}", COMMA: ","})
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
BLANKS = re.compile(r"[ \t\n]+")
SEQUENCE = re.compile(r"(-?\d{1,18}|\w)\.\.(-?\d{1,18}|\w)(?:\.\.-?\d+)?", re.ASCII)


class UnreadableError(Exception):
    """Nothing more of this call can be read."""


@dataclass(frozen=True)
class Word:
    """A word as the program gets it: one of `texts`. `fetched` names the host whose answer is in it, `secret` says that
    a secret is, `inner` is the text that a process substitution would deliver."""

    texts: tuple[str, ...] = ("",)
    fetched: str = ""
    secret: bool = False
    inner: str | None = None
    substituted: bool = False

    @property
    def known(self) -> bool:
        return not any(UNKNOWN in text for text in self.texts)

    @property
    def text(self) -> str:
        """One text, as it was written; UNKNOWN in it where it is not known, or where there are several."""
        return unglobbed(self.texts[0]) if len(self.texts) == 1 else UNKNOWN

    def starts(self, *prefixes: str) -> bool:
        return self.text.startswith(prefixes)


def concatenated(words: Sequence[Word]) -> Word:
    if not words:
        return Word()
    if len(words) == 1:
        return words[0]
    size = 1
    for word in words:
        size *= len(word.texts)
    texts = (
        (UNKNOWN,)
        if size > MOST_ALTERNATIVES
        else tuple("".join(parts) for parts in product(*(w.texts for w in words)))
    )
    return Word(
        few(texts),
        next((word.fetched for word in words if word.fetched), ""),
        any(word.secret for word in words),
        substituted=any(word.substituted for word in words),
    )


def joined_words(words: Sequence[Word]) -> Word:
    """Several words as one, with blanks between them."""
    if not words:
        return Word()
    blank = Word((" ",))
    return concatenated([piece for word in words for piece in (blank, word)][1:])


def few(texts: Iterable[str]) -> tuple[str, ...]:
    distinct = tuple(dict.fromkeys(texts))
    return distinct if len(distinct) <= MOST_ALTERNATIVES else (UNKNOWN,)


def fields(word: Word) -> list[Word]:
    """An expansion outside quotes falls apart at blanks, and what looks like a pattern is one. Blanks at an end are an
    empty field there: what stands beside the expansion is a word of its own."""
    texts = tuple(text.translate(ACTIVE) for text in word.texts)
    if not any(BLANKS.search(text) for text in texts):
        return [replace(word, texts=texts)]
    first, *others = texts
    if others:
        return [replace(word, texts=(UNKNOWN,))]
    return [replace(word, texts=(piece,)) for piece in BLANKS.split(first)]


def side_by_side(pieces: Sequence[Sequence[Word]]) -> list[Word]:
    """Words side by side: the last field of one is joined with the first of the next."""
    done: list[list[Word]] = [[]]
    for first, *others in pieces:
        done[-1].append(first)
        done += [[other] for other in others]
    return [concatenated(parts) for parts in done]


def braced(word: Word) -> list[Word]:
    """`{a,b}` are two words; other braces are what they are. More words than are told apart are one unknown one."""
    if not any(OPEN in text for text in word.texts):
        if any(mark in text for text in word.texts for mark in (CLOSE, COMMA)):
            return [replace(word, texts=tuple(text.translate(BRACES) for text in word.texts))]
        return [word]
    try:
        texts = _within_cap(expanded for text in word.texts for expanded in _braces(text))
    except UnreadableError:
        return [replace(word, texts=(UNKNOWN,))]
    return [replace(word, texts=(text.translate(BRACES),)) for text in texts]


def _within_cap(texts: Iterable[str]) -> list[str]:
    """UnreadableError before there are more texts than one word may become."""
    few = list(islice(texts, 4 * MOST_ALTERNATIVES + 1))
    if len(few) > 4 * MOST_ALTERNATIVES:
        raise UnreadableError
    return few


def _braces(text: str, depth: int = 0) -> list[str]:
    """What braces make of a text; UnreadableError where that is too much, or nested too deeply."""
    start = text.find(OPEN)
    if start < 0:
        return [text]
    if depth > MOST_BRACES:
        raise UnreadableError
    level, parts, last = 0, [], start + 1
    for i in range(start, len(text)):
        if text[i] == OPEN:
            level += 1
        elif text[i] == CLOSE:
            level -= 1
            if not level:
                parts.append(text[last:i])
                rests = _braces(text[i + 1 :], depth + 1)
                return _within_cap(text[:start] + piece + rest for piece in _inner(parts, depth) for rest in rests)
        elif text[i] == COMMA and level == 1:
            parts.append(text[last:i])
            last = i + 1
    return [text]


def _inner(parts: Sequence[str], depth: int) -> list[str]:
    if len(parts) == 1:
        ends = SEQUENCE.fullmatch(parts[0])
        if ends is None:
            return [f"{{{part}}}" for part in _braces(parts[0], depth + 1)]
        if ends[1].lstrip("-").isdigit() and ends[2].lstrip("-").isdigit():
            low, high = sorted((int(ends[1]), int(ends[2])))
            return [str(n) for n in range(low, high + 1)] if high - low <= MOST_ALTERNATIVES else [UNKNOWN]
        low, high = sorted((ord(ends[1][0]), ord(ends[2][0])))
        return [chr(n) for n in range(low, high + 1)] if high - low <= MOST_ALTERNATIVES else [UNKNOWN]
    return _within_cap(expanded for part in parts for expanded in _braces(part, depth + 1))


def bare_text(text: str) -> str:
    """A bare word: escapes are gone, patterns, braces and a leading ~ are marked as active."""
    if "\\" not in text:
        marked = text.translate(MARKS)
        return TILDE + marked[1:] if marked.startswith("~") else marked
    pieces, i = [], 0
    while i < len(text):
        if text[i] == "\\" and i + 1 < len(text):
            pieces.append("" if text[i + 1] == "\n" else text[i + 1])
            i += 2
        else:
            pieces.append(text[i].translate(MARKS))
            i += 1
    marked = "".join(pieces)
    return TILDE + marked[1:] if text.startswith("~") else marked


def in_double_quotes(text: str) -> str:
    return re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], text)


def ansi_escape(match: re.Match[str]) -> str:
    if code := match[1] or match[2] or match[3]:
        return chr(min(int(code, 16), 0x10FFFF)) if int(code, 16) else ""
    if match[4]:
        return chr(int(match[4], 8) & 0xFF)
    return ESCAPES.get(match[5], match[5])


def below(names: Sequence[str]) -> tuple[str, ...]:
    """Any file below some folders, as texts of a word; a pattern at the end of a name stands for files already."""
    ends = (any(mark in name.rpartition("/")[2] for mark in (STAR, ANY, RANGE)) for name in names)
    return tuple(name if pattern else f"{name.rstrip('/')}/{STAR}" for name, pattern in zip(names, ends, strict=True))
