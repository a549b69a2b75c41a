"""Exported decisions: the run's own, by onnxruntime and by torch, for every kind of column, router and model."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Metric, Number, Schema
from gradproof.export import checked_file
from gradproof.export.checked_file import WAYS
from gradproof.export.description import describe
from gradproof.export.frozen import freeze
from gradproof.export.torch_file import DecisionModule
from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.ensemble import Ensemble, EnsembleConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train.load import load_predictor
from gradproof.train.loop import Trainer
from gradproof.train.predictor import Predictor
from gradproof.train.report import report, write_report
from gradproof.train.run import start

NAMES = (Category("colour", ("red", "green"), other=True, missing=True), Category("flag", ("false", "true")))
NUMBERS = (
    Number("weight", 10.0, 2.0, missing=True, knots=(8.0, 10.0, 12.0), levels=(9.0, 11.0)),
    Number("count", 0.0, 5.0, padic=2),
    Number("length", 10.0, 2.0, missing=True, knots=(7.0, 9.5, 12.0), levels=(9.0,), places=(-3.0, 0.25, 2.0)),
    Number("price", 3.0, 0.5, padic=1, decimals=2),
    Number("day", 18_000.0, 300.0, date=True),
    Number("day", 6.0, 3.0, date=True, part="month"),
)
WHOLE = Schema("outcome", ("good", "bad", "ugly"), NAMES, NUMBERS, (Metric("cost", 100.0, 300.0), Metric("risk")))
FORMATS = pytest.mark.parametrize("form", ["onnx", "torch"])


def moe(schema, **options):
    ends = dict(inputs=schema.inputs, outputs=schema.outputs, experts=4, hidden=8, depth=1)
    return MoE(MoEConfig(**{**ends, **options}), seed=3)


def glued(schema, **options):
    return moe(schema, router="sheaf", patches=(3, 4, schema.inputs - 7), **options)


def corrected(schema):
    model = moe(schema, correction=0.1)
    model.buffers["router.correction"].copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
    return model


def tied(schema):
    """Every row sees four equal scores, and takes experts 0 and 1."""
    model = moe(schema)
    model.params["router.weight"].zero_()
    model.params["router.bias"].zero_()
    return model


def ensemble(schema, member, **options):
    return Ensemble(EnsembleConfig(member.config, members=3, classes=len(schema.classes)), seed=5)


MODELS = {
    "moe": moe,
    "one expert a row": lambda schema: moe(schema, k=1),
    "sigmoid, renormalised": lambda schema: moe(schema, scores="sigmoid", renormalise=True),
    "renormalised": lambda schema: moe(schema, renormalise=True, k=3),
    "correction": corrected,
    "ties": tied,
    "sheaf": glued,
    "sheaf of one patch": lambda schema: moe(schema, router="sheaf"),
    "dense": lambda schema: Dense(DenseConfig(schema.inputs, schema.outputs, 8, 16, 1), seed=3),
    "ensemble of mixtures": lambda schema: ensemble(schema, moe(schema)),
    "ensemble of dense models": lambda schema: ensemble(schema, MODELS["dense"](schema)),
    "ensemble with sheaf routers": lambda schema: ensemble(schema, glued(schema)),
}


def draw(schema, count, seed=0):
    """Every slot, no slot, missing and extreme numbers, values at knots and levels."""
    random = np.random.default_rng(seed)
    codes = [random.integers(-1, category.width, count) for category in schema.categories]
    numbers_RN = np.stack([random.normal(n.mean, n.std, count) for n in schema.numbers], 1) if schema.numbers else None
    if numbers_RN is None:
        numbers_RN = np.zeros((count, 0))
    else:
        numbers_RN[random.random(numbers_RN.shape) < 0.15] = np.nan
        numbers_RN[:12, 0] = [8.0, 9.0, 10.0, 11.0, 12.0, 1e300, -1e300, 0.0, 2.0**62, -(2.0**63), 2.0**40 + 5, 9.5]
        if len(schema.numbers) > 1:
            numbers_RN[:12, 1:4] = numbers_RN[:12, :1]
    codes_RC = np.stack(codes, 1).astype(np.int32) if codes else np.zeros((count, 0), np.int32)
    return Rows(codes_RC, numbers_RN, np.zeros(count, np.int64), np.zeros((count, len(schema.metrics)), np.float32))


def unsaved(frozen):
    """What `write_torch` exports, as it is: exporting takes a second, and a few of the models go through it."""
    decision = DecisionModule(frozen)

    def run(*arrays):
        found = decision(*map(torch.from_numpy, arrays))
        return [part.numpy() for part in (found if isinstance(found, tuple) else (found,))]

    return run


def same(form, model, schema, tmp_path, rows=97):
    """The file decides as the predictor does, for many rows and for one."""
    if form == "onnx":
        pytest.importorskip("onnx", reason="onnx is not installed: pip install 'gradproof[export]'")
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'gradproof[export]'")
    predictor = Predictor(model, schema, temperature=1.7)
    if form == "unsaved":
        run = unsaved(freeze(predictor))
    else:
        write, runner, _ = WAYS[form]
        file = tmp_path / ("decision.onnx" if form == "onnx" else "decision.pt2")
        write(file, freeze(predictor), (len(schema.categories), len(schema.numbers)), describe(schema))
        run = runner(file)
    for some in (draw(schema, rows), draw(schema, rows).slice(20, 21)):
        ours = predictor(some)
        found = run(some.codes_RC.astype(np.int64), some.numbers_RN)
        np.testing.assert_allclose(found[0], ours.probability_TC, atol=2e-6)
        assert len(found) == 1 + bool(schema.metrics)
        if schema.metrics:
            span_M = [metric.high - metric.low for metric in schema.metrics]
            np.testing.assert_allclose(found[1] / span_M, ours.metrics_TM / span_M, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["onnx", "unsaved"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model(form, name, tmp_path):
    """A part that is left out or combined in another order shows in the probabilities."""
    same(form, MODELS[name](WHOLE), WHOLE, tmp_path)


@pytest.mark.parametrize("name", ["dense", "ensemble with sheaf routers"])
def test_a_torch_program(name, tmp_path):
    """The same through torch.export, saved and loaded, for any number of rows."""
    same("torch", MODELS[name](WHOLE), WHOLE, tmp_path)


@FORMATS
@pytest.mark.parametrize("left", ["names", "numbers", "one number", "no metrics"])
def test_tables_that_lack_something(form, left, tmp_path):
    """No names, or no numbers, or numbers with nothing beside them."""
    schema = {
        "names": replace(WHOLE, numbers=()),
        "numbers": replace(WHOLE, categories=()),
        "one number": replace(WHOLE, categories=(), numbers=(Number("weight", 10.0, 2.0),)),
        "no metrics": replace(WHOLE, metrics=()),
    }[left]
    same(form, moe(schema), schema, tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on a table with names, dates and missing numbers: an ensemble of three."""
    pl = pytest.importorskip("polars")
    folder, random = tmp_path_factory.mktemp("export"), np.random.default_rng(0)
    size = random.normal(size=400).round(2)
    table = {
        "colour": random.choice(["red", "green", "blue"], 400),
        "size": [None if random.random() < 0.1 else float(value) for value in size],
        "day": [f"2024-{m:02}-{d:02}" for m, d in random.integers(1, 28, (400, 2)) % [12, 28] + 1],
        "target": np.where(size > 0, "big", "small"),
    }
    pl.DataFrame(table).write_csv(folder / "table.csv")
    given = dict(data=str(folder / "table.csv"), target="target", steps=30, batch=64, members=3, size="3000", threads=1)
    trainer = Trainer(start(folder / "run", given, resume=True), _Silent())
    trainer.settle()
    trainer.resume()
    trainer.train()
    write_report(trainer.run.path, report(trainer))
    return trainer


