import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.rows import Rows


def drawn(R, C, N, M, seed=0):
    rng = np.random.default_rng(seed)
    numbers_RN = np.where(rng.random((R, N)) < 0.3, np.nan, rng.normal(size=(R, N)))
    codes_RC = rng.integers(-1, 5, (R, C)).astype(np.int32)
    return Rows(codes_RC, numbers_RN, rng.integers(0, 3, R), rng.random((R, M)).astype(np.float32))


def same(rows, right):
    for array, other in zip(rows, right, strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_array_equal(array, other)


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))
def test_save_and_open(tmp_path_factory, R, C, N, M):
    """Every bit comes back, missing values and arrays without columns too."""
    rows, folder = drawn(R, C, N, M), tmp_path_factory.mktemp("rows") / "new" / "rows"
    rows.save(folder)
    opened = Rows.open(folder)
    same(opened, rows)
    assert opened.count == R and all(isinstance(array, np.memmap) for array in opened)


def test_what_is_open_cannot_be_changed(tmp_path):
    """A write into the map would change the run's data on disk; what is taken from it is a copy."""
    rows = drawn(4, 1, 1, 1)
    rows.save(tmp_path / "rows")
    opened = Rows.open(tmp_path / "rows")
    with pytest.raises(ValueError, match="read-only"):
        opened.numbers_RN[0, 0] = 1.0
    opened.take(np.array([0])).numbers_RN[0, 0] = 1.0
    same(Rows.open(tmp_path / "rows"), rows)


def test_save_overwrites_nothing(tmp_path):
    """Another run's rows may be there."""
    drawn(4, 1, 1, 1).save(tmp_path / "rows")
    with pytest.raises(FileExistsError):
        drawn(2, 1, 1, 1).save(tmp_path / "rows")
    assert Rows.open(tmp_path / "rows").count == 4


def test_take():
    """The same rows of every array, in the order given, with repeats; a mask too."""
    rows = drawn(5, 2, 2, 1)
    taken = rows.take(np.array([3, 0, 3]))
    assert taken.count == 3
    same(taken, [array[[3, 0, 3]] for array in rows])
    same(rows.take(rows.outcome_R >= 0), rows)
    assert rows.take(np.array([], np.int64)).count == 0
