"""Predictor: against a direct forward on inputs encoded by hand; predict_file: what it writes, and what it leaves."""

import json
import warnings

import numpy as np
import pytest
import torch

from gradproof.data.rows import Rows
from gradproof.data.schema import Metric, Schema
from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.serve.predict import as_frame, as_records, predict_file
from gradproof.train import predictor as predictors
from gradproof.train.predictor import Predictor


def draw(schema, count, seed=0):
    """Rows with every slot, no slot (−1) and missing numbers among them."""
    generator = np.random.default_rng(seed)
    codes = [generator.integers(-1, category.width, count) for category in schema.categories]
    numbers = generator.normal(8, 4, (count, len(schema.numbers)))
    numbers[generator.random(numbers.shape) < 0.2] = np.nan
    return Rows(
        np.stack(codes, 1).astype(np.int32), numbers, np.full(count, -1), np.full((count, 2), np.nan, np.float32)
    )


def encoded(rows):
    """The inputs of conftest's schema, written out."""
    x_TI = torch.zeros(rows.count, 10)
    for t, ((colour, flag), (weight, count)) in enumerate(zip(rows.codes_RC, rows.numbers_RN, strict=True)):
        if colour >= 0:
            x_TI[t, colour] = 1
        if flag >= 0:
            x_TI[t, 5 + flag] = 1
        x_TI[t, 7] = 0.0 if np.isnan(weight) else (weight - 10) / 2
        x_TI[t, 8] = 0.0 if np.isnan(count) else count / 5
        x_TI[t, 9] = float(np.isnan(weight))
    return x_TI