class _Silent:
    unit = "rows"

    def say(self, sentence):
        pass

    def reading(self, done, total):
        pass

    def training(self, record, steps):
        pass


def asked(run, form, out, *more):
    return CliRunner().invoke(app, ["export", str(run.run.path), "--format", form, "--out", str(out), *more])


@FORMATS
def test_the_command(run, form, tmp_path):
    """The file is checked on the test rows; what is printed runs, in a process that has no Gradproof."""
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'gradproof[export]'")
    out = tmp_path / ("decision.onnx" if form == "onnx" else "decision.pt2")
    result = asked(run, form, out, "--json", str(tmp_path / "record.json"))
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["difference"] < 1e-5 and record["rows"] == 40 and record["bytes"] == out.stat().st_size
    assert "largest difference of probabilities on 40 test rows" in result.output
    predictor, _ = load_predictor(run.run.path)
    rows = run.source.rows.take(np.arange(9))
    np.savez(tmp_path / "rows.npz", codes=rows.codes_RC.astype(np.int64), numbers=rows.numbers_RN)
    wrap = "torch.from_numpy" if form == "torch" else ""
    load = f"import numpy as np\nrows = np.load({str(tmp_path / 'rows.npz')!r})\n"
    given = f"codes, numbers = {wrap}(rows['codes']), {wrap}(rows['numbers'])"
    script = record["lesson"].replace("# codes", f"{given}  #")
    script = load + script + "\nimport sys\nprint(decision)\nassert 'gradproof' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    classes = predictor.schema.classes
    assert said.stdout.strip() == str([classes[d] for d in predictor(rows).decision_T]), said.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".partial")] == []


