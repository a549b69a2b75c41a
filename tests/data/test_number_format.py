"""NumberFormat: what is written in a format is read back, in polars and in Python alike; what is not, is no number."""

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.number_format import MARKS, NumberFormat, formats_of

UNITS = ("", "%", "$", "€", "USD", "kr")


def read(form, texts):
    """By both ways, which must agree."""
    frame = pl.DataFrame({"t": pl.Series(texts, dtype=pl.String)})
    values = frame.select(form.expression(pl.col("t"))).to_series().to_list()
    assert values == [form.value(text) for text in texts]
    return values


def written(cents, form, negative, behind, space):
    """An amount of hundredths as people write it."""
    whole, rest = divmod(abs(cents), 100)
    number = f"{whole:,}".replace(",", form.group) + f"{form.decimal}{rest:02d}"
    if form.unit == "%":
        number += space + "%"
    elif form.unit:
        number = number + space + form.unit if behind else form.unit + space + number
    if cents >= 0:
        return number
    return f"({number})" if negative == "(" else negative + number


@given(
    st.lists(st.integers(-(10**11), 10**11), min_size=1, max_size=20),
    st.sampled_from(MARKS),
    st.sampled_from(UNITS),
    st.sampled_from(["-", "\u2212", "("]),
    st.booleans(),
    st.sampled_from(["", " ", "\u00a0", "\u202f"]),
)
def test_round_trip(amounts, marks, unit, negative, behind, space):
    form = NumberFormat(*marks, unit)
    texts = [written(cents, form, negative, behind, space) for cents in amounts]
    assert read(form, texts) == [cents / 100 for cents in amounts]
    assert all(form in formats_of(text) for text in texts)


@given(
    st.text(alphabet="0123456789.,' \u00a0$€%()-+eEUSD", max_size=12), st.sampled_from(MARKS), st.sampled_from(UNITS)
)
def test_any_text_is_a_finite_number_or_none(text, marks, unit):
    (value,) = read(NumberFormat(*marks, unit), [text])
    assert value is None or math.isfinite(value)


@pytest.mark.parametrize(
    "text",
    ["1,20", "12,34,567", "1,2345", "1234,567", ",123", "1,,200", "0,123", "00", "007", "$007", "1,200,", "1 ,200"],
)
def test_separators_in_the_wrong_place(text):
    """And leading zeros: neither is guessed at."""
    for unit in UNITS:
        assert read(NumberFormat(".", ",", unit), [text]) == [None]


@pytest.mark.parametrize(
    "text", ["1e5", "--5", "(5", "5)", "(-5)", "$", "%", "-", "5$ 6", "€5$", "$5%", "1.2.3", "12:30", "0x1", "1_0", "٣"]
)
def test_what_is_no_number(text):
    """A stray mark, two units, another alphabet."""
    for unit in UNITS:
        assert read(NumberFormat(".", ",", unit), [text]) == [None]


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        (NumberFormat(",", " "), "1\u00a0200,50", 1200.5),
        (NumberFormat(",", " "), "1\u2009200\u202f300", 1200300),
        (NumberFormat(".", "'"), "1\u2019200.5", 1200.5),
        (NumberFormat(".", ",", "$"), "$1.234", None),
        (NumberFormat(",", ".", "€"), "€1.234", 1234),
        (NumberFormat(".", ",", "$"), "$-5", -5),
        (NumberFormat(".", ",", "$"), "-$5.5", -5.5),
        (NumberFormat(".", ",", "$"), "12", 12),
        (NumberFormat(".", ",", "%"), "12", None),
        (NumberFormat(".", ",", "%"), "12.5 %", 12.5),
        (NumberFormat(".", ","), "12%", None),
        (NumberFormat(",", " "), "+33 612 345 678", None),
        (NumberFormat(".", ","), "+1,200", 1200),
        (NumberFormat(".", ","), ".5", 0.5),
    ],
)
def test_cases(form, text, value):
    assert read(form, [text]) == [value]


def test_examples():
    assert NumberFormat(",", ".", "€").example == "€1.234,5" and NumberFormat(".", ",", "USD").example == "USD 1,234.5"
    assert NumberFormat(",", " ", "%").example == "12,5%"
    for marks in MARKS:
        for unit in UNITS:
            form = NumberFormat(*marks, unit)
            assert form.value(form.example) == (12.5 if unit == "%" else 1234.5)
