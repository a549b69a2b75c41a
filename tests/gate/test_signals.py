"""The table of signals, exactly as designed."""

import pytest

from gradproof.gate.signals import KINDS, signal

TABLE = {  # kind: raw label, target, weights when said once, twice, three times, four times
    "block": (0.0, 0, (1, 1, 1, 1)),
    "allow": (1.0, 1, (1, 1, 1, 1)),
    "override_block": (-0.5, 0, (2, 2, 2, 2)),
    "override_allow": (1.5, 1, (2, 2, 2, 2)),
    "false_allow": (-1.0, 0, (4, 6, 8, 8)),
    "false_block": (2.0, 1, (4, 6, 8, 8)),
}


@pytest.mark.parametrize("kind", TABLE)
def test_every_row_of_the_table(kind):
    label, target, weights = TABLE[kind]
    given = [signal(kind, again) for again in range(4)]
    assert [given_signal.weight for given_signal in given] == list(weights)
    assert {(given_signal.label, given_signal.target) for given_signal in given} == {(label, target)}
    assert given[0].outcome == ("allow" if target else "block")


def test_no_other_kind():
    assert set(KINDS) == set(TABLE)
    with pytest.raises(ValueError, match=r"no kind of feedback 'falseblock'; the kinds are block, allow"):
        signal("falseblock")
