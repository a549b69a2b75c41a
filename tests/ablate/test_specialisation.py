"""Who serves whom, and whether the router's energy announces an error."""

import numpy as np
import pytest

from gradproof.ablate.specialisation import energy_and_error, grouping, information


def test_information_at_its_ends():
    """All where the group decides the expert, under any numbering; nothing where they are independent."""
    group_T = np.repeat([0, 1, 2], 20)
    assert information(group_T, np.array([2, 0, 1])[group_T]) == pytest.approx(1)
    assert information(group_T, np.tile([0, 1], 30)) == pytest.approx(0, abs=1e-12)
    assert information(group_T, np.zeros(60, np.int64)) == 0  # one expert leaves nothing to be told


def test_information_by_hand():
    """Half of the rows: two groups over four equally loaded experts tell one bit of two."""
    expert_T = np.arange(400) % 4
    assert information(expert_T // 2, expert_T) == pytest.approx(0.5)


def test_grouping_by_hand():
    """Means within groups; a group without rows is left out."""
    share_TE = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    grouped = grouping("column", ["a", "b", "c"], np.array([0, 0, 2]), share_TE, share_TE.argmax(1))
    assert grouped["groups"] == ["a", "c"] and grouped["rows"] == [2, 1]
    assert grouped["share"] == [[0.75, 0.25], [0.0, 1.0]]


def test_energy_and_error():
    """The chance that a wrong row has more energy than a right one, as scikit-learn's AUC, ties included."""
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    wrong_T = random.random(500) < 0.3
    energy_T = np.round(random.normal(size=500) + 0.8 * wrong_T, 1)
    summary = energy_and_error(energy_T, wrong_T)
    assert summary["auc"] == pytest.approx(metrics.roc_auc_score(wrong_T, energy_T))
    assert sum(summary["rows"]) == 500 and summary["energy"] == sorted(summary["energy"])
    assert np.average(summary["error"], weights=summary["rows"]) == pytest.approx(wrong_T.mean())


def test_energy_without_errors():
    assert energy_and_error(np.arange(3.0), np.zeros(3, bool))["auc"] is None