def test_equals_a_forward_and_a_softmax(predictor, schema):
    rows = draw(schema, 57)
    output, _ = predictor.model.forward(encoded(rows))
    logits = output.logits_TO.double().numpy()
    e_TC = np.exp(logits[:, :3] - logits[:, :3].max(1, keepdims=True))
    predictions = predictor(rows)
    np.testing.assert_allclose(predictions.probability_TC, e_TC / e_TC.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(predictions.decision_T, logits[:, :3].argmax(1))
    np.testing.assert_allclose(predictions.metrics_TM, np.stack([100 + 200 * logits[:, 3], logits[:, 4]], 1), rtol=1e-5)
    np.testing.assert_allclose(predictions.gates_TE, output.gates_TE.numpy(), rtol=1e-6)
    assert len(set(predictions.decision_T)) > 1 and ((predictions.gates_TE > 0).sum(1) == 2).all()


def test_probabilities_are_taken_in_float64(predictor, schema):
    """In float32 the rows would sum to 1 only to 1e-7."""
    predictions = predictor(draw(schema, 300))
    assert [array.dtype for array in predictions] == [np.int64, *[np.float64] * 5]
    assert np.abs(predictions.probability_TC.sum(1) - 1).max() < 1e-15


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 25])
def test_chunks_keep_the_order(predictor, schema, count, monkeypatch):
    whole = predictor(draw(schema, count))
    monkeypatch.setattr(predictors, "CHUNK", 8)
    for a, b in zip(whole, predictor(draw(schema, count)), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_no_tape_is_kept(predictor, schema):
    """Nothing needs a gradient, even where the parameters do."""
    predictor.model.params.flat_P.requires_grad_(True)
    try:
        predictions = predictor(draw(schema, 3))
    finally:
        predictor.model.params.flat_P.requires_grad_(False)
    assert isinstance(predictions.probability_TC, np.ndarray)


def test_a_dense_model_has_one_gate(schema):
    predictions = Predictor(Dense(DenseConfig(10, 5, hidden=8, feedforward=8, blocks=1)), schema)(draw(schema, 4))
    assert predictions.gates_TE.tolist() == [[1.0]] * 4


def test_a_model_for_another_table_is_refused(schema):
    with pytest.raises(ValueError, match="the model has 9 inputs and 5 outputs, the schema 10 and 5"):
        Predictor(MoE(MoEConfig(inputs=9, outputs=5, hidden=4)), schema)


def test_records(predictor, schema):
    predictions = predictor(draw(schema, 20))
    records = json.loads(json.dumps(as_records(predictions, schema), allow_nan=False))
    assert len(records) == 20
    for t, record in enumerate(records):
        assert list(record) == ["decision", "probability", "probabilities", "metrics", "gates"]
        assert list(record["probabilities"].values()) == predictions.probability_TC[t].tolist()
        assert record["decision"] == max(record["probabilities"], key=record["probabilities"].__getitem__)
        assert record["probability"] == record["probabilities"][record["decision"]]
        assert record["metrics"] == dict(zip(("cost", "risk"), predictions.metrics_TM[t].tolist(), strict=True))
        assert record["gates"] == predictions.gates_TE[t].tolist()


def test_no_decision_where_the_outputs_are_not_finite(predictor, schema, overflowing):
    """What overflows must not become a decision, nor touch the other rows."""
    rows = draw(schema, 3)
    right = predictor(rows)
    rows.numbers_RN[1, 1] = overflowing
    predictions = predictor(rows)
    assert predictions.decision_T.tolist() == [right.decision_T[0], -1, right.decision_T[2]]
    np.testing.assert_allclose(predictions.probability_TC[[0, 2]], right.probability_TC[[0, 2]], rtol=1e-6)
    record = json.loads(json.dumps(as_records(predictions, schema), allow_nan=False))[1]
    assert record["decision"] is record["probability"] is record["metrics"]["cost"] is None
    assert set(record["gates"]) == set(record["probabilities"].values()) == {None}
    assert as_frame(predictions, schema).row(1) == (None,) * 11


def test_a_model_that_diverged_is_refused(schema):
    model = MoE(MoEConfig(inputs=10, outputs=5, hidden=4))
    model.params["router.bias"][0] = torch.nan
    with pytest.raises(ValueError, match="not all finite"):
        Predictor(model, schema)


def test_columns_of_the_same_name_are_all_written(predictor, schema):
    twins = Schema("y", schema.classes, schema.categories, schema.numbers, (Metric("decision"), Metric("p_bad")))
    frame = as_frame(predictor(draw(schema, 2)), twins)
    assert frame.columns == ["decision", "probability", "p_good", "p_bad", "p_ugly", "decision_", "p_bad_"] + [
        f"gate_{e}" for e in range(4)
    ]


def table(folder, count, name="data.csv", outcome=True):
    """A file of rows, as a user would have it; every third outcome is unknown."""
    import polars as pl

    generator = np.random.default_rng(1)
    columns = {
        "id": range(count),
        "colour": generator.choice(["red", "green", "mauve", None], count),
        "flag": generator.choice(["true", "false"], count),
        "weight": generator.normal(10, 2, count).round(3),
        "count": generator.integers(-9, 9, count),
    }
    if outcome:
        columns["outcome"] = [None if i % 3 == 2 else ("good", "ugly", "bad", "odd")[i % 4] for i in range(count)]
    frame = pl.DataFrame(columns, strict=False)
    path = folder / name
    frame.write_parquet(path) if name.endswith("parquet") else frame.write_csv(path)
    return path


@pytest.fixture
def small_chunks(monkeypatch):
    """Files are read 10 rows at a time."""
    from gradproof.data.table import Table

    whole = Table.chunks
    monkeypatch.setattr(Table, "chunks", lambda self, **more: whole(self, rows=10, **more))


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
@pytest.mark.parametrize("out", ["out.csv", "out.parquet"])
def test_a_file(predictor, schema, tmp_path, small_chunks, name, out):
    import polars as pl

    from gradproof.data.frame import encode

    path = table(tmp_path, 47, name)
    scored = predict_file(predictor, path, tmp_path / out)
    read = pl.read_csv(tmp_path / out) if out.endswith("csv") else pl.read_parquet(tmp_path / out)
    rows = encode(schema, pl.read_csv(path) if name.endswith("csv") else pl.read_parquet(path))
    right = predictor(rows)
    classes = [f"p_{class_name}" for class_name in schema.classes]
    assert read.columns == ["decision", "probability", *classes, "cost", "risk", *(f"gate_{e}" for e in range(4))]
    assert read["decision"].to_list() == [schema.classes[d] for d in right.decision_T]
    np.testing.assert_allclose(read[classes].to_numpy(), right.probability_TC, rtol=1e-5)
    np.testing.assert_allclose(read["probability"].to_numpy(), right.probability_TC.max(1), rtol=1e-5)
    np.testing.assert_allclose(read[["cost", "risk"]].to_numpy(), right.metrics_TM, rtol=1e-4, atol=1e-6)
    known = rows.outcome_R >= 0
    assert scored[:5] == (47, known.sum(), (right.decision_T == rows.outcome_R)[known].mean(), {}, None)
    assert 0 < scored.known < 47 and 0 < scored.accuracy < 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([name, out])


def test_a_file_raises_no_warning(schema, tmp_path):
    """Polars lends the memory of a single column, and torch says, once in a process, that it is not writable."""
    path = table(tmp_path, 12)
    one = Schema("outcome", schema.classes, schema.categories[:1], schema.numbers[:1])
    predictor = Predictor(Dense(DenseConfig(one.inputs, 3, hidden=8, feedforward=8, blocks=1)), one)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            predict_file(predictor, path, tmp_path / "out.csv")
    finally:
        torch.set_warn_always(False)


def test_what_is_no_number_is_missing_and_counted(predictor, tmp_path, small_chunks):
    """Over all chunks, the first by its row in the file; the row is decided as one without that value."""
    import polars as pl

    path = table(tmp_path, 30)
    rest = "{},red,true,{},1,good\n"
    path.write_text(path.read_text() + rest.format(30, "0.3 kg") + rest.format(31, "") + rest.format(32, "?!"))
    scored = predict_file(predictor, path, tmp_path / "out.csv")
    assert scored.unread == {"weight": (2, 31, "'0.3 kg'", "a number")}
    sentence = "column 'weight': 2 values are not a number and count as missing; the first is '0.3 kg' in row 31"
    assert scored.unread["weight"].sentence("weight") == sentence
    out = pl.read_csv(tmp_path / "out.csv")
    assert out.height == 33 and out.row(30) == out.row(31) == out.row(32) != out.row(29)


def test_to_standard_output(predictor, tmp_path, small_chunks, capsys):
    path = table(tmp_path, 25, outcome=False)
    scored = predict_file(predictor, path, None)
    printed = capsys.readouterr().out
    predict_file(predictor, path, tmp_path / "out.csv")
    assert scored == (25, 0, None, {}, None, [])
    assert printed == (tmp_path / "out.csv").read_text() and len(printed.splitlines()) == 26


@pytest.mark.parametrize("out", ["out.csv", "out.parquet"])
@pytest.mark.parametrize("kept", [None, "an older file"])
def test_an_error_leaves_nothing_behind(predictor, tmp_path, small_chunks, out, kept):
    """The last row is broken: most of the output has been written by then."""
    path = table(tmp_path, 30)
    path.write_text(path.read_text() + "1,2\n")
    if kept:
        (tmp_path / out).write_text(kept)
    with pytest.raises(ValueError, match=r"line 32 of .* has 2 fields"):
        predict_file(predictor, path, tmp_path / out)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["data.csv", *([out] if kept else [])])
    assert not kept or (tmp_path / out).read_text() == kept


