import numpy as np
import pytest

from gradproof.data.decimals import with_padic
from gradproof.data.rows import Rows
from gradproof.data.schema import Number, Schema


def padic_numbers(*columns, train=None):
    """The numbers of a table with these columns, and what is said of them."""
    value_RN = np.array(columns, np.float64).T
    R = len(value_RN)
    rows = Rows(np.zeros((R, 0), np.int32), value_RN, np.zeros(R, np.int64), np.zeros((R, 0), np.float32))
    schema = Schema("y", ("a",), (), tuple(Number(f"n{i}", 0.0, 1.0) for i in range(len(columns))))
    schema, notes = with_padic(schema, rows, np.ones(R, bool) if train is None else np.array(train))
    return [(number.padic, number.decimals) for number in schema.numbers], notes


@pytest.mark.parametrize(
    ("column", "right"),
    [
        ([1, 2, -7], (1, 0)),
        ([0.5, 12, 3.25], (1, 2)),
        ([0.1, 0.2, 0.3], (1, 1)),
        ([1e-9, 0.5, 0], (2, 9)),
        ([2**24 - 1, 0, 5], (1, 0)),
        ([2**24, 0, 5], (2, 0)),
        ([16777.216, 0, 5], (2, 3)),
        ([-(2.0**62), 0, 5], (2, 0)),
        ([2.0**63, 0, 5], (0, 0)),
        ([1e300, 0.5, 5], (0, 0)),
        ([1e-10, 0.5, 5], (0, 0)),
        ([2.0**53 / 4 + 0.25, 0.5, 5], (0, 0)),
        ([0.1 + 0.2, 0.5, 5], (0, 0)),
        ([np.float32(0.1), 0.5, 5], (0, 0)),
        ([np.nan, 0.5, 5], (1, 1)),
        ([np.inf, 0.5, 5], (1, 1)),
        ([np.nan, np.nan, np.nan], (1, 0)),
    ],
)
def test_decimals_and_columns(column, right):
    """The smallest unit of which every value is a multiple; a second column only where digits need it."""
    (number,), notes = padic_numbers(column)
    assert number == right
    assert notes == (
        [] if right[0] else ["column 'n0' has no p-adic encoding: its numbers are no integers of a fixed unit"]
    )


def test_only_training_rows_count():
    """A held-out value must not decide the unit."""
    assert padic_numbers([1, 2, 0.125], train=[True, True, False])[0] == [(1, 0)]


def test_over_many_chunks():
    """Each chunk may need more decimals than those before; what they needed stays."""
    column = np.zeros(200_000)
    column[100], column[150_000] = 0.25, 0.5
    assert padic_numbers(column, -8 * column)[0] == [(1, 2), (1, 0)]
    column[199_999] = 1 / 3
    assert padic_numbers(column, -8 * column)[0] == [(0, 0), (0, 0)]
