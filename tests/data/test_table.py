import csv
import gzip
import io
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data import table
from gradproof.data.table import MISSING, Table, clean, plain

CELLS = {  # what is written, and what is read
    "comma": (b"a,b\n1,2\n3,4\n", [("1", "2"), ("3", "4")]),
    "semicolon, decimal commas": (b"a;b\n1,5;2,5\n3;4\n", [("1,5", "2,5"), ("3", "4")]),
    "tab": (b"a\tb\n1,5\tx|y\n3\t4\n", [("1,5", "x|y"), ("3", "4")]),
    "pipe": (b"a|b\n1,5|2;5\n3|4\n", [("1,5", "2;5"), ("3", "4")]),
    "no newline at the end": (b"a,b\n1,2\n3,4", [("1", "2"), ("3", "4")]),
    "Windows": (b'a,b\r\n1,"x, y"\r\n"3",4\r\n', [("1", "x, y"), ("3", "4")]),
    "byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n", [("1", "2")]),
    "byte order mark and quotes": (b'\xef\xbb\xbf"a","b"\n"1",2\n', [("1", "2")]),
    "quotes": (b'a,b\n"x, ""y""\nz",2\n"""",3\n', [('x, "y"\nz', "2"), ('"', "3")]),
    "quote in mid-field": (b'a,b\n5" pipe,2\n6" x,3\n', [('5" pipe', "2"), ('6" x', "3")]),
    "quote in mid-field, then quotes": (b'a,b\n5" pipe,"x\ny"\n6,7\n', [('5" pipe', "x\ny"), ("6", "7")]),
    "blank lines": (b'\na,b\n\n1,2\n\n\n"3",4\n\n', [("1", "2"), ("3", "4")]),
    "blank lines, Windows": (b"a,b\r\n1,2\r\n\r\n3,4\r\n\r\n", [("1", "2"), ("3", "4")]),
    "blank line in quotes": (b'a,b\n"x\n\ny",2\n', [("x\n\ny", "2")]),
    "unicode": ("a,b\nZürich,日本\n🦊,é\n".encode(), [("Zürich", "日本"), ("🦊", "é")]),
    "spaces around": (b"a , b\n 1 ,\t2 \n\" x \",3\n", [("1", "2"), ("x", "3")]),
    "nothing but tabs": (b"a\tb\n\t\n", [(None, None)]),
    "nothing but missing": (b"a,b\n,\n \t,\"\"\n", [(None, None), (None, None)]),
}  # fmt: skip
WRONG = {  # a name and what it holds, and what the error must say
    "empty": ("t.csv", b"", "t.csv is empty"),
    "empty parquet": ("t.parquet", b"", "t.parquet is empty"),
    "blank": ("t.csv", b"\n\n", "only blank lines"),
    "header only": ("t.csv", b"a,b\n\n", "a header but no rows"),
    "header without newline": ("t.csv", b"a,b", "a header but no rows"),
    "suffix": ("t.xlsx", b"a,b\n1,2\n", r"t.xlsx is not a table.*\.parquet"),
    "no suffix": ("t", b"a,b\n1,2\n", "is not a table"),
    "packed parquet": ("t.parquet.gz", b"a,b\n1,2\n", "is not a table"),
    "a name twice": ("t.csv", b"a,b,a \n1,2,3\n", "two columns named 'a'"),
    "short line": ("t.csv", b"a,b,c\n1,2,3\n4,5\n", "line 3 of .*t.csv has 2 fields where the header has 3"),
    "long line": ("t.csv", b"a,b\n1,2\n\n4,5,6\n", "line 4 of .*t.csv has 3 fields where the header has 2"),
    "short then long": ("t.csv", b"a,b,c\n1,2\n4,5,6,7\n", "line 2 of .*t.csv has 2 fields"),
    "short, quoted": ("t.csv", b'a,b,c\n"1\n1","2,2"\n', "line 3 of .*t.csv has 2 fields"),
    "open quote": ("t.csv", b'a,b\n1,2\n"3,4\n5,6\n', "line 4 of .*t.csv is not CSV"),
    "text behind a quote": ("t.csv", b'a,b\n1,2\n"3"4,5\n', "line 3 of .*t.csv is not CSV"),
    "Latin-1": ("t.csv", b"a,b\n1,2\n\xfc,3\n", "line 3 of .*t.csv is not UTF-8"),
    "Latin-1 header": ("t.csv", b"\xfc,b\n1,2\n", "line 1 of .*t.csv is not UTF-8"),
    "UTF-16": ("t.csv", "a,b\n1,2\n".encode("utf-16"), "line 1 of .*t.csv is not UTF-8"),
    "a star": ("t.csv", b"a,*\n1,2\n", r"t.csv has a column named '\*', which would be read as a pattern; rename it"),
    "a pattern": (
        "t.csv",
        b"^a.*$,b\n1,2\n",
        r"t.csv has a column named '\^a\.\*\$', which would be read as a pattern",
    ),
    "not packed": ("t.csv.gz", b"a,b\n1,2\n", "t.csv.gz is damaged"),
    "cut packed": ("t.csv.gz", gzip.compress(b"a,b\n1,2\n")[:-6], "t.csv.gz is damaged"),
    "not parquet": ("t.parquet", b"a,b\n1,2\n3,4\n5,6\n", "t.parquet is damaged"),
    "cut parquet": ("t.pq", b"PAR1" + bytes(range(64)), "t.pq is damaged"),
}


