"""rows_of: what is taken, as which slot or number, and the sentence for everything that is not."""

import math
import time

import numpy as np
import pytest

from gradproof.data.cells import PARTS
from gradproof.data.date_format import DateFormat
from gradproof.data.number_format import NumberFormat
from gradproof.data.schema import Category, Number, Schema
from gradproof.serve.records import BadRecord, RecordReader, rows_of


def codes(schema, record, **changed):
    return rows_of([record | changed], schema).codes_RC[0].tolist()


def numbers(schema, record, **changed):
    return rows_of([record | changed], schema).numbers_RN[0].tolist()


@pytest.mark.parametrize(
    ("colour", "slot"),
    [("red", 0), ("blue", 2), ("Red", 3), ("", 4), (" NA ", 4), (" red\n", 0), (1, 3), (True, 3), (None, 4)],
)
def test_slots_of_a_column_with_other_and_missing(schema, record, colour, slot):
    assert codes(schema, record, colour=colour)[0] == slot


@pytest.mark.parametrize(
    ("flag", "slot"), [(False, 0), (True, 1), ("true", 1), (" TRUE", 1), ("maybe", -1), (1, -1), (1.0, -1), (None, -1)]
)
def test_slots_of_a_column_without(schema, record, flag, slot):
    """1 is not true, though Python's dicts hold them to be equal; a null has no slot, not that of another value."""
    assert codes(schema, record, flag=flag)[1] == slot


def test_a_null_is_not_another_value():
    """A column that missed nothing in training has no slot for a null, even if it has one for other values."""
    schema = Schema("y", ("a", "b"), (Category("c", ("u", "v"), other=True),))
    assert rows_of([{"c": value} for value in ("v", "w", None)], schema).codes_RC[:, 0].tolist() == [1, 2, -1]


def test_names_written_as_numbers():
    """3 and 3.0 are one name, as a number and as text; 03 is another."""
    schema = Schema("y", ("a", "b"), (Category("level", ("3", "2.5", "03", "-7", "1e+16")),))
    rows = rows_of([{"level": value} for value in (3, 2.5, 3.0, -7, 1e16, "3", "3.0", "03", "+2.5", "2.50")], schema)
    assert rows.codes_RC[:, 0].tolist() == [0, 1, 0, 3, 4, 0, 0, 2, 1, -1]


def test_a_long_name_takes_no_time():
    """A pattern that tries every way to cut a million digits would stop the service."""
    schema = Schema("y", ("a", "b"), (Category("c", ("u",)),))
    start = time.perf_counter()
    texts = ["9" * 10**6 + "x", "1." + "10" * 500_000 + "x", "0." + "9" * 10**6, "1e" + "9" * 10**6, "." * 10**6]
    assert (rows_of([{"c": text} for text in texts], schema).codes_RC == -1).all()
    assert time.perf_counter() - start < 2


def test_numbers(schema, record):
    assert numbers(schema, record, weight=7, count=-0.25) == [7.0, -0.25]
    assert numbers(schema, record, weight=2**70)[0] == 2.0**70
    missing = numbers(schema, record, weight=None)
    assert math.isnan(missing[0]) and missing[1] == 3.0


def test_dtypes_and_order(schema, record):
    rows = rows_of([record | {"count": i} for i in range(5)], schema)
    assert [array.dtype for array in rows] == [np.int32, np.float64, np.int64, np.float32]
    assert rows.numbers_RN[:, 1].tolist() == [0, 1, 2, 3, 4]
    assert rows.outcome_R.tolist() == [-1] * 5 and rows.metrics_RM.shape == (5, 2)
    assert np.isnan(rows.metrics_RM).all()


def test_targets_and_columns_left_out_are_ignored(schema, record):
    assert codes(schema, record, outcome="bad", cost=[1], risk="x", id=None) == codes(schema, record)


HUGE = pytest.param(-(10**5000), id="more digits than Python writes")


@pytest.mark.parametrize("value", [True, False, [1], {}, math.nan, math.inf, -math.inf, 10**400, HUGE])
def test_a_number_column_refuses(schema, record, value):
    with pytest.raises(BadRecord, match=r"^record 2: 'weight' must be a (finite )?number or null, not .{1,60}$"):
        rows_of([record, record | {"weight": value}], schema)


@pytest.mark.parametrize("value", [[], {}, ["red"], math.nan, math.inf, HUGE])
def test_a_category_refuses(schema, record, value):
    with pytest.raises(BadRecord, match=r"^record 1: 'colour' must be text, .* or null, not .{1,60}$"):
        rows_of([record | {"colour": value}], schema)