def test_outputs_that_cannot_be_written_are_refused_first(predictor, tmp_path):
    path = table(tmp_path, 3)
    (tmp_path / "folder.csv").mkdir()
    for out, sentence in (
        ("out.txt", "must end in .csv or .parquet"),
        ("nowhere/out.csv", "does not exist; create it first"),
        ("folder.csv", "is a folder; name a file"),
        ("data.csv", "is the input"),
    ):
        with pytest.raises(ValueError, match=sentence):
            predict_file(predictor, path, tmp_path / out)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data.csv", "folder.csv"]


@pytest.mark.parametrize("out", ["out.csv", "out.parquet", None])
@pytest.mark.parametrize("keep", [["id", "colour", "id"], None])
def test_columns_are_kept_as_they_are(predictor, tmp_path, small_chunks, capsys, out, keep):
    """In the file's own words, also where they count as missing; the predictions are those without them."""
    import polars as pl

    path = table(tmp_path, 24)
    path.write_text(path.read_text() + "24, NA ,true,,1,\n")
    predict_file(predictor, path, tmp_path / "alone.csv")
    predict_file(predictor, path, tmp_path / out if out else None, keep)
    if out is None:
        (tmp_path / "out.csv").write_text(capsys.readouterr().out)
    read = (pl.read_parquet if out == "out.parquet" else pl.read_csv)(tmp_path / (out or "out.csv"))
    kept = list(dict.fromkeys(keep)) if keep else ["id", "colour", "flag", "weight", "count", "outcome"]
    assert read.columns[: len(kept)] == kept and read["colour"][-1] == " NA "
    assert read["id"].cast(pl.Int64).to_list() == list(range(25))
    assert read.drop(kept)["decision"].to_list() == pl.read_csv(tmp_path / "alone.csv")["decision"].to_list()
    assert read.drop(kept).columns == pl.read_csv(tmp_path / "alone.csv").columns


