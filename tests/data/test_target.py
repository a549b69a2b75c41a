import numpy as np
import polars as pl
import pytest

from gradproof.data.frame import encode
from gradproof.data.infer import read
from gradproof.data.schema import Schema
from gradproof.data.split import TEST, TRAIN, VALIDATION, split
from gradproof.data.target import strata_of, stratum


@pytest.fixture
def reader(tmp_path):
    """reader(columns, task): the table, read from a file of its own."""

    def opened(columns, task=None, name="t.csv", **options):
        path, out = tmp_path / f"{len(list(tmp_path.iterdir()))}{name}", tmp_path / f"r{len(list(tmp_path.iterdir()))}"
        frame = pl.DataFrame(columns)
        (frame.write_csv if name.endswith("csv") else frame.write_parquet)(path)
        options = {"split": lambda outcome_R: np.arange(len(outcome_R)) % 5 != 0, **options}
        return read(path, "y", task=task, folder=out, **options)

    return opened


def floats(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=rows).tolist(), "y": rng.normal(100, 7, rows).tolist()}


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_float_of_many_values_is_a_number(reader, name):
    """Taken for classes, 200 values in 200 rows would be refused as an id."""
    columns = floats()
    table = reader(columns, name=name)
    value_R = np.array(columns["y"])
    train_R = np.arange(200) % 5 != 0
    quantity = table.schema.quantity
    assert table.schema.classes == () and table.schema.outputs == 2
    assert quantity.mean == pytest.approx(value_R[train_R].mean())
    assert quantity.std == pytest.approx(value_R[train_R].std())
    np.testing.assert_allclose(quantity.mean + quantity.std * table.rows.metrics_RM[:, 0], value_R, rtol=1e-6)
    assert (np.bincount(table.rows.outcome_R) == 20).all()


def test_few_values_integers_and_metrics_stay_classes(reader):
    """Fifty values are classes, fifty-one are not; integers may be codes; metrics stand beside a class."""
    rows = 510
    x = {"x": np.random.default_rng(0).normal(size=rows).tolist()}
    half = [0.5 + i % 50 for i in range(rows)]
    assert len(reader({**x, "y": half}).schema.classes) == 50
    assert reader({**x, "y": [0.5 + i % 51 for i in range(rows)]}).schema.quantity
    assert len(reader({**x, "y": [i % 60 for i in range(rows)]}).schema.classes) == 60
    many = {**x, "y": [0.5 + i % 60 for i in range(rows)]}
    assert len(reader({**many, "m": half}, metrics=["m"]).schema.classes) == 60
    assert len(reader(many, "classification").schema.classes) == 60
    assert reader({**x, "y": [i % 60 for i in range(rows)]}, "regression").schema.quantity


def test_asked_for_text(reader):
    """The sentence names the column and a value, so that the wrong --target is seen at once."""
    with pytest.raises(ValueError, match=r"--task regression needs a numeric target, and column 'y' .* is not numeric"):
        reader({**floats(), "y": ["low", "high"] * 100}, "regression")
    with pytest.raises(ValueError, match="there is nothing to predict"):
        reader({**floats(), "y": [1.5] * 200}, "regression")
    with pytest.raises(ValueError, match="omit them"):
        reader({**floats(), "m": [1.0, 2.0] * 100}, "regression", metrics=["m"])
    with pytest.raises(ValueError, match="a numeric target, not a class; --task regression predicts numbers"):
        reader({**floats(), "y": list(range(200))})


def test_more_values_than_classes_and_a_few_that_are_none(reader):
    """More than a thousand values end the search for classes, not for numbers; what is no number has no target."""
    columns = floats(3000)
    columns["y"] = ["broken" if i in (5, 2999) else f"${1000 + y:,.2f}" for i, y in enumerate(columns["y"])]
    table = reader(columns)
    assert table.rows.count == 2998 and table.schema.quantity.format.unit == "$"
    assert table.notes[0].startswith("2 of 3,000 rows have no y")
    assert table.schema.quantity.mean == pytest.approx(1100, abs=2)


def test_prediction_reads_the_target_alike(reader):
    """A row without the target has none; the others the value that training saw."""
    table = reader(floats())
    frame = pl.DataFrame({"x": ["0.5", "1.5"], "y": ["101.5", None]})
    rows = encode(table.schema, frame)
    assert rows.outcome_R[0] >= 0 and rows.outcome_R[1] == -1 and np.isnan(rows.metrics_RM[1, 0])
    quantity = table.schema.quantity
    assert quantity.mean + quantity.std * rows.metrics_RM[0, 0] == pytest.approx(101.5, rel=1e-6)
    assert encode(table.schema, frame.drop("y")).outcome_R.tolist() == [-1, -1]


def test_survives_json(reader):
    """A run reads its schema from schema.json; one from before there were numbers has no `quantity` in it."""
    schema = reader(floats()).schema
    assert Schema.from_dict(schema.to_dict()) == schema
    old = {name: value for name, value in schema.to_dict().items() if name != "quantity"}
    assert Schema.from_dict(old).quantity is None


def test_parts_are_alike():
    """Without strata, a part of few rows could miss the largest values altogether."""
    value_R = np.exp(np.random.default_rng(0).normal(size=400))
    part_R = split(stratum(value_R, strata_of(value_R)), 0, 0.1, 0.1)
    for part in (TRAIN, VALIDATION, TEST):
        assert np.median(value_R[part_R == part]) == pytest.approx(1.0, rel=0.2)
        assert 0.05 < (value_R[part_R == part] > np.quantile(value_R, 0.9)).mean() < 0.15
    assert strata_of(np.arange(12.0)) == ()
