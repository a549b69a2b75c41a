import datetime
import json
import math
import re
import statistics
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data import figures, infer, table
from gradproof.data.frame import encode
from gradproof.data.infer import read
from gradproof.data.roles import check_columns
from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Metric, Number, Schema, one_name


def everything(outcome_R):
    return np.ones(len(outcome_R), bool)


def first(count):
    return lambda outcome_R: np.arange(len(outcome_R)) < count


class Reader:
    """read(columns or CSV text, target, ...), from a file and into a folder of its own."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def __call__(self, data, target="y", *, name="t.csv", split=everything, **options):
        self.count += 1
        path, out = self.folder / f"{self.count}{name}", self.folder / f"rows{self.count}"
        if isinstance(data, str):
            path.write_text(data, encoding="utf-8")
        else:
            frame = pl.DataFrame(data)
            (frame.write_csv if name.endswith("csv") else frame.write_parquet)(path)
        read_table = read(path, target, split=split, folder=out, **options)
        same(read_table.rows, Rows.open(out))
        return read_table


@pytest.fixture
def reader(tmp_path):
    return Reader(tmp_path)


def same(rows, right):
    for array, other in zip(rows, right, strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_array_equal(array, other)


def mixed(count=120):
    """Every kind of column, missing values in each."""
    rng = np.random.default_rng(0)
    gone = rng.random((count, 6)) < 0.2

    def some(values, column):
        return [None if gone[i, column] else value for i, value in enumerate(values)]

    day = datetime.date(1969, 12, 1)
    return {
        "y": [("no", "yes", "perhaps")[i % 3] for i in range(count)],
        "x": some(rng.normal(5, 2, count).tolist(), 0),
        "n": some(rng.integers(-5, 2**40, count).tolist(), 1),
        "color": some([["red", "grün", "x, y", 'q"'][i] for i in rng.integers(0, 4, count)], 2),
        "flag": some((rng.random(count) < 0.5).tolist(), 3),
        "when": some([day + datetime.timedelta(int(i)) for i in rng.integers(0, 900, count)], 4),
        "at": some([datetime.datetime(2024, 1, 1, int(i), 30, 5, 250_000) for i in rng.integers(0, 24, count)], 5),
        "score": rng.uniform(-2, 7, count).tolist(),
    }


def test_what_a_table_becomes(reader):
    """By hand: the order of columns, slots, classes; figures of the training rows; codes and numbers of all rows."""
    text = "b,y,a\nu,10,1\nv,2,NA\nu,10,3\nv,2,5\nw,10,7\n,2,100\n"
    read_table = reader(text, split=first(5))
    assert read_table.schema == Schema(
        "y",
        ("2", "10"),
        (Category("b", ("u", "v"), other=True, missing=False),),
        (Number("a", 4.0, math.sqrt(5.0), missing=True),),
    )
    assert read_table.notes == []
    same(
        read_table.rows,
        Rows(
            np.array([[0], [1], [0], [1], [2], [-1]], np.int32),
            np.array([[1], [np.nan], [3], [5], [7], [100]], np.float64),
            np.array([1, 0, 1, 0, 1, 0]),
            np.empty((6, 0), np.float32),
        ),
    )


def test_csv_and_parquet_agree(reader):
    """The same table, written twice: kinds, figures, texts, dates and rows must not depend on the format."""
    options = dict(metrics=["score"], split=first(90))
    text, typed = reader(mixed(), **options), reader(mixed(), name="t.parquet", **options)
    assert text.schema == typed.schema and text.notes == typed.notes
    same(text.rows, typed.rows)
    assert [c.name for c in text.schema.categories] == ["color", "flag"]
    assert text.schema.categories[1].values == ("false", "true")
    assert [c.boolean for c in text.schema.categories] == [False, True]
    dates = [("when", ""), ("when", "year"), ("when", "month"), ("when", "weekday"), ("at", ""), ("at", "time")]
    assert [(n.name, n.part) for n in text.schema.numbers] == [("x", ""), ("n", ""), *dates]
    assert [n.date for n in text.schema.numbers] == [False] * 2 + [True] * 6


@pytest.mark.parametrize(
    ("chunk", "name"),
    [(1, "t.parquet"), (7, "t.csv"), (7, "t.parquet"), pytest.param(1, "t.csv", marks=pytest.mark.slow)],
)
def test_chunks_change_nothing(reader, monkeypatch, name, chunk):
    """A value at a chunk's edge that is lost, counted twice or judged without those before it would show."""
    options = dict(metrics=["score"], split=lambda outcome_R: np.arange(len(outcome_R)) % 5 != 0, name=name)
    data = mixed(60) | {"y": [None, *mixed(59)["y"]], "late": ["1"] * 59 + ["x"]}
    data |= {"turned": ["1"] * 30 + ["2024-01-01"] * 30, "returned": ["2024-01-01"] * 30 + ["1"] * 30}
    whole = reader(data, **options)
    monkeypatch.setattr(infer, "CHUNK", chunk)
    monkeypatch.setattr(table, "_BLOCK", 100)
    pieces = reader(data, **options)
    assert pieces.notes == whole.notes and pieces.schema.categories == whole.schema.categories
    for number, right in zip(pieces.schema.numbers, whole.schema.numbers, strict=True):
        assert replace(number, mean=0.0, std=0.0) == replace(right, mean=0.0, std=0.0)
        assert number.mean == pytest.approx(right.mean, rel=1e-13) and number.std == pytest.approx(right.std, rel=1e-13)
    assert pieces.schema.metrics == whole.schema.metrics
    same(pieces.rows, whole.rows)


