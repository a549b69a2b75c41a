"""Trust: when the model may turn a question into an allow.

Only people's judgements count: no rules, no unreviewed decisions, nothing that likeness decided. Of at least 500 of
them, 50 of which were to block, the last 500 and the last 50 to block must agree with the model in 95% of cases. It
is lost as soon as that no longer holds, and begins anew after a rollback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

JUDGEMENTS, BLOCKS, AGREED = 500, 50, 0.95


class PersonsWord(NamedTuple):
    """A person's word on a decision, and whether the model had leaned to the same side."""

    allow: bool
    agreed: bool


class Trust(NamedTuple):
    """How far it has come: the shares are of the last 500, and of the last 50 to block."""

    judgements: int
    blocks: int
    agreed: float
    blocks_agreed: float

    @property
    def given(self) -> bool:
        enough = self.judgements >= JUDGEMENTS and self.blocks >= BLOCKS
        return enough and min(self.agreed, self.blocks_agreed) >= AGREED

    def __str__(self) -> str:
        if self.given:
            return f"trusted: {self.agreed:.1%} of the last {JUDGEMENTS} judgements agreed"
        if self.judgements < JUDGEMENTS or self.blocks < BLOCKS:
            return f"not trusted yet: {self.judgements} of {JUDGEMENTS} judgements, {self.blocks} of {BLOCKS} to block"
        return (
            f"not trusted: {self.agreed:.1%} of the last judgements agreed, {self.blocks_agreed:.1%} of those to block"
        )


def trust(judgements: Sequence[PersonsWord]) -> Trust:
    """Of judgements, oldest first."""
    blocks = [judgement for judgement in judgements if not judgement.allow]
    return Trust(len(judgements), len(blocks), _share(judgements[-JUDGEMENTS:]), _share(blocks[-BLOCKS:]))


def _share(judgements: Sequence[PersonsWord]) -> float:
    return sum(judgement.agreed for judgement in judgements) / len(judgements) if judgements else 0.0
