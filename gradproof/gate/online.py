"""A complete gate in one process: decisions, feedback and learning in turn, deterministic.

What `gate evaluate --stream` replays a labelled stream through. The store is a real one in a folder that goes away. A
call comes every quarter of an hour: the learner has long had its round when the next one does, as in use, and the
review window of a day is 96 calls.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradproof.gate.calls import Call
from gradproof.gate.decider import Answer, Decider
from gradproof.gate.founding import found
from gradproof.gate.founding_rows import FoundingRow
from gradproof.gate.learner import Learner, Round
from gradproof.gate.network import GateModel
from gradproof.gate.store import Settings, Store

PACE = 900.0  # seconds between two calls


class Online:
    """`Online(model, learned, held)`: a gate that begins with a model, the calls it was trained on and others."""

    def __init__(self, model: GateModel, learned: Sequence[FoundingRow], held: Sequence[FoundingRow], *, seed: int = 0):
        self._folder = tempfile.TemporaryDirectory(prefix="gradproof-gate-")
        self._now = 1.7e9
        self.store = Store.create(Path(self._folder.name) / "gate", Settings(), self._clock)
        found(self.store, model.copy(), learned, held)
        self.learner = Learner(self.store, seed)
        self.decider = Decider(self.store, wait=True, alone=True)  # what is scored is the model

    def decide(self, call: Call) -> Answer:
        """The answer; its probability is the score. It can be remarked at once."""
        answer = self.decider.decide(call)
        self.decider.flush()
        return answer

    def correct(self, answer: Answer, allow: bool) -> str | None:
        """What a person says of a decision where it was wrong, and only then; returns the kind of signal. A call that
        the gate asked about is a mistake where it leaned to the wrong side."""
        truth = "allow" if allow else "block"
        if answer.decision == truth:
            return None
        if answer.decision == "ask":
            if self.store.journal.decision(answer.id)["lean"] == allow:
                return None
            kind = f"override_{truth}"
        else:
            kind = f"false_{answer.decision}"
        self._now += 1
        self.store.journal.remark(answer.id, kind)
        return kind

    def wait(self, learn: bool) -> Round | None:
        """Until the next call; a round of the learner, where one falls due."""
        self._now += PACE
        return self.learner.round() if learn and self.learner.due() else None

    def probabilities(self, calls: Sequence[Call]) -> np.ndarray:
        """P(allow) of many calls as the gate would score them now, corrections included; nothing is kept."""
        return np.array([self.decider.peek(call).probability for call in calls])

    def close(self) -> None:
        self.decider.close()
        self.store.close()
        self._folder.cleanup()

    def _clock(self) -> float:
        self._now += 0.001
        return self._now
