"""The learner's cache across rounds: encoded texts, and the encoder's part of their logits.

    z = e + y;   e is the encoder's, which stays, and 0 without one; y is what n-grams and features add

Nearly all the time goes into e, which changes only with the encoder; y changes with every round and costs next to
nothing. So e is kept for each of the last few encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.gate import fit, proximal
from gradproof.gate.network import FEATURE_WEIGHT, WEIGHT, GateModel, GateNetwork
from gradproof.gate.ngrams import NUMBERS
from gradproof.gate.proximal import SparseRow

ENCODERS = 4  # the serving one, and a candidate all, half and a quarter of the way
MOST = 20_000  # texts; beyond, those that the last round did not need go


class KeptRow(NamedTuple):
    """`tokens` as a gate reads them, and the numbers of n-grams and features."""

    tokens: list[int]
    sparse: SparseRow


class KeptLogits:
    """`KeptLogits().logits(gate, texts)`."""

    def __init__(self):
        self._rows: dict[str, KeptRow] = {}
        self._encoders: list[tuple[Tensor, dict[str, float]]] = []  # the one used last is last

    def row(self, gate: GateModel, text: str) -> KeptRow:
        row = self._rows.get(text)
        if row is None:
            number_X = np.array(gate.encode(text), dtype=np.int64) - gate.network.config.vocabulary
            is_gram = (number_X >= 0) & (number_X < NUMBERS)
            sparse = SparseRow(number_X[is_gram], number_X[number_X >= NUMBERS] - NUMBERS)
            tokens = number_X[number_X < 0] + gate.network.config.vocabulary
            row = self._rows[text] = KeptRow(tokens.tolist(), sparse)
        return row

    def sparse(self, gate: GateModel, texts: Iterable[str]) -> list[SparseRow]:
        return [self.row(gate, text).sparse for text in texts]

    def encoded(self, gate: GateModel, texts: Sequence[str]) -> np.ndarray:
        """e_R; only what this encoder has not read yet is read."""
        if not gate.network.config.encoder_layers:
            return np.zeros(len(texts))
        known = self._of(gate.network)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        read = fit.logits(gate, [self.row(gate, text).tokens for text in missing])
        known.update(zip(missing, read.tolist(), strict=True))
        return np.array([known[text] for text in texts])

    def logits(self, gate: GateModel, texts: Iterable[str]) -> dict[str, float]:
        """z of each text."""
        distinct = list(dict.fromkeys(texts))
        z_R = self.encoded(gate, distinct) + proximal.linear(gate.network, self.sparse(gate, distinct))
        return dict(zip(distinct, z_R.tolist(), strict=True))

    def keep(self, texts: Iterable[str]) -> None:
        """Forgets the others, where there are too many."""
        if len(self._rows) > MOST:
            wanted = set(texts)
            self._rows = {text: row for text, row in self._rows.items() if text in wanted}
            for _, known in self._encoders:
                for text in known.keys() - wanted:
                    del known[text]

    def _of(self, network: GateNetwork) -> dict[str, float]:
        """What is known of this very encoder."""
        own_P = network.params.flat_P.clone()
        for name in (WEIGHT, FEATURE_WEIGHT):
            network.params.views_of(own_P)[name].zero_()
        at = next((i for i, (encoder_P, _) in enumerate(self._encoders) if torch.equal(encoder_P, own_P)), None)
        self._encoders.append(self._encoders.pop(at) if at is not None else (own_P, {}))
        self._encoders = self._encoders[-ENCODERS:]
        return self._encoders[-1][1]