def made(folder, name, data):
    path = folder / name
    path.write_bytes(data)
    return path


def cells(path, columns=None, rows=65_536):
    return [row for frame in Table(path).chunks(columns, rows) for row in frame.iter_rows()]


@pytest.mark.parametrize("block", [1, 5, 1 << 20])
@pytest.mark.parametrize("case", CELLS)
def test_cells(tmp_path, monkeypatch, case, block):
    """Every convention of a CSV, also where a block ends within a field, a quote or a character."""
    monkeypatch.setattr(table, "_BLOCK", block)
    data, right = CELLS[case]
    path = made(tmp_path, "t.csv", data)
    assert Table(path).columns == ["a", "b"]
    assert cells(path) == right
    assert cells(made(tmp_path, "t.txt.gz", gzip.compress(data))) == right


@pytest.mark.parametrize("block", [4, 1 << 20])
@pytest.mark.parametrize("case", WRONG)
def test_says_what_is_wrong(tmp_path, monkeypatch, case, block):
    """One sentence with the file's name, and the line where there is one; a wrong line must not become a wrong row."""
    monkeypatch.setattr(table, "_BLOCK", block)
    name, data, sentence = WRONG[case]
    path = made(tmp_path, name, data)
    with pytest.raises(ValueError, match=sentence) as error:
        cells(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("longest", [1, 20])
def test_an_open_quote_does_not_fill_the_memory(tmp_path, monkeypatch, longest):
    """Past the longest record, lines are read one by one: which is slower, and right all the same."""
    monkeypatch.setattr(table, "_BLOCK", 4)
    monkeypatch.setattr(table, "_LONGEST", 8)
    text = '"' + "x\n" * longest + '"'
    path = made(tmp_path, "t.csv", f"a,b\n{text},1\ny,2\n".encode())
    assert cells(path) == [(("x\n" * longest).strip(), "1"), ("y", "2")]


def test_says_what_is_no_file(tmp_path):
    """A missing file and a folder are no CSV errors."""
    with pytest.raises(ValueError, match=r"no file .*nothing\.csv"):
        Table(tmp_path / "nothing.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv is a folder"):
        Table(tmp_path / "folder.csv")


def test_parquet_without_rows(tmp_path):
    """Its header is there, and nothing to train on."""
    pl.DataFrame({"a": []}, {"a": pl.Int64}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="a header but no rows"):
        Table(tmp_path / "t.parquet")


def test_polars_is_optional(tmp_path, monkeypatch):
    """A missing extra is a sentence that names it, not a traceback."""
    path = made(tmp_path, "t.csv", b"a,b\n1,2\n")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ValueError, match=r"pip install 'gradproof\[data\]'"):
        Table(path)