@pytest.mark.parametrize("column", ["x", "n", "color", "flag", "when", "at", "score"])
def test_figures_are_those_of_the_training_rows(reader, column):
    """A held-out value that moved a mean, a slot or a scale would have leaked into training."""
    strange = dict(x=1e9, n=-(2**50), color="never seen", flag=None, score=-1e6)
    strange |= dict(when=datetime.date(2400, 1, 1), at=datetime.datetime(1900, 1, 1))
    data = mixed()
    before = reader(data, metrics=["score"], split=first(100), name="t.parquet")
    data[column] = [*data[column][:100], strange[column], None if column != "score" else 1e6, *data[column][102:]]
    after = reader(data, metrics=["score"], split=first(100), name="t.parquet")
    assert after.schema == before.schema
    same(after.rows.take(np.arange(100)), before.rows.take(np.arange(100)))


def test_prediction_reads_as_training_did(reader):
    """`encode` on the table itself gives the rows that were trained on, whatever else is in it and in what order."""
    trained = reader(mixed(), metrics=["score"], ignore=["n"], split=first(60))
    frame = pl.DataFrame(mixed())
    same(encode(trained.schema, frame), trained.rows)
    same(encode(trained.schema, frame.select(reversed(frame.columns)).with_columns(more=1)), trained.rows)
    again = Schema.from_dict(json.loads(json.dumps(trained.schema.to_dict())))
    same(encode(again, frame), trained.rows)


def test_prediction_without_answers(reader):
    """Outcome −1 and metrics NaN where the table does not say; a class that was never seen is no class."""
    trained = reader(mixed(), metrics=["score"])
    rows = encode(trained.schema, pl.DataFrame(mixed()).drop("y", "score"))
    assert (rows.outcome_R == -1).all() and np.isnan(rows.metrics_RM).all() and rows.metrics_RM.shape == (120, 1)
    same(rows[:2], trained.rows[:2])
    rows = encode(trained.schema, pl.DataFrame(mixed()).with_columns(y=pl.Series(["yes", "new", None, "?"] * 30)))
    assert rows.outcome_R.tolist() == [2, -1, -1, -1] * 30


def test_prediction_meets_new_values():
    """Unseen names, infinities, blanks and other types: no error, and never a wrong slot."""
    schema = Schema(
        "y",
        ("a", "b"),
        (Category("p", ("1", "true"), other=True, missing=True), Category("q", ("u",))),
        (Number("n", 0.0, 1.0), Number("d", 0.0, 1.0, date=True)),
    )
    text = pl.DataFrame(
        {
            "p": ["1", " 1 ", "2", None, "NA"],
            "q": ["u", "v", "", None, "U"],
            "n": ["1e3", "?", "inf", "-Infinity", " -0.0"],
            "d": ["1970-01-02", "", "1969-12-31T12:00Z", "1970-01-01 06:00:00+06:00", "-"],
        }
    )
    rows = encode(schema, text)
    assert rows.codes_RC.tolist() == [[0, 0], [0, -1], [2, -1], [3, -1], [3, -1]]
    np.testing.assert_array_equal(rows.numbers_RN[:, 0], [1000, np.nan, np.nan, np.nan, 0])
    np.testing.assert_array_equal(rows.numbers_RN[:, 1], [1, np.nan, -0.5, 0, np.nan])
    typed = pl.DataFrame({"p": [1, 2, None], "q": [[1], [2], None], "n": [None] * 3, "d": [None] * 3})
    rows = encode(schema, typed)
    assert rows.codes_RC.tolist() == [[0, -1], [2, -1], [3, -1]] and np.isnan(rows.numbers_RN).all()
    rows = encode(schema, typed.with_columns(p=pl.Series([True, False, None]), n=pl.Series([math.inf, 1.5, math.nan])))
    assert rows.codes_RC[:, 0].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(rows.numbers_RN[:, 0], [np.nan, 1.5, np.nan])
    with pytest.raises(ValueError, match=r"no column 'q', 'd'; every column"):
        encode(schema, text.drop("q", "d"))


@pytest.mark.parametrize(
    ("column", "cells", "missing", "sentence"),
    [
        ("n", ["1", "", "0.3 kg"], 1, "'n': 1 value is not a number and counts as missing; row 13 holds '0.3 kg'"),
        ("n", ["1,5", "2", "3"], 0, "column 'n': 1 value is not a number and counts as missing; row 11 holds '1,5'"),
        ("n", [None, True, True], 1, "'n': 2 values are not a number and count as missing; the first is 'True' in row"),
        ("n", ["y" * 99, "1", "2"], 0, f"column 'n': 1 value .* row 11 holds '{'y' * 39}…'"),
        ("d", ["2024-01-01", "NA", "31.1.2024"], 1, "'d': 1 value is not a date like '2024-05-31' and counts as"),
        ("d", [None, 5, 6], 1, "column 'd': 2 values are not a date like '2024-05-31' .* is '5' in row 12"),
    ],
)
def test_prediction_counts_what_is_no_number(column, cells, missing, sentence):
    """Silently missing, a whole column of another unit or format would decide nothing, and nobody would know."""
    schema = Schema("y", ("a", "b"), (), (Number("n", 0.0, 1.0), Number("d", 0.0, 1.0, date=True)))
    frame = pl.DataFrame({"n": [None] * 3, "d": [None] * 3}).with_columns(pl.Series(column, cells))
    unread = {}
    rows = encode(schema, frame, 10, unread)
    assert re.search(sentence, unread[column].sentence(column))
    assert np.isnan(rows.numbers_RN[:, "nd".index(column)]).sum() == unread[column].values + missing


