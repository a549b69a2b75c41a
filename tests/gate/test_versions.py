"""Versions: whole or not there, kept in number, served by one switch."""

import pytest

from gradproof.gate.versions import KEEP, Versions


@pytest.fixture
def versions(tmp_path):
    (tmp_path / "versions").mkdir()
    made = Versions(tmp_path / "versions", 4)
    yield made
    made.env.close()


def test_add_serve_and_roll_back(versions):
    assert versions.serving() == 0
    assert [versions.add(bytes([i]) * 1000, {"n": i}, b"o%d" % i) for i in range(3)] == [1, 2, 3]
    assert versions.serving() == 3 and versions.weights(2) == b"\1" * 1000 and versions.optimizer(3) == b"o2"
    versions.serve(1, after=3)
    assert versions.serving() == 1 and versions.get(1).record == {"n": 0}
    with pytest.raises(ValueError, match="no version 9; the versions kept are 1, 2, 3"):
        versions.serve(9, after=1)
    assert versions.serving() == 1


def test_promotion_and_rollback_compare_and_swap(versions):
    """A round that was in flight does not undo a rollback, nor does a rollback undo what it has not seen."""
    for i in range(2):
        versions.add(b"x", {"n": i})
    versions.serve(1, after=2)
    assert versions.add(b"y", {}, after=2) is None and versions.serving() == 1 and len(versions.all()) == 2
    assert versions.add(b"y", {}, after=1) == 3
    with pytest.raises(ValueError, match="version 3 serves by now, not 1"):
        versions.serve(2, after=1)
    assert versions.serving() == 3


def test_a_few_are_kept_and_the_newest_optimizers(versions):
    for _ in range(3 * KEEP):
        versions.add(b"x", {}, b"moments")
    numbers = [version.number for version in versions.all()]
    assert versions.serving() == 3 * KEEP == numbers[-1] and len(numbers) == KEEP
    assert [versions.optimizer(n) for n in numbers[-3:]] == [b"", b"moments", b"moments"]


def test_no_room_leaves_the_serving_one(versions):
    versions.add(b"a" * 1_000_000, {})
    with pytest.raises(ValueError, match="no room for another version in its 4 MiB"):
        versions.add(b"b" * 8_000_000, {})
    assert versions.serving() == 1 and versions.weights(1) == b"a" * 1_000_000 and len(versions.all()) == 1
