"""A gate that a stream is replayed through: what it scores is the model."""

import pytest
from made_calls import rows

from gradproof.gate import calls
from gradproof.gate.online import Online


def test_no_rule_decides(trained):
    """The policy blocks these: whatever the model thinks, that would take the place of its false blocks."""
    online = Online(trained, rows(40), rows(30, 100))
    try:
        denied = [calls.parse({"command": line}) for line in ("mkfs.ext4 /dev/sdb1", "rm -rf /", ":(){ :|:& };:")]
        for call in denied:
            answer = online.decide(call)
            assert answer.reason.startswith("model") and 0 < answer.probability < 1
        assert all(0 < p < 1 for p in online.probabilities(denied))
    finally:
        online.close()


def test_no_correction_decides(trained):
    """A correction reaches the very same call at once; the model's probability stays until the model has learned."""
    online = Online(trained, rows(40), rows(30, 100))
    try:
        call = calls.parse({"command": "git push --force origin main"})
        before = online.decide(call)
        online.store.journal.remark(before.id, "override_allow" if before.decision == "block" else "override_block")
        after = online.decide(call)
        assert after.probability == pytest.approx(before.probability) and after.decision == before.decision
    finally:
        online.close()
