"""What the learner keeps from round to round: logits as the gate gives them, read once for each encoder."""

import numpy as np
import pytest
from made_calls import rows

from gradproof.gate import fit, kept_logits
from gradproof.gate.kept_logits import KeptLogits
from gradproof.gate.network import WEIGHT


@pytest.fixture
def read(monkeypatch):
    """How many rows the encoder was given, call by call."""
    counts, logits = [], fit.logits

    def counted(gate, encoded, *others):
        counts.append(len(encoded))
        return logits(gate, encoded, *others)

    monkeypatch.setattr(fit, "logits", counted)
    return counts


TEXTS = [row.text for row in rows(5)]


def test_logits_are_the_gates(trained):
    logits = KeptLogits().logits(trained, [*TEXTS, TEXTS[0]])
    want = trained.logits([trained.encode(text) for text in TEXTS])
    assert list(logits) == TEXTS and np.allclose(list(logits.values()), want, atol=1e-5)
    assert KeptLogits().logits(trained, []) == {}


def test_the_encoder_reads_a_text_once(trained, read):
    """Other n-gram weights need no reading; another encoder does; the first is still known after that."""
    kept, gate, other = KeptLogits(), trained.copy(), trained.copy()
    first = kept.logits(gate, TEXTS)
    gate.network.params[WEIGHT].add_(0.5)
    moved = kept.logits(gate, TEXTS)
    assert read == [10, 0] and all(moved[text] > first[text] for text in TEXTS)
    other.network.params["output.bias"].add_(1.0)
    assert np.allclose(kept.encoded(other, TEXTS), kept.encoded(trained, TEXTS) + 1)
    assert read == [10, 0, 10, 0]


def test_few_encoders_are_kept(trained, read):
    kept, gate = KeptLogits(), trained.copy()
    for _ in range(kept_logits.ENCODERS + 1):
        gate.network.params["output.bias"].add_(1.0)
        kept.encoded(gate, TEXTS[:1])
    kept.encoded(gate, TEXTS[:1])
    gate.network.params["output.bias"].sub_(kept_logits.ENCODERS)
    kept.encoded(gate, TEXTS[:1])
    assert read == [1] * (kept_logits.ENCODERS + 1) + [0, 1]


def test_what_is_not_needed_is_forgotten(trained, read, monkeypatch):
    monkeypatch.setattr(kept_logits, "MOST", 9)
    kept = KeptLogits()
    kept.encoded(trained, TEXTS)
    kept.keep(TEXTS[:2])
    kept.encoded(trained, TEXTS)
    assert read == [10, 8]
