"""A run that predicts a number, from the table to the predictions."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from gradproof.data.split import TEST, VALIDATION
from gradproof.report.page import render
from gradproof.serve.predict import as_records, predict_file
from gradproof.train.config import resolve
from gradproof.train.evidence import prove
from gradproof.train.load import load_predictor
from gradproof.train.loop import Trainer
from gradproof.train.number_score import errors, negative_log_likelihood, true_values
from gradproof.train.report import report
from gradproof.train.run import BEFORE, start
from gradproof.train.terminal_watch import show_scores


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """y = 50 + 10·(x + [kind is a]), with noise of 3."""
    rng = np.random.default_rng(0)
    x, kind = rng.normal(size=600), rng.integers(0, 2, 600)
    y = 50 + 10 * (x + kind) + 3 * rng.normal(size=600)
    path = tmp_path_factory.mktemp("table") / "t.csv"
    pl.DataFrame({"x": x, "kind": ["ba"[k] for k in kind], "y": y}).write_csv(path)
    return path


@pytest.fixture
def options(table):
    return dict(
        data=str(table),
        target="y",
        steps=150,
        batch=64,
        lr=1e-2,
        validate_every=50,
        members=2,
        dropout=0.0,
        model_options=dict(hidden=16, depth=1),
    )


@pytest.fixture
def trained(tmp_path, options, open_run):
    trainer, watch = open_run(tmp_path / "run", options)
    prove(trainer.run, trainer.model)
    trainer.train()
    return trainer, watch, report(trainer)


def test_learns_the_number_and_its_noise(trained, table, tmp_path):
    """The RMSE is near the noise of 3, not the 14 of the mean; the intervals cover what they say; every output says
    the same."""
    trainer, watch, record = trained
    own, trees, ridge, mean = record["scores"]
    assert own["rmse"] < 4.5 < mean["rmse"] and ridge["rmse"] < 4.5 and trees["name"] == "boosted trees"
    assert record["task"] == "regression" and 0.75 < own["coverage"] <= 1 and own["width"] == pytest.approx(10, rel=0.4)
    assert "accuracy" not in record["test"] and "validation_rmse" in watch.records[-1]
    page = render("train.html", json.loads(json.dumps(record, allow_nan=False)))
    assert "Predicted against true" in page and "Confusion" not in page
    predictor, _ = load_predictor(trainer.run.path)
    assert predictor.reach == trainer.predictor.reach
    scored = predict_file(predictor, table, tmp_path / "out.csv")
    written = pl.read_csv(tmp_path / "out.csv")
    assert written.columns[:3] == ["mean", "low", "high"] and scored.known == 600
    right = pl.read_csv(table)["y"]
    assert scored.rmse == pytest.approx(((written["mean"] - right) ** 2).mean() ** 0.5)
    inside = (written["low"] <= right) & (right <= written["high"])
    assert scored.coverage == pytest.approx(inside.mean())
    rows = trainer.source.rows.take(np.arange(2))
    first = as_records(predictor(rows), predictor.schema)[0]
    assert first["mean"] == pytest.approx(written["mean"][0]) and set(first) == {"mean", "low", "high", "gates"}


def test_the_terminal(trained, capsys):
    from rich.console import Console

    show_scores(trained[2], trained[0].run.path, Console(width=120))
    said = capsys.readouterr().out
    assert "RMSE" in said and "90% intervals cover" in said and "ridge regression" in said


def test_the_interval_is_fitted_to_the_validation_rows(trained):
    """Fitted to the test rows, their coverage would be no test."""
    trainer, _, _ = trained
    index_T = trainer.source.index(VALIDATION)
    found = trainer.predictor(trainer.source.rows.take(index_T)).number_TV
    value_T = true_values(trainer.source.rows.take(index_T), trainer.source.schema)
    inside = (found[:, 2] <= value_T) & (value_T <= found[:, 3])
    assert inside.mean() == pytest.approx(0.9, abs=0.03)
    assert not set(index_T) & set(trainer.source.index(TEST))


def test_resumed_with_the_same_bits(tmp_path, options, open_run):
    """The target, the strata of the split and the loss must come back as they were."""
    whole = open_run(tmp_path / "whole", options)[0]
    whole.train()

    def stop(record):
        if record["step"] == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_run(tmp_path / "cut", options, stop)[0].train()
    again = open_run(tmp_path / "cut", options)[0]
    assert 0 < again.at.step < 150
    again.train()
    assert torch.equal(again.model.params.flat_P, whole.model.params.flat_P)
    assert again.at.best_step == whole.at.best_step


def test_rows_that_are_no_number(trained):
    """A model with outputs that are not finite says so, and guesses nothing."""
    trainer, _, _ = trained
    predictor, _ = load_predictor(trainer.run.path)
    rows = trainer.source.rows.take(np.arange(2))
    predictor.model.params.flat_P.fill_(float("inf"))
    found = predictor(rows)
    assert (found.decision_T == -1).all() and np.isnan(found.number_TV).all()
    assert as_records(found, predictor.schema)[0]["mean"] is None


def test_figures_by_hand():
    """The natural logarithm, the spread and not its square, the biased variance."""
    number_TV = np.array([[1.0, 2.0], [3.0, 1.0]])
    value_T = np.array([2.0, 3.0])
    right = (np.log(2) + 0.125 + 0.0) / 2 + 0.5 * np.log(2 * np.pi)
    assert negative_log_likelihood(number_TV, value_T) == pytest.approx(right)
    assert errors(number_TV[:, 0], value_T) == pytest.approx({"rmse": 0.5**0.5, "mae": 0.5, "r2": -1.0})
    assert errors(np.ones(2), np.ones(2))["r2"] is None
    assert negative_log_likelihood(np.array([[np.nan, 1.0]]), np.ones(1)) == float("inf")


def test_what_cannot_be(table, tmp_path):
    """Refused in a sentence, before anything is trained."""
    with pytest.raises(ValueError, match="the synthetic set has classes"):
        resolve(dict(task="regression"))
    with pytest.raises(ValueError, match="class_weights: regression has no classes"):
        resolve(dict(task="regression", data="t.csv", class_weights="balanced"))
    with pytest.raises(ValueError, match="classification, regression or null"):
        resolve(dict(task="sorting"))
    assert BEFORE["task"] == "classification"
    run = start(tmp_path / "run", dict(data=str(table), target="y", class_weights="balanced", steps=2), resume=False)
    with pytest.raises(ValueError, match="has no classes"):
        Trainer(run, type("Watch", (), dict(reading=lambda *_: None, say=lambda *_: None))())


def test_asked_for_text_on_the_command_line(tmp_path):
    """One sentence, exit code 2, nothing written."""
    from typer.testing import CliRunner

    from gradproof.cli import app

    path = tmp_path / "t.csv"
    pl.DataFrame({"x": np.arange(60.0) % 7, "y": ["low", "high", "high"] * 20}).write_csv(path)
    given = ["train", "--data", str(path), "--target", "y", "--task", "regression", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2 and "--task regression needs a numeric target" in result.output
    assert not (tmp_path / "run").exists()