@pytest.mark.parametrize("token", MISSING)
def test_missing_tokens(tmp_path, token):
    """Each is missing, with spaces around it and in quotes too; a longer word that holds it is not."""
    path = made(tmp_path, "t.csv", f'a,b\n{token},x\n" {token} ",x\n{token}x,x\n'.encode())
    assert [row[0] for row in cells(path)] == [None, None, f"{token}x"]
    frame = pl.DataFrame({"a": [token, f" {token}", "x"]})
    assert clean(frame)["a"].to_list() == [None, None, "x"]
    assert clean(frame.cast(pl.Categorical))["a"].to_list() == [None, None, "x"]


def test_one_text_is_read_as_a_column_is():
    """`plain` is for JSON what `clean` is for files: Python and polars must agree on what a space is."""
    texts = [f"{chr(c)}x{chr(c)}" for c in range(0x11000) if not 0xD800 <= c < 0xE000]
    texts += [*MISSING, *(f" {token}\t" for token in MISSING), "NAN", "none", "--", "x NA"]
    assert clean(pl.DataFrame({"a": texts}))["a"].to_list() == list(map(plain, texts))


FIELD = st.text(st.sampled_from('ab ,;"\n\t|é🦊-'), max_size=5)


@st.composite
def tables(draw):
    width = draw(st.integers(2, 4))
    rows = draw(st.lists(st.tuples(*[FIELD] * width), min_size=1, max_size=12))
    return rows, draw(st.sampled_from(",;\t|")), draw(st.sampled_from(["\n", "\r\n"])), draw(st.booleans())


