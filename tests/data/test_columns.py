"""The table of columns: what is said of each, and how it is printed."""

import pytest

from gradproof.data.columns import SHOWN, column_lines
from gradproof.data.infer import read
from gradproof.data.source import SourceOptions, open_source

R = 400


def write(path):
    """A column of each kind, one that is left out, one ambiguous, and cells that are missing or do not fit."""
    columns = {
        "id": [f"A{i}" for i in range(R)],
        "price": ["" if i % 4 == 0 else "call us" if i == 201 else f"$1,{i:03d}.50" for i in range(R)],
        "day": [f"0{1 + i % 9}/0{1 + i % 7}/2023" for i in range(R)],
        "sure": ["Y" if i % 3 else "no" for i in range(R)],
        "zip": [f"{i % 5:05d}" for i in range(R)],
        "coded": [str(i % 5) for i in range(R)],
        "metric": [str(i) for i in range(R)],
        "asked": ["x"] * R,
        "y": ["a" if i % 2 else "b" for i in range(R - 4)] + [""] * 4,
    }
    rows = ['"' + '","'.join(row) + '"' for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


@pytest.fixture
def columns(tmp_path):
    file, rows = write(tmp_path / "t.csv"), tmp_path / "rows"
    options = dict(metrics=["metric"], categorical=["coded"], ignore=["asked"])
    table = read(file, "y", **options, split=lambda outcome_R: outcome_R >= 0, folder=rows)
    return {column["name"]: column for column in table.columns}


def test_what_is_said_of_each_column(columns):
    kinds = {name: (column["kind"], column["format"]) for name, column in columns.items()}
    assert kinds == {
        "id": ("left out", ""),
        "price": ("number", "$1,234.5"),
        "day": ("date", "month/day/year"),
        "sure": ("boolean", "yes/no"),
        "zip": ("name", ""),
        "coded": ("name", ""),
        "metric": ("metric", ""),
        "asked": ("left out", ""),
        "y": ("target", ""),
    }
    assert columns["price"]["fits"] == pytest.approx(296 / 297)
    assert columns["price"]["missing"] == pytest.approx(100 / 396) and columns["price"]["distinct"] == 296
    assert columns["y"]["missing"] == 4 / R and columns["y"]["distinct"] == 2
    assert (columns["zip"]["distinct"], columns["sure"]["distinct"], columns["day"]["distinct"]) == (5, 2, 63)
    assert "like an id" in columns["id"]["note"] and columns["asked"]["note"] == "ignored, as requested"
    assert columns["day"]["note"] == "month first is assumed: no value above 12 decides"
    assert columns["coded"]["note"] == "names, as requested" and columns["price"]["note"] == ""


def test_lines(columns):
    """Aligned; a share near to all is not rounded to it."""
    header, *lines = column_lines(list(columns.values()))
    assert header.split() == ["column", "read", "as", "format", "fits", "distinct", "missing"] and len(lines) == 9
    price = next(line for line in lines if line.startswith("price"))
    assert price.split() == ["price", "number", "$1,234.5", "99.7%", "296", "25.3%"]
    assert all(
        line.index(kind) == header.index("read as")
        for line, kind in zip(lines[1:4], ("number", "date", "boolean"), strict=True)
    )
    assert column_lines([]) == []


def test_a_wide_table_and_odd_names(columns):
    """A screen of them; nothing in a name moves the cursor."""
    many = [columns["price"] | {"name": f"c{i}"} for i in range(SHOWN + 3)]
    lines = column_lines(many)
    assert len(lines) == SHOWN + 2 and lines[-1] == "… and 3 more columns, all in report.html"
    (_, line) = column_lines([columns["price"] | {"name": "a\x1b[2J\n" + "x" * 100, "fits": 0.99999, "missing": 1e-9}])
    assert "\x1b" not in line and "\n" not in line and "99.9%" in line and "0.1%" in line and len(line) < 120


def test_a_run_keeps_them(tmp_path):
    """They are read back from the run; a run from before they were kept has none."""
    import json

    file = write(tmp_path / "t.csv")
    options = SourceOptions(str(file), "y", metrics=["metric"])
    (tmp_path / "run").mkdir()
    columns = open_source(options, tmp_path / "run").columns
    assert len(columns) == 9 and open_source(options, tmp_path / "run").columns == columns
    schema = tmp_path / "run" / "schema.json"
    record = json.loads(schema.read_text())
    del record["columns"]
    for number in record["schema"]["numbers"]:  # as they were written before there were formats
        del number["format"], number["part"]
    for category in record["schema"]["categories"]:
        del category["boolean"]
    schema.write_text(json.dumps(record))
    old = open_source(options, tmp_path / "run")
    assert old.columns == [] and old.schema.numbers[0].format is None and not old.schema.categories[0].boolean
