"""A gate that a stream is replayed through: what it scores is the model."""

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
