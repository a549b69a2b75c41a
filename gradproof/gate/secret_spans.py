"""Spans of secrets in a text, and the placeholders that replace them.

A placeholder is `<kind#hash>`. Under one key, equal secrets have equal hashes; without the key, a guess cannot be
checked against a hash. E-mail addresses keep their domain: `<email:@example.com#hash>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NamedTuple

HASH_BYTES = 8
SPARE = 0.25  # share of the budget that is left for the next round when a text is cut
MASK = b"\xff"  # does not occur in UTF-8; replaces what must not be read again
PLACEHOLDER = re.compile(rb"<[a-z-]{1,16}(?::@[A-Za-z0-9.-]{1,255})?#[0-9a-f]{16}>")
_DOMAIN = re.compile(rb"@[A-Za-z0-9.-]{1,255}\Z")


class Finder(NamedTuple):
    """A pattern for candidates. `find` adds the secrets of a match and returns where to continue."""

    regex: Any
    find: Callable[[Scan, Any], int]
    cost: float = 1.0


class Scan:
    """The spans found in a text so far. In `data`, placeholders are masked.

    Every candidate costs something. When the budget is spent, the text is cut: the rest is withheld as one secret."""

    def __init__(self, data: bytes):
        self.data = self.masked = masked(data)
        self.end = len(data)
        self.spans: list[tuple[int, int, str]] = []
        self.kept: list[tuple[int, int]] = []
        self.most = self.left = self.spent = 0.0
        self.settled = self.end

    def begin(self, most: float) -> None:
        """Sets the budget."""
        self.most = self.left = float(most)

    def run(self, finders: Iterable[Finder], most: float) -> None:
        """Handles the candidates of all finders in the order of the text, so that everything before a cut has been
        read by every finder."""
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
        """Pays for a candidate, leaving at least `reserve`. Cuts the text if that is not possible."""
        if self.left - cost < reserve:
            self.cut(at)
            return False
        self.left -= cost
        self.spent += cost
        if self.left < SPARE * self.most:
            self.settled = min(self.settled, at)
        return True

    def cut(self, at: int) -> None:
        """Withholds the rest of the text, from a point at which the next round will stay within its budget."""
        self.end = min(self.end, self.settled, at)

    def add(self, start: int, end: int, kind: str) -> None:
        if start < end:
            self.spans.append((start, end, kind))

    def keep(self, start: int, end: int) -> None:
        """Marks text that is neither an e-mail address nor a random string."""
        self.kept.append((start, end))

    def mask(self) -> None:
        """Hides what was found or kept from the finders that follow."""
        if self.kept or self.spans:
            rest = bytearray(self.data)
            for start, end, *_ in (*self.kept, *self.spans):
                rest[start:end] = MASK * (end - start)
            self.data = bytes(rest)

    def merged(self) -> list[tuple[int, int, str]]:
        """The spans in order, with overlapping ones merged."""
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
    """Replaces each span by a placeholder."""
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
    """Extends a span so that it splits neither a character nor a placeholder."""
    while start > 0 and (data[start] & 0xC0 == 0x80 or data[start - 1 : start + 1] == 2 * MASK):
        start -= 1
    while end < len(data) and (data[end] & 0xC0 == 0x80 or data[end - 1 : end + 1] == 2 * MASK):
        end += 1
    return start, end