@pytest.mark.parametrize("value", [None, 3, "x", [], [["colour", "red"]], True])
def test_a_record_is_an_object(schema, record, value):
    with pytest.raises(BadRecord, match=r"^record 3 must be an object of column: value, not "):
        rows_of([record, record, value, record], schema)


def test_sentences(schema, record):
    def sentence(value):
        with pytest.raises(BadRecord) as raised:
            rows_of([value], schema)
        return str(raised.value)

    lacking = {"flag": True, "weight": 1}
    assert sentence(lacking) == "record 1 lacks 'colour', 'count'; use null for a missing value"
    unknown = "record 1 has 'color', which the model does not know; omit it"
    assert sentence(record | {"color": "red"}) == unknown
    assert sentence(record | {"count": [3]}) == "record 1: 'count' must be a number or null, not a list"
    assert sentence(record | {"count": 10**400}).endswith("not an integer beyond the largest float")
    assert sentence(record | {"count": math.nan}).endswith("must be a finite number or null, not NaN")


def test_a_sentence_stays_short(schema, record):
    """Whatever was sent, it is not sent back whole."""
    for bad in (record | {"x" * 10**6: 1}, record | {"colour": ["y" * 10**6]}, dict.fromkeys(map(str, range(10**5)))):
        with pytest.raises(BadRecord) as raised:
            rows_of([bad], schema)
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize("width", [0, 1, 2])
def test_any_number_of_columns(width):
    """One column, or none of a kind, is a table too."""
    names, numbers = [f"c{i}" for i in range(width)], [f"n{i}" for i in range(2 - width)]
    schema = Schema("y", ("a", "b"), tuple(Category(n, ("u",)) for n in names), tuple(Number(n, 0, 1) for n in numbers))
    rows = rows_of([dict.fromkeys(names, "u") | dict.fromkeys(numbers, 5)] * 3, schema)
    assert rows.codes_RC.tolist() == [[0] * width] * 3 and rows.numbers_RN.tolist() == [[5.0] * (2 - width)] * 3


