"""The serving version: loaded completely, with its kernels checked before the first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradproof.gate.network import GateModel
from gradproof.gate.packing import gate_of
from gradproof.gate.policy import Policy
from gradproof.gate.store import Store


class Serving(NamedTuple):
    """A version as it decides; `people`: it has learned from calls that people labelled."""

    number: int
    gate: GateModel
    policy: Policy
    people: bool = False

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """P(allow) of each act."""
        return [float(p) for p in self.gate.probability([self.gate.encode(text) for text in texts])]


def load_serving(store: Store, before: Serving | None = None) -> Serving:
    """The serving version; loaded again where it was replaced and pruned while being read. What was checked of the
    version `before` need not be checked again."""
    while True:
        number = store.versions.serving()
        if number == 0:
            raise ValueError(f"the gate in {store.folder} has no model yet; run: gradproof gate init")
        try:
            record, weights = store.versions.get(number).record, store.versions.weights(number)
            serving = Serving(number, gate_of(weights, record), Policy(*record["policy"]), record.get("people", False))
            if before is not None and before.gate.network.config == serving.gate.network.config:
                serving.gate.paths.update(before.gate.paths)
            # Its kernels are admitted and checked before the first call comes, on a text as long as any.
            serving.probabilities(["word " * serving.gate.network.config.context])
            return serving
        except ValueError:
            if store.versions.serving() == number:
                raise