def test_prediction_gives_writable_arrays(reader):
    """torch warns of those that are not."""
    schema = reader(mixed(), metrics=["score"]).schema
    for frame in (pl.DataFrame(mixed()), pl.DataFrame(mixed()).select("y", "x", "n", "color", "flag", "when", "at")):
        for array in encode(schema, frame):
            assert array.flags.writeable and array.flags.c_contiguous
    one = Schema("y", ("a", "b"), (), (Number("n", 0.0, 1.0),))
    assert all(array.flags.writeable for array in encode(one, pl.DataFrame({"n": [1.0, 2.0], "y": ["a", "b"]})))


def test_truth_has_one_spelling(reader):
    """pandas writes True, Parquet holds true: features and targets of either are the same."""
    truth = [True, False, None, True, False, True]
    written = [{True: "True", False: "False", None: None}[value] for value in truth]
    target = [value is True for value in truth]
    text = reader({"a": written, "y": list(map(str, target))})
    typed = reader({"a": truth, "y": target}, name="t.parquet")
    assert text.schema == typed.schema and text.schema.classes == ("false", "true")
    assert text.schema.categories == (Category("a", ("false", "true"), missing=True, boolean=True),)
    same(text.rows, typed.rows)
    same(encode(text.schema, pl.DataFrame({"a": truth, "y": target})), text.rows)
    same(encode(replace(text.schema, classes=("False", "True")), pl.DataFrame({"a": truth, "y": target})), text.rows)


def test_numbers_as_names_have_one_spelling(reader):
    """With a missing value, pandas makes floats of integers."""
    data = {"y": list("ababab"), "zip": [101, 102, 101, 102, 7, 7]}
    trained = reader(data, categorical=["zip"])
    for zips in (["101.0", "102.0", "101", " 102.0", "7.0", "7"], [101.0, 102.0, 101.0, 102.0, 7.0, 7.0]):
        same(encode(trained.schema, pl.DataFrame(data | {"zip": zips})), trained.rows)
        for name in ("t.csv", "t.parquet"):
            assert reader(data | {"zip": zips}, categorical=["zip"], name=name).schema == trained.schema
    versions = reader(data | {"zip": ["3.1", "3.10", "3.1", "3.10", "007", "007"]}, categorical=["zip"])
    assert versions.schema.categories[0].values == ("007", "3.1", "3.10")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("column", ["count", "literal", "len", "index", "value", "", "proportion"])
def test_any_column_name(reader, column, name):
    """Names that polars gives to columns of its own."""
    words, numbers = ["u", "v", "u", "v", None], [1, 5, 7, 2, None]
    for values in (words, numbers):
        read_table = reader({column: values, "y": list("ababa")}, name=name)
        assert len(read_table.schema.categories + read_table.schema.numbers) == 1
    assert reader({column: list("ababa"), "x": numbers}, target=column or "column_1" * name.endswith("csv"), name=name)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(("odd", "held"), [(["oops"] * 10, "oops"), (["1,5", "2,5"] * 5, "1,5")])
def test_an_almost_numeric_column_says_why(reader, monkeypatch, name, odd, held):
    """Two bad cells in a hundred make names of numbers; 'like an id' would send the user the wrong way."""
    monkeypatch.setattr(infer, "CHUNK", 50)
    numbers = [str(i * 0.37) for i in range(400)]
    numbers[200 : 200 + len(odd)] = odd
    data = {"y": ["a", None, "b", "a"] * 100, "x": numbers, "few": [*"1234"] * 97 + ["1", "2", "u", "u"] * 3}
    data |= {"id": [f"n{i}" for i in range(400)], "z": [i * i for i in range(400)]}
    read_table = reader(data, name=name)
    reason = f"is read as names, since row 201 holds '{held}', not a number"
    assert read_table.schema.left_out["x"] == reason and "like an id" in read_table.schema.left_out["id"]
    assert f"column 'x' is left out: it {reason}" in read_table.notes
    assert "column 'few' is read as names, since row 391 holds 'u', not a number" in read_table.notes
    forced = reader(data, name=name, categorical=["few"])
    assert not any("few" in note for note in forced.notes)


def test_a_column_of_numbers_takes_one_bad_cell_in_a_hundred(reader, monkeypatch):
    """It is missing, with a flag, and named; the rest are the numbers that they would be without it."""
    monkeypatch.setattr(infer, "CHUNK", 50)
    numbers = [str(i * 0.37) for i in range(300)]
    data = {"y": ["a", "b", "a"] * 100, "x": numbers}
    right = reader({"y": data["y"], "x": [*numbers[:200], None, *numbers[201:]]})
    odd = reader({"y": data["y"], "x": [*numbers[:200], "oops", *numbers[201:]]})
    assert odd.schema == right.schema and odd.schema.numbers[0].missing
    same(odd.rows, right.rows)
    assert odd.notes == ["column 'x': 1 value is not a number and counts as missing; row 201 holds 'oops'"]