def test_the_codes_are_in_the_description(run):
    """Names to codes as the table's own reading has them."""
    schema = load_predictor(run.run.path)[0].schema
    about = describe(schema)
    assert about["codes"][0]["codes"] == {name: slot for slot, name in enumerate(schema.categories[0].values)}
    assert [number["column"] for number in about["numbers"]] == [number.name for number in schema.numbers]
    assert about["classes"] == ["big", "small"] and about["numbers"][1]["means"].startswith("days since 1970")


def test_a_file_that_decides_otherwise_is_not_written(run, tmp_path, monkeypatch):
    """Exit code 1, the difference, and an older file stays as it was; NaN is a difference."""
    out = tmp_path / "decision.pt2"
    out.write_text("before")
    write, runner, lesson = WAYS["torch"]
    for wrong in (lambda p: p + 2e-5, lambda p: p * np.nan):

        def off(file, wrong=wrong):
            return lambda *arrays: [wrong(runner(file)(*arrays)[0])]

        monkeypatch.setitem(WAYS, "torch", (write, off, lesson))
        result = asked(run, "torch", out)
        assert result.exit_code == 1 and "nothing was written" in result.output, result.output
        assert out.read_text() == "before" and [path.name for path in tmp_path.iterdir()] == ["decision.pt2"]


def test_near_ties_are_left_out_and_counted(run, monkeypatch):
    """Which expert is chosen is up to rounding: such a row says nothing of the file."""
    predictor, _ = load_predictor(run.run.path)
    rows = run.source.rows.take(np.arange(40))

    def one_wrong(codes_TC, numbers_TN):
        wrong_TC = predictor(rows).probability_TC.copy()
        wrong_TC[7] += 0.5
        return [wrong_TC]

    assert checked_file._compare(predictor, rows, one_wrong) == (0, 0.5)
    margin_T = torch.ones(40)
    margin_T[7] = 1e-7
    monkeypatch.setattr(predictor.model, "margin", lambda weights, x_TI: margin_T)
    assert checked_file._compare(predictor, rows, one_wrong) == (1, 0.0)


def test_a_missing_extra_is_one_sentence(run, tmp_path, monkeypatch):
    """Exit code 2; torch needs nothing more."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = asked(run, "onnx", tmp_path / "decision.onnx")
    assert result.exit_code == 2 and "gradproof[export]" in result.output and not list(tmp_path.iterdir())


def test_places_that_are_none(run, tmp_path):
    """Before anything is loaded."""
    for out, said in (
        (tmp_path, "is a directory"),
        (tmp_path / "none" / "decision.pt2", "must be a file in a folder that exists"),
    ):
        result = asked(run, "torch", out)
        assert result.exit_code == 2 and said in result.output
