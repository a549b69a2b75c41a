"""DateFormat: what is written in a format is read back, in polars and in Python alike."""

from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.date_format import FORMATS, DateFormat, date_formats_of

CLOCKS = ("", " %H:%M", "T%H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S%p")


def read(form, texts):
    """By both ways, which must agree."""
    frame = pl.DataFrame({"t": pl.Series(texts, dtype=pl.String)})
    moments = frame.select(form.expression(pl.col("t"))).to_series().dt.replace_time_zone("UTC").to_list()
    assert moments == [form.value(text) for text in texts]
    return moments


@given(
    st.lists(st.datetimes(datetime(1000, 1, 1), datetime(2999, 12, 31)), min_size=1, max_size=10),
    st.sampled_from(FORMATS),
    st.sampled_from(CLOCKS),
    st.booleans(),
)
def test_round_trip(moments, form, clock, padded):
    letters = {
        "y": "{0.year}",
        "m": "{0.month:02d}" if padded else "{0.month}",
        "d": "{0.day:02d}" if padded else "{0.day}",
    }
    day = form.separator.join(letters[field] for field in form.order)
    # What the clock does not say is not read back.
    kept = {"": (0, 0, 0, 0), " %H:%M": (None, None, 0, 0), " %I:%M %p": (None, None, 0, 0)}
    kept |= {"T%H:%M:%S": (None, None, None, 0), " %I:%M:%S%p": (None, None, None, 0)}
    names = ("hour", "minute", "second", "microsecond")
    lost = {name: 0 for name, keep in zip(names, kept.get(clock, (None,) * 4), strict=True) if keep == 0}
    texts = [day.format(moment) + moment.strftime(clock) for moment in moments]
    assert read(form, texts) == [moment.replace(**lost, tzinfo=UTC) for moment in moments]
    assert all(form in date_formats_of(text) for text in texts)


@pytest.mark.parametrize(
    ("day", "clock"),
    [(day, "") for day in ("30/02/2024", "32/01/2024", "01/13/2024", "00/01/2024", "1/1/24", "1/1/02024", "1-1/2024")]
    + [(day, "") for day in ("1/1/2024x", "1/1/2024 ", "1/1", "", "1/1/0000")]
    + [("1/1/2024", clock) for clock in (" 24:00", " 13:00 PM", " 0:30 AM", " 10:60", " 10", " 10:00:60", " 10:00 +1")],
)
def test_what_is_no_date(day, clock):
    assert read(DateFormat("dmy", "/"), [day + clock]) == [None]


@given(st.text(alphabet="0123456789/.-: TAPMapm", max_size=22), st.sampled_from(FORMATS))
def test_any_text(text, form):
    read(form, [text])


def test_example():
    assert DateFormat("dmy", ".").example == "day.month.year" and DateFormat("mdy", "/").example == "month/day/year"