def as_written(count=200):
    """Every format, and the same values with their types; a few cells of each are missing."""
    rng = np.random.default_rng(1)
    cents, per_mille = rng.integers(-(10**7), 10**7, count), rng.integers(0, 1000, count)
    moments = [
        datetime.datetime(2020, 1, 1) + datetime.timedelta(minutes=int(m)) for m in rng.integers(0, 10**6, count)
    ]
    truths = rng.integers(0, 2, count).astype(bool)

    def some(values):
        return [None if i % 11 == 3 else value for i, value in enumerate(values)]

    text = {
        "dollars": [f"${c / 100:,.2f}" if c >= 0 else f"(${-c / 100:,.2f})" for c in cents],
        "comma": [f"{c / 100:,.2f}".replace(",", "\u00a0").replace(".", ",") for c in cents],
        "share": [f"{p / 10}%" for p in per_mille],
        "us": [m.strftime("%m/%d/%Y %I:%M %p") for m in moments],
        "german": [m.strftime("%d.%m.%Y") for m in moments],
        "sure": [(["yes", "Y", "TRUE"] if t else ["no", "n", "off"])[i % 3] for i, t in enumerate(truths)],
    }
    typed = {"dollars": (cents / 100).tolist(), "comma": (cents / 100).tolist(), "share": (per_mille / 10).tolist()}
    typed |= {"us": moments, "german": [m.date() for m in moments], "sure": truths.tolist()}
    answers = {"y": ["a", "b"] * (count // 2)}
    return answers | {k: some(v) for k, v in text.items()}, answers | {k: some(v) for k, v in typed.items()}


def test_columns_as_people_write_them(reader):
    """They are the numbers, dates and truths that a typed file would hold: the same rows, slots and figures."""
    text, typed = as_written()
    read_text, read_typed = reader(text, split=first(150)), reader(typed, name="t.parquet", split=first(150))
    same(read_text.rows, read_typed.rows)
    plain = [replace(number, format=None) for number in read_text.schema.numbers]
    assert tuple(plain) == read_typed.schema.numbers and read_text.schema.categories == read_typed.schema.categories
    examples = {number.name: number.format.example for number in read_text.schema.numbers}
    assert examples == {
        "dollars": "$1,234.5",
        "comma": "1 234,5",
        "share": "12.5%",
        "us": "month/day/year",
        "german": "day.month.year",
    }
    dated = [number.part for number in read_text.schema.numbers if number.name == "us"]
    assert dated == ["", "year", "month", "weekday", "time"] and read_text.notes == []


def test_the_same_reading_in_prediction(reader):
    """From the saved schema, text and types alike; what a value alone would suggest does not count."""
    text, typed = as_written()
    trained = reader(text)
    again = Schema.from_dict(json.loads(json.dumps(trained.schema.to_dict())))
    assert again == trained.schema
    for data in (text, typed):
        unread = {}
        same(encode(again, pl.DataFrame(data), 0, unread), trained.rows)
        assert unread == {}
    row = {"y": ["a"], "dollars": ["1,5"], "comma": ["1.234"], "share": ["0.125"], "us": ["13/01/2023"]}
    row |= {"german": ["2023-01-13"], "sure": ["maybe"]}
    unread = {}
    rows = encode(again, pl.DataFrame(row), 0, unread)
    assert list(unread) == ["sure", "dollars", "comma", "share", "us", "german"]
    assert np.isnan(rows.numbers_RN).all() and rows.codes_RC.tolist() == [[2]]
    assert unread["us"].sentence("us").startswith("column 'us': 1 value is not a date like 'month/day/year' and counts")


def test_forced_names_are_names_whatever_they_look_like(reader):
    text, _ = as_written()
    few = ["dollars", "us", "sure"]
    for name in few:
        text[name] = [
            None if value is None else [*dict.fromkeys(text[name])][i % 2] for i, value in enumerate(text[name])
        ]
    schema = reader(text, categorical=few).schema
    assert [category.name for category in schema.categories] == few and not any(c.boolean for c in schema.categories)


def test_targets_of_truth_and_of_dates(reader):
    """Classes keep their written names; a date is no class, in text or in a type."""
    data = {"y": ["Yes", "no"] * 10, "x": [i * i for i in range(20)]}
    assert reader(data).schema.classes == ("Yes", "no")
    days = [datetime.date(2024, 1, 1 + i % 3) for i in range(20)]
    for y, name in ((days, "t.parquet"), (days, "t.csv"), ([d.strftime("%d.%m.%Y") for d in days], "t.csv")):
        with pytest.raises(ValueError, match=r"column 'y' of .* holds dates; choose another target"):
            reader({"y": y, "x": data["x"]}, name=name)


def test_metrics_too_far_apart(reader):
    """The distance overflows: every metric would be NaN."""
    data = {"y": list("abab"), "a": [1, 5, 2, 9], "m": [-1e308, 1e308, 0.0, 1.0]}
    with pytest.raises(ValueError, match=r"metric column 'm' of .* reaches from -1e\+308 to 1e\+308, .*scale it down"):
        reader(data, metrics=["m"])
    assert not (reader.folder / "rows1").exists()


@pytest.mark.parametrize("token", ["None", "NA", "-"])
def test_a_class_that_counts_as_missing_is_named(reader, token):
    """The user sees two classes in the file."""
    text = "a,y\n1,u\n2,\n" + f"3, {token}\n4,u\n"
    with pytest.raises(ValueError, match=rf"= 'u'; .* 2 of 4 rows have no y .*; '{token}' counts as missing"):
        reader(text)
    with pytest.raises(ValueError, match=rf"no row of .* target column 'y', where '{token}' counts as missing"):
        reader(f"a,y\n1,{token}\n2,\n")
    assert reader("a,y\n1,u\n2,\n3,v\n").notes == ["1 of 3 rows have no y and are left out"]


def test_rows_without_a_target_are_left_out(reader):
    """They would be a class of their own; and what they hold must not decide what a column is."""
    read_table = reader("a,y\n1,u\n2,\n3,v\ntotal,NA\n4,u\n")
    assert read_table.rows.numbers_RN[:, 0].tolist() == [1, 3, 4] and read_table.rows.outcome_R.tolist() == [0, 1, 0]
    assert read_table.notes == ["2 of 5 rows have no y and are left out; 'NA' counts as missing"]
    assert read_table.schema.numbers == (Number("a", 8 / 3, pytest.approx(math.sqrt(14 / 9))),)


@pytest.mark.parametrize(
    ("texts", "classes"),
    [
        (["10", "9", "2"], ("2", "9", "10")),
        (["1.0", "0.0", "1", "+1"], ("0", "1")),
        (["-0.0", "0", "-1", "-0"], ("-1", "0")),
        (["0.5", ".50", "1e1"], ("0.5", "10")),
        (["007", "7", "1e300"], ("007", "7", "1e+300")),
        (["9007199254740993", "9007199254740992"], ("9007199254740992", "9007199254740993")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["1.0", "1", "x"], ("1", "1.0", "x")),
        (["é", "z", "日"], ("z", "é", "日")),
        (["inf", "1"], ("1", "inf")),
        (["true", "false"], ("false", "true")),
        (["True", "FALSE", "true"], ("false", "true")),
        (["True", "true", "x"], ("True", "true", "x")),
    ],
)
def test_classes(reader, texts, classes):
    """Numbers in their order and under one name each; names as they are; each row its own class."""
    read_table = reader({"y": texts * 4, "a": [i * i for i in range(4 * len(texts))]})
    assert read_table.schema.classes == classes
    right = [text if text in classes else one_name(text) for text in texts * 4]
    assert [classes[outcome] for outcome in read_table.rows.outcome_R] == right


@pytest.mark.parametrize("values", [[1.0, 0.0, 2.0], [True, False, True], [1, 0, 7], [0.5, 1.0, 0.25]])
def test_classes_of_types(reader, values):
    """A class has one name in CSV, in Parquet and in a table to predict."""
    data = {"y": values * 3, "a": [i * i for i in range(9)]}
    text, typed = reader(data), reader(data, name="t.parquet")
    assert text.schema == typed.schema and not any("." in name for name in typed.schema.classes if values[0] == 1.0)
    same(text.rows, typed.rows)
    same(encode(text.schema, pl.DataFrame(data)), text.rows)


def test_kinds(reader):
    """What makes a column numbers, dates or names; one cell in the last row is enough to change it."""
    kinds = {
        "integers": ["1", "-2", "+3"],
        "floats": ["1e5", ".5", "-0.0"],
        "infinite": ["1", "inf", "-Infinity"],
        "dates": ["2024-01-31", "1950-01-01", "2024-02-29"],
        "times": ["2024-01-31T10:00", "2024-01-31 10:00:00.5", "2024-01-31T10:00:00+02:00"],
        "text": ["1", "2", "x"],
        "underscore": ["1_000", "2", "3"],
        "hexadecimal": ["0x10", "2", "3"],
        "no date": ["2024-01-31", "2024-02-30", "2024-02-28"],
        "both": ["2024-01-31", "5", "2024-02-28"],
        "truth": ["true", "false", "true"],
    }
    data = {name: [*values, *values, values[0]] for name, values in kinds.items()}
    schema = reader({"y": list("ababbab")} | data).schema
    assert list(dict.fromkeys(number.name for number in schema.numbers)) == list(kinds)[:5]
    assert {number.name for number in schema.numbers if number.date} == {"dates", "times"}
    assert [category.name for category in schema.categories] == list(kinds)[5:]
    assert schema.numbers[2] == Number("infinite", 1.0, 1.0, missing=True)
    assert schema.numbers[3].mean == pytest.approx((3 * 19753 + 2 * -7305 + 2 * 19782) / 7)


def test_forced_categories(reader):
    """A code that looks like a number keeps its zeros; numbers are written the same way from either format."""
    data = {"y": list("abab"), "zip": [8001, 8001, 3000, 3000], "half": [0.5, 1.0, 0.5, 1.0]}
    text, typed = (reader(data, categorical=["zip", "half"], name=name) for name in ("t.csv", "t.parquet"))
    assert text.schema == typed.schema
    assert [category.values for category in text.schema.categories] == [("3000", "8001"), ("0.5", "1")]
    gone = reader(data | {"half": [0.5, math.nan] * 2}, categorical=["half"], name="t.parquet").schema
    assert gone.categories == (Category("half", ("0.5",), missing=True),)
    assert reader("y,c\na,01\nb,1\na,01\nb,1\n", categorical=["c"]).schema.categories[0].values == ("01", "1")


def test_parquet_categories(reader):
    """Types made for names are names, also where they spell numbers."""
    data = pl.DataFrame({"y": list("abab"), "c": list("1212"), "e": list("xyxy"), "n": [[1]] * 4})
    data = data.cast({"c": pl.Categorical, "e": pl.Enum(["y", "x"])})
    read_table = reader(data, name="t.parquet")
    assert read_table.schema.categories == (Category("c", ("1", "2")), Category("e", ("x", "y")))
    assert read_table.schema.left_out == {"n": "holds List(Int64), no plain values"}
    assert read_table.notes == ["column 'n' is left out: it holds List(Int64), no plain values"]


def test_frequent_names_have_slots(reader):
    """64 of them, the most frequent, ties by name; the rest shares one. Once is not enough."""
    names = [f"n{i:03d}" for i in range(100) for _ in range(3 if i >= 90 else 2)] + ["once"]
    schema = reader({"y": ["a", "b"] * 105 + ["a"], "c": names}).schema
    assert schema.categories[0].values == tuple(f"n{i:03d}" for i in [*range(54), *range(90, 100)])
    assert schema.categories[0].other and not schema.categories[0].missing
    few = reader({"y": list("abab"), "c": ["u", "u", "v", "v"]}).schema.categories[0]
    assert few == Category("c", ("u", "v"))


def test_what_is_left_out(reader):
    """Columns that tell nothing of a new row, each with its reason; what tells something stays."""
    R = 60
    data = {
        "y": ["a", "b"] * 30,
        "id": [f"id{i}" for i in range(R)],
        "row": list(range(7, 7 + R)),
        "same": [3] * R,
        "word": ["x"] * R,
        "later": [None] * 40 + [1] * 20,
        "later word": [None] * 40 + ["x"] * 20,
        "asked": ["u", "v"] * 30,
        "same or missing": [3, None] * 30,
        "word or missing": ["x", None] * 30,
        "repeated": [f"id{i // 2}" for i in range(R)],
        "even": list(range(0, 2 * R, 2)),
    }
    read_table = reader(data, ignore=["asked"], split=first(R))
    assert list(read_table.schema.left_out) == ["asked", "id", "row", "same", "word"]
    read_table = reader(data, ignore=["asked"], split=first(40))
    assert list(read_table.schema.left_out) == ["asked", "id", "same", "word", "later", "later word"]
    read_table = reader(data, ignore=["asked"], split=lambda outcome_R: np.arange(R) % 10 != 0)
    assert [note.split("'")[1] for note in read_table.notes] == ["id", "row", "same", "word"]
    assert "id or free text" in read_table.notes[0] and "counts the rows" in read_table.notes[1]
    assert read_table.schema.numbers[1] == Number("same or missing", 3.0, 1.0, missing=True)
    assert read_table.schema.categories[1] == Category("word or missing", ("x",), missing=True)


def test_what_counts_the_rows(reader):
    """A row's number says nothing of a new row, also where rows without a target lie between; a calendar may."""
    day = datetime.date(2024, 1, 1)
    data = {"y": ["a", None, "b"] * 40, "row": list(range(120)), "v": [1.5, 2.0, 7.0] * 40}
    data |= {"half": [i / 2 for i in range(120)], "day": [day + datetime.timedelta(i) for i in range(120)]}
    schema = reader(data, split=lambda outcome_R: np.arange(80) % 4 > 0).schema
    assert schema.left_out == {"row": "counts the rows"}
    assert [number.name for number in schema.numbers] == ["v", "half", *["day"] * 3]


def test_distinct_names(reader):
    """Over 95% of at least 50 rows; a few rows say nothing of a column."""
    assert reader({"y": ["a", "b"] * 30, "c": [f"{max(i, 3)}x" for i in range(60)]}).schema.categories
    with pytest.raises(ValueError, match="'c' has a different value in nearly every row"):
        reader({"y": ["a", "b"] * 30, "c": [f"{max(i, 2)}x" for i in range(60)]})
    few = reader({"y": ["a", "b"] * 20, "a": [1, 5] * 20, "c": [f"{max(i, 1)}x" for i in range(40)]}).schema
    assert few.categories == (Category("c", ("1x",), other=True),)


@pytest.mark.parametrize("repeats", [1, 3])
def test_more_names_than_are_counted(reader, monkeypatch, repeats):
    """A column of ids must not fill the memory, and its frequent names must be found all the same."""
    monkeypatch.setattr(figures, "_TRACKED", 20)
    monkeypatch.setattr(infer, "CHUNK", 10)
    names = [f"id{i // repeats}" for i in range(600)]
    often = [name if i % 3 else "often" for i, name in enumerate(names)]
    schema = reader({"y": ["a", "b"] * 300, "a": [1, 5] * 300, "c": names, "often": often}).schema
    assert ("c" in schema.left_out) == (repeats == 1)
    assert "often" in schema.categories[-1].values and schema.categories[-1].other


@pytest.mark.parametrize(
    "values",
    [
        [1e300, -1e300, 1e300, 5e299],
        [1.7e308, -1.7e308, 1.7e308, 1.6e308],
        [1e300, 1.0, 2.0, 3.0],
        [1e-310, 2e-310, 3e-310, 4e-310],
        [1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3],
        [2.0**53, 2.0**53 - 1, 2.0**53 - 2, 0.0],
        [-0.0, 0.0, -0.0, 1.0],
        [0.1, 0.1, 0.1, 0.3],
    ],
)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_mean_and_std(reader, monkeypatch, values, chunk):
    """Against exact arithmetic; squares overflow at 1e154, and a sum of squares loses 1e9 + 1 altogether."""
    monkeypatch.setattr(infer, "CHUNK", chunk)
    (number,) = reader({"y": list("abab") * 5, "v": values * 5}).schema.numbers
    scale = max(map(abs, values))
    exact = [statistics.Fraction(value) / statistics.Fraction(scale) for value in values]
    mean, std = float(statistics.mean(exact)), math.sqrt(statistics.pvariance(exact))
    assert number.mean / scale == pytest.approx(mean, rel=1e-12)
    assert number.std / scale == pytest.approx(std, rel=1e-6 if scale == 1e9 + 3 else 1e-12)
    assert math.isfinite(number.mean) and 0 < number.std < math.inf


def test_std_of_zero_never_divides(reader):
    """Two values so close that their distance is no number."""
    assert reader({"y": list("abab"), "v": [0.0, 5e-324] * 2}).schema.numbers == (Number("v", 0.0, 1.0),)


def test_integers_are_exact(reader):
    """Up to 2^53 a float64 holds them all; a way through float32 would not."""
    values = [2**53, 2**53 - 1, -(2**53), 16_777_217]
    for name in ("t.csv", "t.parquet"):
        read_table = reader({"y": list("abab"), "v": values}, name=name)
        assert read_table.rows.numbers_RN[:, 0].tolist() == values


def test_metrics(reader):
    """On [0, 1] by the training rows; a share stays as it is; a constant does not divide by zero."""
    data = {"y": list("ababa"), "a": [1, 2, 4, 8, 16], "share": [0.2, 0.4, 0.2, 0.4, 1.0]}
    data |= {"cost": [-10, 0, 10, 30, 50], "same": [7] * 5, "huge": [1e300] * 5}
    read_table = reader(data, metrics=["cost", "share", "same", "huge", "cost"], split=first(4))
    assert read_table.schema.metrics[:3] == (Metric("cost", -10.0, 30.0), Metric("share"), Metric("same", 7.0, 8.0))
    right = [[0, 0.2, 0, 0], [0.25, 0.4, 0, 0], [0.5, 0.2, 0, 0], [1, 0.4, 0, 0], [1.5, 1, 0, 0]]
    np.testing.assert_array_equal(read_table.rows.metrics_RM, np.array(right, np.float32))
    assert [number.name for number in read_table.schema.numbers] == ["a"]


def test_one_row_a_class(reader):
    """The smallest table: everything trains, nothing divides by zero."""
    read_table = reader("a,b,y\n1,u,0\n2,v,1\n")
    assert read_table.schema.numbers == (Number("a", 1.5, 0.5),)
    assert list(read_table.schema.left_out) == ["b"] and read_table.rows.count == 2


def test_missing_everywhere(reader):
    """No row is complete, and one has nothing but its class."""
    read_table = reader("a,b,y\n1,,u\n,x,v\n,,u\n3,,v\n,x,u\n")
    assert read_table.schema.numbers == (Number("a", 2.0, 1.0, missing=True),)
    assert read_table.schema.categories == (Category("b", ("x",), missing=True),)
    assert read_table.rows.codes_RC[:, 0].tolist() == [1, 0, 1, 1, 0]


def test_only_names_or_only_numbers(reader):
    """An array without columns must be written and mapped too."""
    names = reader("a,y\nu,0\nv,1\nu,0\nv,1\n")
    assert names.rows.numbers_RN.shape == (4, 0) and names.rows.codes_RC.shape == (4, 1)
    numbers = reader("a,y\n1,0\n3,1\n")
    assert numbers.rows.numbers_RN.shape == (2, 1) and numbers.rows.codes_RC.shape == (2, 0)


def test_progress(reader, monkeypatch):
    """Rises to its end over three passes; the total is not known in the first."""
    monkeypatch.setattr(infer, "CHUNK", 4)
    calls = []
    reader(
        {"y": ["a", None, "b", "a", "b"] * 2, "v": [i * i for i in range(10)]},
        progress=lambda *call: calls.append(call),
    )
    assert calls[:3] == [(4, 0), (8, 0), (10, 0)]
    assert calls[3:] == [(done, 30) for done in (14, 18, 20, 24, 28, 30)]


PLAIN = "a,b,y\n1,u,0\n2,v,1\n3,u,0\n4,v,1\n"
LONGER = "a,b,y\n" + "".join(f"{i},{'uv'[i % 2]},{i % 2}\n" for i in range(1, 11))
WRONG = {
    "target": (PLAIN, dict(target="Yy"), "no column 'Yy'; did you mean 'y'"),
    "target unlike any": (PLAIN, dict(target="outcome"), "no column 'outcome'; its columns are a, b, y"),
    "one class": ("a,y\n1,u\n2,u\n", {}, "has y = 'u'; a classifier needs two classes"),
    "no target at all": ("a,y\n1,\n2,NA\n", {}, "no row of .* target column 'y'"),
    "numbers": ("a,y\n" + "".join(f"{i % 7},{i / 8}\n" for i in range(30)), {}, "30 .* looks like a numeric target"),
    "ids": ("a,y\n" + "".join(f"{i % 7},u{i}\n" for i in range(30)), {}, "looks like an id or free text, not a class"),
    "many": ("a,y\n" + "".join(f"{i % 7},{i % 1001}\n" for i in range(3003)), {}, "more than 1000 .* not a class"),
    "metric": (PLAIN, dict(metrics=["aa"]), "no column 'aa'; did you mean 'a'"),
    "metric of names": (PLAIN, dict(metrics=["b"]), "'b' of .* a number in every row; row 1 holds 'u'"),
    "metric missing": ("a,b,y\n1,2,0\n2,3,\n3,NA,1\n", dict(metrics=["b"]), "row 3 holds nothing"),
    "metric infinite": ("a,b,y\n1,2,0\n2,inf,1\n", dict(metrics=["b"]), "row 2 holds 'inf'"),
    "metric is target": (PLAIN, dict(metrics=["y"]), "'y' cannot be both the target and a metric"),
    "target ignored": (PLAIN, dict(ignore=["y"]), "'y' cannot be both the target and ignored"),
    "categorical": (PLAIN, dict(categorical=["c"]), "no column 'c'"),
    "ignore": (PLAIN, dict(ignore=["c"]), "no column 'c'"),
    "two roles": (PLAIN, dict(ignore=["a"], categorical=["a"]), "'a' cannot be both categorical and ignored"),
    "no value": ("a,e,y\n1,,0\n2, ?,1\n", {}, "column 'e' of .* has no value in any row; .*--ignore"),
    "nothing left": (PLAIN, dict(ignore=["a", "b"]), "no column of .* is left to learn from"),
    "nothing told": ("a,b,y\n1,u,0\n1,u,1\n", {}, "left to learn from: 'a' has the same value.*'b' has the same"),
    "ragged": (PLAIN + "5,u\n", {}, "line 6 of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_says_what_is_wrong(reader, case):
    """One sentence, and no folder that a second try would stumble over."""
    data, options, sentence = WRONG[case]
    with pytest.raises(ValueError, match=sentence) as error:
        reader(data, **options)
    assert "\n" not in str(error.value) and not re.search(r"[;:] *$", str(error.value))
    assert not list(reader.folder.glob("rows*"))


def test_few_distinct_rows_may_be_classes(reader):
    """Up to twenty rows, each may have a class of its own."""
    assert len(reader("a,y\n" + "".join(f"{i * i},{i}\n" for i in range(20))).schema.classes) == 20


def test_target_and_metrics_are_plain(reader):
    """A list is no class."""
    data = {"y": [[1], [2]], "a": [1, 2]}
    with pytest.raises(ValueError, match=r"'y' of .* must have plain values; it has type List\(Int64\)"):
        reader(data, name="t.parquet")


def test_folder_must_be_new(reader):
    """What is there is not overwritten, and not removed."""
    (reader.folder / "rows1").mkdir()
    (reader.folder / "rows1" / "kept").touch()
    with pytest.raises(ValueError, match="rows1 exists already"):
        reader(PLAIN)
    assert (reader.folder / "rows1" / "kept").exists()


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_failure_leaves_no_folder(reader, error):
    """Half of the rows would be taken for all of them."""

    def fail(done, total):
        if total and done > 2 * total // 3:
            assert (reader.folder / "rows1").exists()
            raise error

    with pytest.raises(type(error)):
        reader(PLAIN, progress=fail)
    assert not (reader.folder / "rows1").exists()


@pytest.mark.parametrize("when", [10, 20])
@pytest.mark.parametrize("changed", [LONGER + "11,v,1\n", LONGER.removesuffix("10,u,0\n")])
def test_a_file_that_changes_is_noticed(reader, when, changed):
    """Rows that come or go between the passes would shift every outcome after them."""

    def change(done, total):
        if done == when:
            (reader.folder / "1t.csv").write_text(changed)

    with pytest.raises(ValueError, match="changed while it was being read"):
        reader(LONGER, progress=change)
    assert not (reader.folder / "rows1").exists()


def test_check_columns():
    """The check before a run starts says the same as the reading of it."""
    check_columns(["a", "b"], "a", ["b"])
    with pytest.raises(ValueError, match="no column 'colour'; did you mean 'Color'"):
        check_columns(["x", "Color"], "x", ["colour"])


CELL = st.one_of(st.sampled_from(["", "NA", "u", "v", "x,y", '"', "1", "2.5", "-0.0", "1e300", "inf", "2024-01-01"]))


@given(st.data())
def test_any_table(tmp_path_factory, data):
    """Any small table is read, or refused in a sentence; what is read is finite, in range, and encodes to itself."""
    R, C = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 4))
    columns = {f"c{i}": data.draw(st.lists(CELL, min_size=R, max_size=R)) for i in range(C)}
    columns["y"] = data.draw(st.lists(st.sampled_from(["0", "1", "", "z"]), min_size=R, max_size=R))
    train = np.array(data.draw(st.lists(st.booleans(), min_size=R, max_size=R)))
    path = tmp_path_factory.mktemp("any")
    frame = pl.DataFrame(columns)
    frame.write_csv(path / "t.csv")
    try:
        read_table = read(path / "t.csv", "y", split=lambda outcome_R: train[: len(outcome_R)], folder=path / "rows")
    except ValueError as error:
        assert "\n" not in str(error) and not (path / "rows").exists()
        return
    known = [i for i, y in enumerate(columns["y"]) if y]
    assert [read_table.schema.classes[outcome] for outcome in read_table.rows.outcome_R] == [
        columns["y"][i] for i in known
    ]
    same(encode(read_table.schema, frame[known]), read_table.rows)
    for number in read_table.schema.numbers:
        assert math.isfinite(number.mean) and 0 < number.std < math.inf
    for i, category in enumerate(read_table.schema.categories):
        assert category.width > 1 and category.values == tuple(sorted(category.values))
        assert read_table.rows.codes_RC[:, i].min() >= -1 and read_table.rows.codes_RC[:, i].max() < category.width
        trained = read_table.rows.codes_RC[train[: len(known)], i]
        assert set(trained.tolist()) == set(range(category.width))  # every slot was seen, and every value has one
