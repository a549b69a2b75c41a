"""Fits: what a whole column is read as, whatever the chunks it comes in."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.date_format import DateFormat
from gradproof.data.fits import Fits
from gradproof.data.number_format import NumberFormat
from gradproof.data.reading import BOOLEAN, ISO, NAMES, PLAIN, ColumnReading


def fit(texts, chunk=1000):
    fits = Fits()
    for start in range(0, len(texts), chunk):
        part = texts[start : start + chunk]
        fits.add(pl.Series(part, dtype=pl.String), np.arange(start, start + len(part)) + 1)
    return fits.decide()


def number(decimal, group, unit=""):
    return ColumnReading("number", NumberFormat(decimal, group, unit))


def date(order, separator):
    return ColumnReading("date", DateFormat(order, separator))


COLUMNS = {
    # what decides, by the whole column
    "plain": (["1", "-2.5", "1e3", "inf"], PLAIN),
    "years": (["1999", "2024", "2001"], PLAIN),
    "excel serials": (["45123", "45124.5"], PLAIN),
    "thousands": (["1,200", "950", "1,200,300.5"], number(".", ",")),
    "dollars": (["$1,200", "$5", "$7.50"], number(".", ",", "$")),
    "dollars, some without": (["$1,200", "300", "7.5"], number(".", ",", "$")),
    "euros behind": (["1.200,50 €", "12 €", "0,99 €"], number(",", ".", "€")),
    "euros in thousands": (["€1.234", "€999"], number(",", ".", "€")),
    "spaces": (["1 200,50", "3\u00a0400,00", "12\u202f345,6"], number(",", " ")),
    "salaries": (["52 000", "48 500"], number(",", " ")),
    "decimal comma": (["1,5", "12,25", "1.200,5"], number(",", ".")),
    "one value decides for a comma": (["1,234", "5,678", "1,5"], number(",", ".")),
    "one value decides for thousands": (["1.234", "5.678", "1.234.567"], number(",", ".")),
    "per cent": (["12.5%", "3 %", "-0.5%"], number(".", ",", "%")),
    "accounts": (["(1,200.00)", "35.10", "1,000"], number(".", ",")),
    "Swiss": (["1'200.50", "3'400"], number(".", "'")),
    "day first": (["05/01/2023", "13/01/2023"], date("dmy", "/")),
    "month first": (["05/01/2023", "01/13/2023"], date("mdy", "/")),
    "dots": (["31.12.2024", "1.2.2024 18:30"], date("dmy", ".")),
    "year first": (["2024/12/31", "2024/01/02"], date("ymd", "/")),
    "ISO": (["2024-01-31", "2024-01-31T10:00:00+02:00"], ISO),
    "yes and no": (["yes", "No", "Y", "n", "TRUE", "off"], BOOLEAN),
    # traps
    "zip codes": (["08001", "10115", "94103"], NAMES),
    "telephone": (["0151 1234567", "030 123456"], NAMES),
    "telephone abroad": (["+33 612 345 678", "+33 698 765 432"], NAMES),
    "telephone in threes": (["612 345 678", "698 765 432"], NAMES),
    "telephone with brackets": (["(555) 123-4567", "(555) 987-6543"], NAMES),
    "per cent and plain": (["12%", "0.12"], NAMES),
    "two currencies": (["$12", "€13"], NAMES),
    "wrong places": (["12,34", "1,2345,6"], NAMES),
    "both orders": (["13/01/2023", "01/13/2023"], NAMES),
    "two separators": (["13/01/2023", "13.01.2023"], NAMES),
    "versions": (["1.2.3", "1.10.2", "10.0.4"], NAMES),
    "addresses": (["10.0.0.1", "192.168.1.20"], NAMES),
    "social security": (["123-45-6789", "987-65-4321"], NAMES),
    "times": (["12:30", "9:05"], NAMES),
    "Ontario": (["ON", "ON"], NAMES),
    "words": (["red", "12 monkeys", "x" * 200], NAMES),
    "dates and numbers": (["2024-01-31", "5"], NAMES),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("chunk", [1, 1000])
def test_columns(name, chunk):
    texts, reading = COLUMNS[name]
    found = fit([*texts, None, *texts], chunk)
    assert found.reading == reading
    if reading != NAMES:
        assert found.fits == 2 * len(texts) and found.row == 0


@pytest.mark.parametrize(
    ("texts", "assumed"),
    [
        (["1,234", "12"], "',' is assumed to separate thousands: no value decides"),
        (["1,234", "1,234.5"], ""),
        (["1,234", "1,5"], ""),
        (["$5", "$7"], ""),
        (["1.234", "12"], "'.' is assumed to be the decimal point: no value decides"),
        (["1.234", "0.5"], ""),
        (["1 200", "12 000"], ""),
        (["05/01/2023", "06/02/2023"], "month first is assumed: no value above 12 decides"),
        (["05.01.2023", "06.02.2023"], "day first is assumed: no value above 12 decides"),
        (["05/01/2023", "06/22/2023"], ""),
    ],
)
def test_what_no_value_decides_is_said(texts, assumed):
    assert fit(texts).assumed == assumed


@pytest.mark.parametrize("name", [name for name, (_, reading) in COLUMNS.items() if reading not in (NAMES, PLAIN)])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_one_in_a_hundred_may_not_fit(name, chunk):
    """The first of them is named by its row; two in a hundred are too many."""
    texts, reading = COLUMNS[name]
    column = (texts * 300)[:300]
    few = fit([*column[:150], "oops", *column[150:297], "later"], chunk)
    assert (few.reading, few.fits, few.row, few.held) == (reading, 297, 151, "oops")
    assert fit([*column[:294], *["oops"] * 6], chunk).reading == NAMES


def test_codes_are_no_numbers():
    """One in fifty with a leading zero makes zip codes; one in two hundred is a typing error, and read as it is."""
    assert fit(["12345"] * 98 + ["01234"] * 2).reading == NAMES
    rare = fit(["12345"] * 199 + ["01234"])
    assert rare.reading == PLAIN and rare.fits == 200 and rare.row == 0


def test_nothing():
    assert fit([]).reading == fit([None, None]).reading == NAMES


CELLS = st.one_of(
    st.sampled_from([text for texts, _ in COLUMNS.values() for text in texts]),
    st.text(alphabet="0123456789.,/- $€%:yes", max_size=10),
)


@given(st.lists(CELLS, min_size=1, max_size=40), st.integers(1, 9))
def test_chunks_change_nothing(texts, chunk):
    assert fit(texts, chunk) == fit(texts)


@given(st.lists(CELLS, min_size=1, max_size=10))
def test_what_fits_is_read(texts):
    """As many values as were said to fit are read."""
    from gradproof.data.cells import number_of, truth_of, value_of

    found = fit(texts * 3)
    frame = pl.DataFrame({"t": texts * 3})
    if found.reading == NAMES:
        return
    cell = truth_of("t", pl.String()) if found.reading == BOOLEAN else value_of("t", pl.String(), found.reading)
    assert frame.select(cell).to_series().count() == found.fits
    assert found.reading == BOOLEAN or frame.select(number_of("t", pl.String(), found.reading)).height == len(texts) * 3
