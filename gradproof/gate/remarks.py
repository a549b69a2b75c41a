"""Remarks: feedback on decisions, who gave it, and how often the model agreed."""

from __future__ import annotations

from typing import NamedTuple

from gradproof.gate.signals import Signal


class Judged(NamedTuple):
    """How often the model agreed with people, by what they said."""

    allow: int = 0
    allow_agreed: int = 0
    block: int = 0
    block_agreed: int = 0

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.allow + self.block

    @property
    def alignment(self) -> float:
        return (self.allow_agreed + self.block_agreed) / self.count if self.count else 0.0

    @property
    def converged(self) -> bool:
        """≥ 0.95 over ≥ 1000, as it is reported; what the model may do is a matter of trust."""
        return self.alignment >= 0.95 and self.count >= 1000

    def add(self, allow: bool, agreed: bool, by: int = 1) -> Judged:
        if allow:
            return self._replace(allow=self.allow + by, allow_agreed=self.allow_agreed + by * agreed)
        return self._replace(block=self.block + by, block_agreed=self.block_agreed + by * agreed)


class Giver(NamedTuple):
    """Who gave a signal, in which session."""

    actor: str = ""
    role: str = "person"
    session: str = ""


class Remark(NamedTuple):
    """A person's word as it was kept; `correction` is the one that it made, `before` what was said before."""

    signal: Signal
    sequence: int
    correction: str | None
    before: str | None
