"""Where the secrets of one text lie, and the text with placeholders in their place.

A placeholder is `<kind#hash>`. Equal secrets have equal hashes under one key; without the key nobody can try out what
was hidden. Of an e-mail address the domain stays: `<email:@example.com#hash>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NamedTuple

HASH_BYTES = 8
SPARE = 0.25  # of the candidates that can be afforded, left unused where a text has too many
MASK = b"\xff"  # in no UTF-8: stands for what must not be read again
PLACEHOLDER = re.compile(rb"<[a-z-]{1,16}(?::@[A-Za-z0-9.-]{1,255})?#[0-9a-f]{16}>")
_DOMAIN = re.compile(rb"@[A-Za-z0-9.-]{1,255}\Z")


class Finder(NamedTuple):
    """Candidates for secrets: `find` adds those that are, and says where to read on."""

    regex: Any
    find: Callable[[Scan, Any], int]
    cost: float = 1.0


class Scan:
    """The spans that were found in one text so far. `data` is the text with its placeholders masked."""

    def __init__(self, data: bytes):
        self.data = self.masked = masked(data)
        self.end = len(data)
        self.spans: list[tuple[int, int, str]] = []
        self.kept: list[tuple[int, int]] = []
        self.most = self.left = 0.0
        self.settled = self.end

    def begin(self, most: int) -> None:
        """So many candidates can be afforded from here on."""
        self.most = self.left = float(most)

    def run(self, finders: Iterable[Finder], most: int) -> None:
        """Judges the candidates of all finders in the order of the text, so that what lies before the last one that
        can be afforded is read completely."""
        order, waiting = list(finders), []
        self.begin(most)
        for number, finder in enumerate(order):
            match = finder.regex.search(self.data, 0, self.end)
            if match:
                heappush(waiting, (match.start(), number, match))
        while waiting:
            start, number, match = heappop(waiting)
            finder = order[number]
            if not self.afford(start, finder.cost):
                break
            position = max(finder.find(self, match), start + 1)
            match = finder.regex.search(self.data, position, self.end)
            if match:
                heappush(waiting, (match.start(), number, match))

    def afford(self, at: int, cost: float = 1.0, reserve: float = 0.0) -> bool:
        """Counts a candidate. Beyond the last one nothing is read any more, and the rest of the text withheld."""
        if self.left - cost < reserve:
            self.cut(at)
            return False
        self.left -= cost
        if self.left < SPARE * self.most:
            self.settled = min(self.settled, at)
        return True

    def cut(self, at: int) -> None:
        """Withholds the text from where most of the candidates were counted, so that the next round has enough."""
        self.end = min(self.end, self.settled, at)

    def add(self, start: int, end: int, kind: str) -> None:
        if start < end:
            self.spans.append((start, end, kind))

    def keep(self, start: int, end: int) -> None:
        """What is neither an e-mail address nor random, whatever it looks like."""
        self.kept.append((start, end))

    def mask(self) -> None:
        """What was found so far, and what is kept, is not read again."""
        if self.kept or self.spans:
            rest = bytearray(self.data)
            for start, end, *_ in (*self.kept, *self.spans):
                rest[start:end] = MASK * (end - start)
            self.data = bytes(rest)

    def merged(self) -> list[tuple[int, int, str]]:
        """Spans that do not overlap, in order; one that lies in another is part of it."""
        spans = sorted(self.spans, key=lambda span: (span[0], -span[1]))
        if self.end < len(self.data):
            spans = [span for span in spans if span[0] < self.end] + [(self.end, len(self.data), "text")]
        merged: list[tuple[int, int, str]] = []
        for start, end, kind in spans:
            if not self.masked[start:end].strip(MASK):
                continue
            start, end = _whole(self.masked, start, end)
            if merged and start < merged[-1][1]:
                first, last, outer = merged[-1]
                merged[-1] = first, max(last, end), outer
            else:
                merged.append((start, end, kind))
        return merged


def masked(data: bytes) -> bytes:
    return PLACEHOLDER.sub(lambda match: MASK * len(match[0]), data) if b"#" in data else data


def replaced(data: bytes, spans: list[tuple[int, int, str]], key: bytes) -> bytes:
    """The text with a placeholder for each span."""
    pieces, position = [], 0
    for start, end, kind in spans:
        pieces += [data[position:start], placeholder(kind, data[start:end], key)]
        position = end
    return b"".join([*pieces, data[position:]])


def placeholder(kind: str, secret: bytes, key: bytes) -> bytes:
    digest = blake2b(secret, digest_size=HASH_BYTES, key=key).hexdigest()
    domain = _DOMAIN.search(secret) if kind == "email" else None
    return f"<{kind}{':' + domain[0].decode() if domain else ''}#{digest}>".encode()


def _whole(data: bytes, start: int, end: int) -> tuple[int, int]:
    """A span that cuts neither a character of UTF-8 nor a placeholder in two."""
    while start > 0 and (data[start] & 0xC0 == 0x80 or data[start - 1 : start + 1] == 2 * MASK):
        start -= 1
    while end < len(data) and (data[end] & 0xC0 == 0x80 or data[end - 1 : end + 1] == 2 * MASK):
        end += 1
    return start, end
