"""The memory of corrections: what a person said of one call holds for it and its paraphrases at once.

A correction acts on calls that are alike, and on nothing else; the learner follows later. Calls that people labelled
the other way are its rivals: what is more like one of them than like the corrected call is left alone. A correction to
block also acts on a shell line of which one command is alike; one to allow speaks for nothing that stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gradproof.gate.signals import Correction
from gradproof.gate.skeleton import CUT, Skeleton, alike, may_be_alike, parts, skeleton

ALIKE = 0.6  # paraphrases are so alike, measured: file names, the order of flags, quotes (docs/gate.md)
MOST_RIVALS = 64  # the nearest


def rivals(text: str, others: Iterable[str]) -> tuple[str, ...]:
    """Those of the texts that people labelled the other way which a correction of `text` would reach."""
    own = skeleton(text)
    possible = (other for other in others if other != text and may_be_alike(own, other))
    near = {other: max(alike(own, part) for part in (skeleton(other), *parts(other))) for other in possible}
    ordered = sorted((other for other, s in near.items() if s >= ALIKE), key=lambda other: -near[other])
    return tuple(ordered[:MOST_RIVALS])


class _Known(NamedTuple):
    own: Skeleton
    rivals: list[Skeleton]
    correction: Correction


class Corrections:
    """All corrections, found by the hard part of a skeleton; the most alike one speaks, then the newest."""

    def __init__(self, known: Iterable[Correction] = ()):
        self._by_hard: dict[object, list[_Known]] = {}
        for correction in known:
            self.add(correction)

    def add(self, correction: Correction) -> None:
        own = skeleton(correction.text)
        near = [part for rival in correction.rivals for part in (skeleton(rival), *parts(rival))]
        known = _Known(own, near, correction)
        self._by_hard.setdefault(own.hard, []).append(known)

    def find(self, text: str) -> Correction | None:
        """The correction that covers a call. One whose middle was cut out is never allowed for likeness: what nobody
        kept, nobody compared."""
        if not self._by_hard:
            return None
        best, nearest = ALIKE, None
        for i, own in enumerate((skeleton(text), *parts(text))):
            for known in self._by_hard.get(own.hard, ()):
                if known.correction.allow and (i > 0 or CUT in own.hard[2]):
                    continue
                s = 1.0 if known.correction.text == text else alike(own, known.own)
                # One command of a line must be nearer than what speaks for the whole of it.
                nearer = s > best or (s == best and (i == 0 or nearest is None))
                if nearer and not any(alike(own, rival) > s for rival in known.rivals):
                    best, nearest = s, known.correction
        return nearest
