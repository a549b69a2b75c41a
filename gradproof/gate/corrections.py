"""The memory of corrections: what a person said of one call holds for it and its paraphrases at once.

A correction acts on calls whose skeleton is at least `radius` alike, and on nothing else; the learner follows later.
The radius is the usual one, or so much smaller that no call which people labelled the other way lies inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gradproof.gate.skeleton import CUT, Skeleton, alike, may_be_alike, skeleton

USUAL = 0.6  # how alike paraphrases are, measured: file names, the order of flags, quotes (docs/gate.md)
ONLY_ITSELF = 1.0
MARGIN = 0.02  # beyond the nearest call with the other label


class Correction(NamedTuple):
    """`allow` is what should have happened; `decision` is the one that was wrong."""

    decision: str
    text: str
    allow: bool
    radius: float


def radius(text: str, others: Iterable[str]) -> float:
    """How far a correction of `text` reaches, given the texts that people labelled the other way."""
    own = skeleton(text)
    near = (skeleton(other) for other in others if may_be_alike(own, other))
    nearest = max((alike(own, other) for other in near), default=0.0)
    return min(ONLY_ITSELF, max(USUAL, nearest + MARGIN))


class Corrections:
    """All corrections, found by the hard part of a skeleton; the most alike one speaks, then the newest."""

    def __init__(self, known: Iterable[Correction] = ()):
        self._by_hard: dict[object, list[tuple[Skeleton, Correction]]] = {}
        for correction in known:
            self.add(correction)

    def add(self, correction: Correction) -> None:
        own = skeleton(correction.text)
        self._by_hard.setdefault(own.hard, []).append((own, correction))

    def find(self, text: str) -> Correction | None:
        """The correction that covers a call. One whose middle was cut out is never allowed for likeness: what nobody
        kept, nobody compared."""
        if not self._by_hard:
            return None
        own = skeleton(text)
        best, found = 0.0, None
        for known, correction in self._by_hard.get(own.hard, ()):
            if correction.allow and CUT in own.hard[2]:
                continue
            s = 1.0 if correction.text == text else alike(own, known)
            if s >= max(best, correction.radius):
                best, found = s, correction
        return found
