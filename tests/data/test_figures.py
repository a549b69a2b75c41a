"""Counts and Moments by themselves: against Python's own counting and exact sums, whatever the chunks."""

import math
import statistics
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data import figures
from gradproof.data.figures import Counts, Moments
from gradproof.data.reading import ISO, PLAIN
from gradproof.data.schema import Category, Number


def counts(*chunks, name="c"):
    tally = Counts()
    for chunk in chunks:
        tally.add(pl.Series(name, chunk, pl.String))
    return tally


def moments(*chunks):
    """Of chunks of rows."""
    merged, start = Moments(len(chunks[0][0])), 0
    for chunk in chunks:
        merged.add(np.array(chunk, np.float64), np.arange(start, start + len(chunk)))
        start += len(chunk)
    return merged


def test_counts():
    """Over chunks, nulls apart; one name for a number or a truth value."""
    tally = counts(["u", "v", None, "1.0"], [], ["u", "1", "True", "true", None])
    assert tally.seen == Counter({"u": 2, "v": 1, "1": 2, "true": 2})
    assert (tally.present, tally.missing, tally.unique) == (7, 2, False)


@pytest.mark.parametrize("name", ["count", "proportion", "value", ""])
def test_counts_of_a_column_of_any_name(name):
    assert counts(["u", "u"], name=name).seen == {"u": 2}


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ([None, None], "has no value in the training rows"),
        (["u", "u"], "has the same value in all training rows"),
        (["u", "v"], "has no value that is seen more than once"),
        ([f"n{i}" for i in range(50)], "has a different value in nearly every row, like an id or free text"),
        (["u", None, "u"], Category("c", ("u",), missing=True)),
        (["v", "u", "v", "u"], Category("c", ("u", "v"))),
        (["v", "u", "v", "u", "w", None], Category("c", ("u", "v"), other=True, missing=True)),
        (["u", "u", "v"], Category("c", ("u",), other=True)),
    ],
)
def test_category(values, right):
    assert counts(values).category("c") == right


def test_too_many_names(monkeypatch):
    """Ids are forgotten, and stay so; names that come again are kept, the frequent ones."""
    monkeypatch.setattr(figures, "_TRACKED", 5)
    ids = counts([f"n{i}" for i in range(11)], ["u"] * 100)
    assert ids.unique and not ids.seen and "like an id" in ids.category("c")
    names = counts([f"n{i:02d}" for i in range(11)] * 2 + ["n10"])
    assert names.seen == {"n10": 3, "n00": 2, "n01": 2, "n02": 2, "n03": 2}


VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=30)


@given(VALUES, st.integers(1, 30))
def test_moments(values, chunk):
    """Against exact sums, for every size of a chunk."""
    rows = [[value] for value in values]
    merged = moments(*(rows[i : i + chunk] for i in range(0, len(rows), chunk)))
    known = [value for value in values if not math.isnan(value)]
    assert (merged.count_N[0], merged.missing_N[0]) == (len(known), len(values) - len(known))
    if not known:
        assert merged.number(0, "n", PLAIN) == "has no value in the training rows"
        return
    assert merged.extremes(0) == (min(known), max(known))
    scale = max(map(abs, known))
    assert merged.mean_N[0] == pytest.approx(statistics.fmean(known), abs=max(1e-13 * scale, 5e-324))
    assert merged.std_N[0] == pytest.approx(statistics.pstdev(known), rel=1e-9, abs=1e-13 * scale)


@pytest.mark.parametrize("scale", [1e300, 8e307, 1e-300])
def test_moments_do_not_overflow(scale):
    """Neither the sum of squares nor the distance of two chunks' means is a number here."""
    merged = moments([[-scale], [-scale]], [[scale], [scale]])
    assert merged.mean_N[0] == 0 and merged.std_N[0] == pytest.approx(scale)


def test_columns_do_not_touch_each_other():
    both = moments([[1, math.nan], [3, 7]], [[5, math.nan]])
    assert both.mean_N.tolist() == [3, 7] and both.count_N.tolist() == [3, 1] and both.missing_N.tolist() == [0, 2]


def test_number():
    """A constant tells something only where it is missing; a counter of rows tells nothing, a date may count."""
    nan = math.nan
    rows = [[i + 7, 2 * i, 5, nan if i % 2 else 5, nan if i == 3 else i] for i in range(60)]
    merged = moments(rows[:25], rows[25:])
    assert merged.number(0, "n", PLAIN) == "counts the rows"
    assert merged.number(0, "n", ISO) == Number("n", 36.5, pytest.approx(statistics.pstdev(range(60))), date=True)
    assert merged.number(1, "n", PLAIN) == Number("n", 59.0, pytest.approx(2 * statistics.pstdev(range(60))))
    assert merged.number(2, "n", PLAIN) == "has the same value in all training rows"
    assert merged.number(3, "n", PLAIN) == Number("n", 5.0, 1.0, missing=True)
    gaps = merged.number(4, "n", PLAIN)
    assert isinstance(gaps, Number) and gaps.missing
    few = moments(rows[:49])
    assert isinstance(few.number(0, "n", PLAIN), Number)
