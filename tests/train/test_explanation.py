"""Explanations of a trained run: a planted column is named first, columns are whole, the baseline is the run's own."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Number, Schema
from gradproof.data.split import TRAIN
from gradproof.data.value_text import ValueText
from gradproof.train import baseline
from gradproof.train.baseline import keep_baseline, mean_input, read_baseline
from gradproof.train.explanation import Explainer, load_explainer
from gradproof.train.load import load_predictor

SCHEMA = Schema(
    "outcome",
    ("good", "bad"),
    (Category("colour", ("red", "green"), other=True, missing=True), Category("flag", ("false", "true"))),
    (
        Number("weight", 10.0, 2.0, missing=True, knots=(8.0, 10.0, 12.0), levels=(9.0, 11.0)),
        Number("count", 0.0, 5.0, padic=2),
        Number("day", 18_000.0, 300.0, date=True),
        Number("day", 6.0, 3.0, date=True, part="month"),
    ),
)


def rows(count=5, seed=0):
    random = np.random.default_rng(seed)
    codes_RC = np.stack([random.integers(0, 4, count), random.integers(0, 2, count)], 1).astype(np.int32)
    numbers_RN = np.stack(
        [random.normal(10, 2, count), random.integers(-9, 9, count), *[np.full(count, 18_262.0)] * 2], 1
    )
    return Rows(codes_RC, numbers_RN, np.zeros(count, np.int64), np.zeros((count, 0), np.float32))


def test_every_input_has_its_column():
    """A change of one column of the table moves that column's inputs and no others."""
    encoder, before = Encoder(SCHEMA), rows()
    column_I, x_TI = encoder.columns(), encoder.inputs(before)
    assert len(column_I) == SCHEMA.inputs
    names = [column.name for column in SCHEMA.columns]
    changes = {"colour": ("codes_RC", [0]), "flag": ("codes_RC", [1])}
    changes |= {"weight": ("numbers_RN", [0]), "count": ("numbers_RN", [1]), "day": ("numbers_RN", [2, 3])}
    for name, (field, places) in changes.items():
        for value in (0, 1, 2, 3, 9, 2**40 + 5, np.nan):
            if field == "codes_RC" and not value < (4 if name == "colour" else 2):
                continue
            array = getattr(before, field).copy()
            array[:, places] = value
            moved_I = (encoder.inputs(before._replace(**{field: array})) != x_TI).any(0)
            assert set(column_I[moved_I].tolist()) <= {names.index(name)}


