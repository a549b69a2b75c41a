"""kill -9 of decider and learner at random moments: no acknowledged signal is lost, the serving version is whole."""

import pytest
from made_calls import rows

from gradproof.bench.gate import killed
from gradproof.gate.founding import found
from gradproof.gate.store import Settings, Store


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost(tmp_path, trained, kills):
    store = Store.create(tmp_path / "gate", Settings())
    found(store, trained.copy(), rows(20), rows(10, 100), people=False)
    store.close()
    done = killed(tmp_path / "gate", kills, 0.8, start="fork", say=lambda what: None)
    assert done["lost"] == 0 and done["acknowledged"] >= 3 * kills
