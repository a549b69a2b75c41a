"""Several runs at once, in processes of their own."""

import pytest

from gradproof.ablate.runs import Failed, run_all
from gradproof.ablate.unit import Unit


class Watch:
    def started(self, unit):
        pass

    def moved(self, unit, done, total):
        pass

    def ended(self, unit, result):
        raise AssertionError("nothing can end well here")


def test_a_unit_that_fails_stops_the_others_with_a_sentence(tmp_path):
    """An error in a worker must not be lost with it, nor leave the study waiting."""
    given = dict(data="nowhere.csv", target="y")
    units = [
        Unit("logistic-regression", seed, "C-1", 1.0, str(tmp_path / str(seed)), str(tmp_path / "gone"), 100, given, {})
        for seed in range(3)
    ]
    with pytest.raises(Failed, match=r"logistic-regression seed 0 C-1: .*schema\.json"):
        run_all(units, 1, Watch())
    assert not list(tmp_path.rglob("result.json"))


def test_nothing_to_do():
    run_all([], 2, Watch())
