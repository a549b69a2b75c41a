import errno
import os

import numpy as np
import pytest

from gradproof.data import source as module
from gradproof.data.source import SourceOptions, check, open_source, read_schema, synthetic_options
from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.data.synthetic import synthetic


def config(data, **other):
    return SourceOptions(**{"data": str(data), "test": 0.2, **other})


@pytest.fixture
def table(tmp_path):
    """200 rows of two classes, with a number, a name and something to predict beside them."""
    pytest.importorskip("polars")
    random = np.random.default_rng(0)
    lines = ["y,number,name,cost,id"]
    for i, v in enumerate(random.normal(size=200)):
        lines.append(f"{'no' if v < 0 else 'yes'},{v + random.normal():.4f},{'abc'[i % 3]},{100 + i % 7},row-{i}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("data", "right"),
    [
        ("synthetic", {}),
        ("synthetic:", {}),
        ("synthetic:rows=5", dict(rows=5)),
        ("synthetic:regimes=2,rows=10,seed=7", dict(regimes=2, rows=10, seed=7)),
        ("synthetic:seed=-3", dict(seed=-3)),
    ],
)
def test_options(data, right):
    """What is not said is the default."""
    assert synthetic_options(data) == {**module.SYNTHETIC, **right}


@pytest.mark.parametrize("data", ["table.csv", "synthetic.csv", "data/synthetic", "C:/synthetic.csv", "Synthetic"])
def test_a_file_is_no_synthetic_set(data):
    """Whatever its name begins with."""
    assert synthetic_options(data) is None


@pytest.mark.parametrize("item", ["rows=many", "rows", "rows=", "row=5", "rows=1.5", "rows=--5", "rows=5-", "rows=²"])
def test_options_that_are_not_understood(item):
    """The sentence quotes the piece and shows how it is written."""
    with pytest.raises(ValueError, match=r"is not understood; write synthetic:regimes=4") as caught:
        synthetic_options(f"synthetic:regimes=2,{item}")
    assert repr(item) in str(caught.value)


@pytest.mark.parametrize("item", ["rows=0", "rows=-5", "regimes=0"])
def test_options_out_of_range(item):
    """None of them makes a data set."""
    with pytest.raises(ValueError, match="rows and regimes must be at least 1"):
        synthetic_options(f"synthetic:{item}")


def test_check_of_the_synthetic_set():
    """Its target cannot be chosen; taking the flag in silence would train on something else than was meant."""
    check("synthetic:rows=10", None, [])
    for target, named in (("y", []), (None, ["cost"])):
        with pytest.raises(ValueError, match="has its own target and metrics"):
            check("synthetic", target, named)
    with pytest.raises(ValueError, match="not understood"):
        check("synthetic:rws=10", None, [])


def test_check_of_a_table(table):
    """What can be said at once: the file, the target, the named columns."""
    check(str(table), "y", ["cost", "id"])
    with pytest.raises(
        ValueError, match=r"--target is missing: which column of .*table\.csv .*\(y, number, name, cost, id\)"
    ):
        check(str(table), None, [])
    with pytest.raises(ValueError, match="no column 'z'"):
        check(str(table), "z", [])
    with pytest.raises(ValueError, match="no column 'costs'; did you mean 'cost'"):
        check(str(table), "y", ["costs"])
    with pytest.raises(ValueError, match="there is no file"):
        check(str(table.parent / "other.csv"), "y", [])


def test_the_synthetic_source(tmp_path):
    """The set itself, its split and its best scores; the schema is saved with the run."""
    source, right = open_source(config("synthetic:rows=300,seed=2"), tmp_path), synthetic(300, 2, 4)
    assert all(np.array_equal(a, b) for a, b in zip(source.rows, right.rows, strict=True))
    assert np.array_equal(source.best_R, right.best_R) and source.notes == []
    assert read_schema(tmp_path) == (right.schema, [])
    parts = [source.index(part) for part in (TRAIN, VALIDATION, TEST)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    assert len(parts[1]) == pytest.approx(30, abs=8) and len(parts[2]) == pytest.approx(60, abs=8)


def test_the_seed_of_the_run_splits_and_that_of_the_set_draws(tmp_path):
    """One for the other, five seeds of a model would be five data sets."""
    one, other = (open_source(config("synthetic:rows=300", seed=seed), tmp_path) for seed in (0, 1))
    assert np.array_equal(one.rows.outcome_R, other.rows.outcome_R) and not np.array_equal(one.part_R, other.part_R)


def test_a_table_is_read_once(table, tmp_path):
    """From then on the run has its own rows: the file may change or go without changing the run."""
    folder = tmp_path / "run"
    folder.mkdir()
    calls = []
    options = config(table, target="y", metrics=["cost"], categorical=["name"], ignore=["id"])
    source = open_source(options, folder, lambda done, total: calls.append((done, total)))
    assert calls and source.schema.classes == ("no", "yes") and [m.name for m in source.schema.metrics] == ["cost"]
    assert [c.name for c in source.schema.categories] == ["name"] and source.best_R is None
    assert "id" in source.schema.left_out and source.rows.count == 200
    table.write_text("something else")
    again = open_source(options, folder)
    assert all(np.array_equal(a, b) for a, b in zip(source.rows, again.rows, strict=True))
    assert np.array_equal(source.part_R, again.part_R) and again.schema == source.schema and again.notes == source.notes
    table.unlink()
    open_source(options, folder)


def test_figures_are_of_the_training_rows_alone(table, tmp_path):
    """A mean over all rows would tell the model of those it is scored on."""
    source = open_source(config(table, target="y", ignore=["id"]), tmp_path)
    (i,) = [i for i, number in enumerate(source.schema.numbers) if number.name == "number"]
    values = source.rows.numbers_RN[source.index(TRAIN), i]
    assert source.schema.numbers[i].mean == pytest.approx(values.mean(), rel=1e-9)
    assert source.schema.numbers[i].mean != pytest.approx(source.rows.numbers_RN[:, i].mean(), rel=1e-6)


class Killed(BaseException):
    """As by SIGKILL: nothing is cleaned up by those who catch errors."""


@pytest.mark.parametrize("moment", ["publish", "_write_schema"])
def test_a_kill_while_reading(table, tmp_path, monkeypatch, moment):
    """Rows without their schema, or half of them, must be read again and not be believed."""

    def dies(*args):
        raise Killed

    folder = tmp_path / "run"
    folder.mkdir()
    options = config(table, target="y", ignore=["id"])
    with monkeypatch.context() as patch:
        patch.setattr(module, moment, dies)
        with pytest.raises(Killed):
            open_source(options, folder)
    (folder / ".partial-rows").mkdir(exist_ok=True)
    (folder / ".partial-rows/left over").write_text("x")
    source, right = open_source(options, folder), open_source(options, tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(source.rows, right.rows, strict=True))
    assert sorted(path.name for path in folder.iterdir()) == ["rows", "schema.json"]
    assert not (folder / "rows/left over").exists()


def test_a_full_disk_while_reading(table, tmp_path, monkeypatch):
    """An OSError, by which the command line says that it could not start; no schema, so nothing is believed."""

    def no_space(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        open_source(config(table, target="y"), folder)
    assert not (folder / "schema.json").exists()