@pytest.mark.parametrize("name", ["decision", "probability", "p_bad", "cost", "gate_3"])
@pytest.mark.parametrize("everything", [True, False])
def test_a_kept_column_must_not_clash(predictor, tmp_path, name, everything):
    """Two columns of one name are no table; nothing is written."""
    path = table(tmp_path, 5)
    path.write_text(path.read_text().replace("id,", f"{name},", 1))
    with pytest.raises(ValueError, match=f"the predictions have a column '{name}' of their own"):
        predict_file(predictor, path, tmp_path / "out.csv", None if everything else [name])
    assert not (tmp_path / "out.csv").exists()
    predict_file(predictor, path, tmp_path / "out.csv", ["colour"])


def test_what_cannot_be_kept(predictor, tmp_path):
    import polars as pl

    path = table(tmp_path, 5, "data.parquet")
    with pytest.raises(ValueError, match="the table has no column 'color'; did you mean 'colour'"):
        predict_file(predictor, path, tmp_path / "out.csv", ["id", "color"])
    pl.read_parquet(path).with_columns(tags=pl.Series([[1]] * 5)).write_parquet(path)
    with pytest.raises(ValueError, match="CSV cannot hold column 'tags'"):
        predict_file(predictor, path, tmp_path / "out.csv", ["tags"])
    predict_file(predictor, path, tmp_path / "out.parquet", ["tags"])
    assert pl.read_parquet(tmp_path / "out.parquet")["tags"].to_list() == [[1]] * 5


def test_costs_change_decisions_and_nothing_else(predictor, schema, tmp_path, small_chunks):
    """The mean cost is over the rows with a known outcome; without any it is not known."""
    import polars as pl

    from gradproof.data.frame import encode

    path, cost_C = table(tmp_path, 47), np.array([1.0, 1.0, 3.0])
    plain = predict_file(predictor, path, tmp_path / "plain.csv")
    scored = predict_file(predictor, path, tmp_path / "out.csv", cost_C=cost_C)
    before, after = (pl.read_csv(tmp_path / name) for name in ("plain.csv", "out.csv"))
    own = ["decision", "probability"]
    assert after.drop(own).equals(before.drop(own)) and plain.cost is None
    rows = encode(schema, pl.read_csv(path))
    right_T = (predictor(rows).probability_TC * cost_C).argmax(1)
    assert after["decision"].to_list() == [schema.classes[d] for d in right_T]
    assert 0 < (after["decision"] != before["decision"]).sum() < 47
    chosen = [row[f"p_{row['decision']}"] for row in after.iter_rows(named=True)]
    assert after["probability"].to_list() == chosen
    known = rows.outcome_R >= 0
    wrong_R = known & (right_T != rows.outcome_R)
    assert scored.cost == pytest.approx(cost_C[rows.outcome_R[wrong_R]].sum() / known.sum())
    assert scored.accuracy == (right_T == rows.outcome_R)[known].mean()
    assert predict_file(predictor, table(tmp_path, 5, outcome=False), tmp_path / "out.csv", cost_C=cost_C).cost is None


def test_explanations_of_a_file(predictor, explainer, tmp_path):
    """because_1 … hold what the explainer says, in its order; the record has numbers; --keep takes no such name."""
    pl = pytest.importorskip("polars")
    path, out = tmp_path / "table.csv", tmp_path / "out.csv"
    frame = pl.DataFrame({"colour": ["red", "?"], "flag": [True, False], "weight": [12.5, None], "count": [3, -40]})
    frame.with_columns(because_2=pl.lit("x")).write_csv(path)
    scored = predict_file(predictor, path, out, explainer=explainer, record_explanations=True)
    written = pl.read_csv(out)
    assert written.columns[-5:] == [f"because_{n}" for n in range(1, 6)]
    first = scored.explanations[0]["because"]
    assert [reason["column"] for reason in first] != ["colour", "flag", "weight", "count"]
    for n, reason in enumerate(first):
        text = f"{reason['column']} = {reason['value']} ({reason['contribution']:+.2f})"
        assert written[f"because_{n + 1}"][0] == text
    assert {reason["column"]: reason["value"] for reason in first} == {
        "colour": "red", "flag": "true", "weight": "12.5", "count": "3"
    }  # fmt: skip
    assert written["because_5"].is_null().all() and "weight = missing" in "".join(written.row(1)[-5:-1])
    with pytest.raises(ValueError, match="'because_2' of their own"):
        predict_file(predictor, path, out, ["because_2"], explainer=explainer)
    assert predict_file(predictor, path, out, ["because_2"]).explanations == []
    assert pl.read_csv(out).columns[0] == "because_2"