DATED = Schema("y", ("a", "b"), (Category("c", ("u",)),), (Number("n", 0, 1), Number("day", 0, 1, date=True)))


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-02",
        "2024-02-29",
        "1969-07-20T20:17Z",
        "2024-05-31 12:30",
        "2024-05-31T12:30:15.5",
        "2024-05-31T12:30:15+02:00",
        "2024-05-31T12:30:15.123456789-0330",
        " 2024-05-31 ",
        "NA",
        None,
    ],
)
def test_dates_are_read_as_from_a_file(text):
    """JSON and CSV say the same."""
    import polars as pl

    from gradproof.data.frame import encode

    frame = pl.DataFrame({"c": ["u"], "n": ["2.5"], "day": [text]}, schema_overrides={"day": pl.String})
    rows = rows_of([{"c": "u", "n": 2.5, "day": text}], DATED)
    for a, b in zip(rows, encode(DATED, frame), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (text in (None, "NA")) == np.isnan(rows.numbers_RN[0, 1])


@pytest.mark.parametrize("value", ["2024-02-30", "31.5.2024", "20240531", "yesterday", "2024-05-31x"])
def test_a_text_that_is_no_date_is_missing_and_named(value):
    rows, unread = RecordReader(DATED).read([{"c": "u", "n": n, "day": value} for n in (1, " 2.5 ", "1,5", "")])
    assert unread == {0: ["day"], 1: ["day"], 2: ["n", "day"], 3: ["day"]}
    np.testing.assert_array_equal(rows.numbers_RN[:, 0], [1, 2.5, np.nan, np.nan])
    assert np.isnan(rows.numbers_RN[:, 1]).all()


@pytest.mark.parametrize("value", [19000, True, []])
def test_a_date_refuses(value):
    with pytest.raises(BadRecord, match=r"^record 1: 'day' must be a date like '2024-05-31' or null, not "):
        rows_of([{"c": "u", "n": 1, "day": value}], DATED)


def test_a_file_and_json_make_the_same_rows(schema, record):
    import polars as pl

    from gradproof.data.frame import encode

    records = [record | {"colour": c, "flag": f} for c in ("red", "mauve", None) for f in ("true", "x", None)]
    records += [record | {"weight": w, "count": c} for w in (1, -2.5, None) for c in (0.1, 10**6)]
    text = [{k: v if v is None else str(v) for k, v in typed.items()} for typed in records]
    for typed, plain in zip(records, text, strict=True):
        plain["flag"] = {True: "true"}.get(typed["flag"], typed["flag"])
    for a, b in zip(rows_of(records, schema), encode(schema, pl.DataFrame(text)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


NAMES = Schema(
    "y",
    ("a", "b"),
    (
        Category("flag", ("false", "true"), missing=True),
        Category("zip", ("007", "101", "7"), other=True, missing=True),
        Category("half", ("0.5", "1", "1e+16"), other=True, missing=True),
        Category("word", ("red", "true", "x y"), other=True, missing=True),
    ),
    (Number("n", 0, 1), Number("day", 0, 1, date=True)),
)
SAME = {  # as JSON, and as pandas and others write them
    "flag": ([True, False, None, True], ["True", "FALSE", "", " true "], [True, False, None, True]),
    "zip": ([101, 101.0, None, 8], ["101", "101.0", "NA", "8.0"], [101.0, 101.0, math.nan, 8.0]),
    "half": ([0.5, 1, 1.0, 1e16], ["0.5", "1", "1.0", "1e+16"], [0.5, 1.0, 1.0, 1e16]),
    "word": ([" red", "N/A", "mauve", True], ["red ", "?", "mauve", "True"], ["red", "-", "mauve", "TRUE"]),
    "n": ([1, 0.25, None, -3], ["1.0", " 0.25", "null", "-3"], [1.0, 0.25, math.nan, -3.0]),
    "day": (["1970-01-02", None, "1970-01-03T12:00", "NaN"],) * 2 + ([1, None, 2.5, None],),
}


def test_csv_parquet_and_json_make_the_same_rows(tmp_path):
    """The same rows, three ways: a spelling that only one of them knows would be a silent wrong answer."""
    import polars as pl

    from gradproof.data.frame import encode
    from gradproof.data.table import Table

    json, text, typed = ({name: ways[i] for name, ways in SAME.items()} for i in range(3))
    pl.DataFrame(text).write_csv(tmp_path / "t.csv", quote_style="always")
    moment = (pl.col("day") * 86_400_000_000).cast(pl.Int64).cast(pl.Datetime("us"))
    pl.DataFrame(typed, strict=False).with_columns(moment).write_parquet(tmp_path / "t.parquet")
    readings = [rows_of([dict(zip(json, row, strict=True)) for row in zip(*json.values(), strict=True)], NAMES)]
    for name in ("t.csv", "t.parquet"):
        (frame,) = Table(tmp_path / name).chunks()
        readings.append(encode(NAMES, frame))
    assert readings[0].codes_RC.T.tolist() == [[1, 0, 2, 1], [1, 1, 4, 3], [0, 1, 1, 2], [0, 4, 3, 1]]
    np.testing.assert_array_equal(readings[0].numbers_RN.T, [[1, 0.25, np.nan, -3], [1, np.nan, 2.5, np.nan]])
    for rows in readings[1:]:
        for a, b in zip(readings[0], rows, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


WRITTEN = Schema(
    "y",
    ("a", "b"),
    (Category("sure", ("false", "true"), missing=True, boolean=True),),
    (
        Number("cost", 0, 1, format=NumberFormat(".", ",", "$")),
        Number("day", 0, 1, date=True, format=DateFormat("dmy", "/")),
        *(Number("day", 0, 1, date=True, format=DateFormat("dmy", "/"), part=part) for part in PARTS),
        *(Number("at", 0, 1, date=True, part=part) for part in ("", "weekday", "time")),
        Number("plain", 0, 1),
    ),
)


def test_text_is_read_as_in_a_file():
    """Formats, parts of dates and words of truth, and what does not fit them."""
    import polars as pl

    from gradproof.data.frame import encode

    texts = {
        "sure": ["YES", "n", "maybe", None, " off"],
        "cost": ["$1,200.50", "(12)", "1,5", "NA", "-$3"],
        "day": ["31/12/2024", "1/2/2024 6:30 PM", "12/31/2024", "", "01/01/1969"],
        "at": ["2024-02-29T23:30:15.25+01:00", "2024-02-30", None, "1960-01-01 00:00", "x"],
        "plain": ["1e3", "inf", "007", "1_0", "-.5"],
    }
    unread = {}
    rows = encode(WRITTEN, pl.DataFrame(texts), 0, unread)
    read, named = RecordReader(WRITTEN).read(
        [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    )
    for a, b in zip(read, rows, strict=True):
        np.testing.assert_array_equal(a, b)
    assert named == {1: ["at"], 2: ["sure", "cost", "day"], 3: ["plain"], 4: ["at"]}
    assert {name: u.values for name, u in unread.items()} == {"sure": 1, "cost": 1, "day": 1, "at": 2, "plain": 1}
    assert read.codes_RC[:, 0].tolist() == [1, 0, 2, 2, 0]
    assert read.numbers_RN[1, 1:6].tolist() == [19754.770833333332, 2024, 2, 4, 18.5]
