"""Signals, the feedback from which a gate learns: raw label, target and weight. Positive means *allow*.

target = raw label clamped to [0, 1];   weight of a mistake: 4, the same again 6, then 8
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["allow", "ask", "block"]


class SignalKind(NamedTuple):
    """A row of the table of signals; `weights` by how often the same was said before."""

    label: float
    weights: tuple[float, ...]
    what: str


KINDS = {
    "block": SignalKind(0.0, (1,), "the gate's own decision, unremarked"),
    "allow": SignalKind(1.0, (1,), "the gate's own decision, unremarked"),
    "override_block": SignalKind(-0.5, (2,), "a person changed the outcome to block"),
    "override_allow": SignalKind(1.5, (2,), "a person changed the outcome to allow"),
    "false_allow": SignalKind(-1.0, (4, 6, 8), "allowed, and it should not have been"),
    "false_block": SignalKind(2.0, (4, 6, 8), "blocked, and it should not have been"),
}
ECHO = ("block", "allow")  # the gate's own decisions: no evidence of what people want
MISTAKES = ("false_allow", "false_block")  # costly: remembered at once, and pinned


class Signal(NamedTuple):
    """`label` is raw; the loss sees `target` and `weight`."""

    kind: str
    label: float
    weight: float

    @property
    def target(self) -> float:
        return min(1.0, max(0.0, self.label))

    @property
    def outcome(self) -> Literal["allow", "block"]:
        """What it says should happen."""
        return "allow" if self.target else "block"


def signal(kind: str, said_before: int = 0) -> Signal:
    """The signal of a kind; `said_before` counts the same kind on the same call."""
    if kind not in KINDS:
        raise ValueError(f"there is no kind of feedback {kind!r}; the kinds are {', '.join(KINDS)}")
    label, weights, _ = KINDS[kind]
    return Signal(kind, label, float(weights[min(said_before, len(weights) - 1)]))