@given(tables(), st.sampled_from([1, 2, 3, 5, 8, 13, 4096]), st.sampled_from([1, 2, 7, 65_536]))
def test_any_table_comes_back(tmp_path_factory, written, block, chunk):
    """Python's own writer, against ours: a cut in the wrong place or a miscounted quote would move a cell."""
    rows, delimiter, newline, quoted = written
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline, quoting=quoting)
    names = [f"c{i}" for i in range(len(rows[0]))]
    writer.writerows([names, *rows])
    path = made(tmp_path_factory.mktemp("any"), "t.csv", text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_BLOCK", block)
        patch.setattr(table, "_delimiter", lambda sample: delimiter)
        frames = list(Table(path).chunks(rows=chunk))
    right = [tuple(None if field.strip() in MISSING else field.strip() for field in row) for row in rows]
    assert [row for frame in frames for row in frame.iter_rows()] == right
    assert all(frame.height == chunk for frame in frames[:-1]) and 0 < frames[-1].height <= chunk


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_chunks_have_the_same_rows_in_every_format(tmp_path, monkeypatch, name):
    """Figures are merged by chunks: were these the file's own, CSV and Parquet would differ in rounding."""
    monkeypatch.setattr(table, "_BLOCK", 1000)
    frame = pl.DataFrame({"a": [str(i) for i in range(500)], "b": ["x, y"] * 500})
    if name == "t.parquet":
        frame.write_parquet(tmp_path / name, row_group_size=64)
    else:
        data = frame.write_csv().encode()
        made(tmp_path, name, gzip.compress(data) if name.endswith("gz") else data)
    for rows in (1, 7, 100, 65_536):
        frames = list(Table(tmp_path / name).chunks(rows=rows))
        assert [chunk.height for chunk in frames] == [rows] * (500 // rows) + [500 % rows] * (500 % rows > 0)
        assert pl.concat(frames).equals(frame)


def test_columns_are_those_asked_for(tmp_path):
    """In the order asked for, and in the fields of the header: a projection by the wrong index would show."""
    path = made(tmp_path, "t.csv", b'a,b,c\n1,2,3\n4,"5",6\n')
    frame = pl.concat(Table(path).chunks(["c", "a"]))
    assert frame.columns == ["c", "a"] and frame.rows() == [("3", "1"), ("6", "4")]
    frame.write_parquet(tmp_path / "t.pq")
    assert cells(tmp_path / "t.pq", ["a", "c"]) == [("1", "3"), ("4", "6")]
    with pytest.raises(ValueError, match="no column 'd'"):
        cells(path, ["a", "d"])


@pytest.mark.parametrize("lines", ["1,2,3\n1,2\n4,5,6,7\n", "1,2,3\n4,5,6,7\n1,2\n"])
def test_lines_are_counted_one_by_one(tmp_path, lines):
    """A long line makes up for a short one in the sum, and polars looks at neither when it reads one column."""
    with pytest.raises(ValueError, match=r"line \d of .* fields where the header has 3"):
        cells(made(tmp_path, "t.csv", b"a,b,c\n" + lines.encode()), ["a"])


@pytest.mark.parametrize("block", [16, 1 << 20])
def test_what_is_regular_is_read_fast(tmp_path, monkeypatch, block):
    """Field by field would be right as well, and twenty times slower."""
    monkeypatch.setattr(table, "_BLOCK", block)
    monkeypatch.delattr(Table, "_by_field")
    data = b'a,b\r\n1,"x, ""y""\n\nz"\r\n"",2\r\n3,4'
    assert cells(made(tmp_path, "t.csv", data)) == [("1", 'x, "y"\n\nz'), (None, "2"), ("3", "4")]


def test_the_first_rows_decide_nothing(tmp_path):
    """Polars would make the column integers after its first hundred rows, and fail at the text."""
    path = made(tmp_path, "t.csv", b"a,b\n" + b"1,2\n" * 5000 + b"x,2\n")
    assert cells(path)[-1] == ("x", "2") and set(Table(path).dtypes.values()) == {pl.String}


def test_unnamed_columns_get_a_name(tmp_path):
    """A frame's index is written without one, and must be nameable in --ignore."""
    assert Table(made(tmp_path, "t.csv", b",a,\n0,1,2\n")).columns == ["column_1", "a", "column_3"]


def test_one_column(tmp_path):
    """Nothing in a line tells its only field from a blank line; blank lines are no rows."""
    assert cells(made(tmp_path, "t.csv", b"a\n1\n\n2\n")) == [("1",), ("2",)]


def test_parquet_types_stay(tmp_path):
    """Numbers that went through text would lose bits."""
    frame = pl.DataFrame({"i": [2**53 + 1, None], "f": [0.1, np.nan], "b": [True, None], "s": [" x ", "NA"]})
    frame.write_parquet(tmp_path / "t.parquet")
    (chunk,) = Table(tmp_path / "t.parquet").chunks()
    assert chunk.dtypes == frame.dtypes
    assert chunk.equals(frame.with_columns(s=pl.Series(["x", None])))


def test_names_are_no_patterns(tmp_path):
    """[1] in a file's name is not a choice of files."""
    for name in ("t[1].csv", "t*.parquet"):
        frame = pl.DataFrame({"a": ["1"], "b": ["2"]})
        (frame.write_csv if name.endswith("csv") else frame.write_parquet)(tmp_path / name)
        assert cells(tmp_path / name) == [("1", "2")]


def test_reading_may_stop(tmp_path):
    """A reader that leaves early, on an error, must not wait for the rest or fail."""
    pl.DataFrame({"a": range(200_000)}).write_parquet(tmp_path / "t.parquet", row_group_size=1000)
    chunks = Table(tmp_path / "t.parquet").chunks(rows=10)
    assert next(chunks)["a"].to_list() == list(range(10))
    chunks.close()