def test_values_are_words():
    """Names, numbers and dates as a person writes them."""
    text, some = ValueText(SCHEMA), rows()
    some.codes_RC[0], some.codes_RC[1] = [1, 0], [2, 1]
    some.codes_RC[2, 0] = 3
    some.numbers_RN[0] = [62.0, -3.0, 18_262.0, 1.0]
    some.numbers_RN[1] = [np.nan, 0.125, 18_262.75, 1.0]
    assert [text(some, 0, c) for c in range(5)] == ["green", "false", "62", "-3", "2020-01-01"]
    assert [text(some, 1, c) for c in range(5)] == ["other", "true", "missing", "0.125", "2020-01-01 18:00"]
    assert text(some, 2, 0) == "missing"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A run on a table in which `planted` alone decides; eight other columns do not."""
    pl = pytest.importorskip("polars")
    from gradproof.train.loop import Trainer
    from gradproof.train.report import report, write_report
    from gradproof.train.run import start

    folder, random = tmp_path_factory.mktemp("planted"), np.random.default_rng(0)
    columns = {f"other {n}": random.normal(size=600) for n in range(7)}
    columns["colour"] = random.choice(["red", "green", "blue"], 600)
    columns["planted"] = random.normal(size=600)
    columns["target"] = np.where(columns["planted"] > 0.2, "high", "low")
    pl.DataFrame(columns).write_csv(folder / "table.csv")
    made = {}
    for name, options in {
        "moe": dict(model="moe", size="3000"),
        "dense": dict(model="dense", size="3000"),
        "ensemble": dict(members=3, size="3000"),
    }.items():
        given = dict(data=str(folder / "table.csv"), target="target", steps=150, batch=64, threads=1, **options)
        trainer = Trainer(start(folder / name, given, resume=True), _Silent())
        trainer.settle()
        trainer.resume()
        trainer.train()
        write_report(trainer.run.path, report(trainer))
        made[name] = trainer
    return made


class _Silent:
    unit = "rows"

    def say(self, sentence):
        pass

    def reading(self, done, total):
        pass

    def training(self, record, steps):
        pass


@pytest.mark.parametrize("name", ["moe", "dense", "ensemble"])
def test_the_planted_column_is_named_first(planted, name):
    """Where the model decides rightly and the planted value is far from average; and every row adds up to a percent."""
    trainer = planted[name]
    predictor, _ = load_predictor(trainer.run.path)
    assert len(getattr(predictor.model, "members", [0])) == (3 if name == "ensemble" else 1)
    some = trainer.source.rows.take(np.arange(120))
    decision_T = predictor(some).decision_T
    explanations = load_explainer(trainer.run.path, predictor)(some, decision_T)
    place = [number.name for number in predictor.schema.numbers].index("planted")
    clear_T = (np.abs(some.numbers_RN[:, place] - 0.2) > 1) & (decision_T == some.outcome_R)
    assert clear_T.sum() > 30
    first = [e.because[0].column for e, clear in zip(explanations, clear_T, strict=True) if clear]
    assert np.mean([column == "planted" for column in first]) == 1
    for explanation in explanations:
        total = sum(c.contribution for c in explanation.because) + explanation.others
        difference = explanation.logit - explanation.baseline
        assert len(explanation.because) == 5 and abs(total - difference) <= 0.01 * abs(difference)
    found = load_explainer(trainer.run.path, predictor).attribute(some, decision_T)
    assert (found.missed_T <= 0.01 * (found.logit_T - found.baseline_T).abs()).all()


def test_the_run_keeps_the_mean_of_its_training_rows(planted, monkeypatch):
    """Of no others; a run from before it was kept has it taken of its rows."""
    trainer = planted["moe"]
    path, source, encoder = trainer.run.path, trainer.source, Encoder(trainer.source.schema)
    right_I = encoder.inputs(source.rows.take(source.index(TRAIN))).double().mean(0)
    assert torch.allclose(read_baseline(path, encoder), right_I)
    (path / baseline.FILE).unlink()
    assert torch.allclose(read_baseline(path, encoder), right_I)
    (path / "rows").rename(path / "elsewhere")
    assert read_baseline(path, encoder)[encoder.columns() == 0].abs().max() == 0  # no colour, mean numbers
    (path / "elsewhere").rename(path / "rows")
    keep_baseline(path, right_I)
    monkeypatch.setattr(baseline, "CHUNK", 7)
    assert torch.allclose(mean_input(encoder, source.rows, source.index(TRAIN)), right_I)


def test_another_baseline_explains_otherwise(planted):
    """Contributions are measured from it."""
    predictor, _ = load_predictor(planted["moe"].run.path)
    some = planted["moe"].source.rows.take(np.arange(4))
    decision_T = predictor(some).decision_T
    explainer = load_explainer(planted["moe"].run.path, predictor)
    moved = Explainer(predictor, explainer.baseline_I + 1.0)
    for here, there in zip(explainer(some, decision_T), moved(some, decision_T), strict=True):
        assert abs(here.logit - there.logit) < 1e-9 and here.baseline != there.baseline
        assert abs(here.because[0].contribution - there.because[0].contribution) > 1e-3


def test_no_decision_has_no_explanation(planted):
    """A row with outputs that are not finite."""
    predictor, _ = load_predictor(planted["dense"].run.path)
    some = planted["dense"].source.rows.take(np.arange(2))
    first, second = load_explainer(planted["dense"].run.path, predictor)(some, np.array([-1, 0]))
    assert first is None and second.decision == predictor.schema.classes[0]


def test_the_report_explains_a_few_rows(planted):
    """Three right decisions, at most two wrong ones, on the page with bars."""
    path = planted["ensemble"].run.path
    explained = json.loads((path / "report.json").read_text())["explained"]
    right = [e for e in explained if e["decision"] == e["outcome"]]
    assert len(right) == 3 and len(explained) - 3 <= 2 and all(len(e["because"]) == 5 for e in explained)
    page = (path / "report.html").read_text()
    assert "Explanations" in page and page.count("bar reason") == 5 * len(explained)


def test_the_command(planted, tmp_path):
    """Columns in the file, numbers in the record; without the flag neither."""
    path, out = planted["ensemble"].run.path, tmp_path / "out.csv"
    asked = ["predict", str(path), "--data", str(path.parent / "table.csv"), "--out", str(out), "--json", "-"]
    told = {}
    for flag in ([], ["--explain"]):
        result = CliRunner().invoke(app, asked + flag)
        assert result.exit_code == 0, result.output
        told[bool(flag)] = json.loads(result.stdout), out.read_text().splitlines()
    plain, (record, lines) = told[False], told[True]
    assert "explanations" not in plain[0] and "because" not in plain[1][0]
    assert lines[0] == plain[1][0] + ",because_1,because_2,because_3,because_4,because_5" and len(lines) == 601
    first = record["explanations"][0]
    assert len(record["explanations"]) == 600 and set(first) == {"decision", "logit", "baseline", "because", "others"}
    assert f"{first['because'][0]['column']} = {first['because'][0]['value']} (" in lines[1]
