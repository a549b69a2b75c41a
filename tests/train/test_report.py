import contextlib
import json

import numpy as np
import pytest
import torch

from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.train import checkpoint, loop
from gradproof.train.evaluate import predictions
from gradproof.train.evidence import prove
from gradproof.train.load import restore
from gradproof.train.report import finished_report, report, write_report
from gradproof.train.stopped import Stopped


def test_the_record(tmp_path, tiny, open_run):
    """Scores of the test rows alone, by the best checkpoint; everything in it is JSON."""
    trainer, _ = open_run(tmp_path / "run", tiny)
    prove(trainer.run, trainer.model)
    trainer.train()
    record = json.loads(json.dumps(report(trainer), allow_nan=False))
    index_T = trainer.source.index(TEST)
    own, bayes, trees, logistic, majority = record["scores"]
    assert own["name"] == "moe nano" and own["accuracy"] == record["test"]["accuracy"]
    assert bayes["accuracy"] == pytest.approx(trainer.source.best_R[index_T].mean())
    assert trees["name"] == "boosted trees" and trees["rows"] == logistic["rows"] == majority["rows"] == own["rows"]
    assert all(row.keys() == own.keys() for row in record["scores"])
    assert [own[key] for key in ("auc", "brier")] == [record["test"][key] for key in ("auc", "brier")]
    assert own["seconds"] == record["run"]["seconds"] and majority["auc"] == 0.5
    assert logistic["name"] == "logistic regression" and majority["name"] == "majority class"
    commonest = np.bincount(trainer.source.rows.outcome_R[trainer.source.index(TRAIN)]).argmax()
    assert majority["accuracy"] == (trainer.source.rows.outcome_R[index_T] == commonest).mean()
    run = record["run"]
    assert (run["steps"], run["best_step"], run["inputs"], run["experts"]) == (12, trainer.at.best_step, 96, 4)
    parts = [len(trainer.source.index(part)) for part in (TRAIN, VALIDATION, TEST)]
    assert [run["train_rows"], run["validation_rows"], run["test_rows"]] == parts and sum(parts) == 400
    assert run["parameters"] == trainer.model.params.count and record["status"] == "finished"
    assert [line["step"] for line in record["history"]] == list(range(1, 13))
    assert record["config"] == trainer.config.to_dict() and record["evidence"]["status"] == "proven"
    assert len(record["test"]["classes"]) == 12 and len(record["test"]["metrics"]) == 8
    assert f"of {len(index_T)} held-out rows" in record["summary"] and "Bayes-optimal" in record["summary"]


def test_the_best_checkpoint_is_scored(tmp_path, tiny, open_run, monkeypatch):
    """The last weights are in memory at the end; scoring them would report another model than the one chosen."""
    scores = iter([(1.0, 0.9), (2.0, 0.5), (3.0, 0.1)])
    monkeypatch.setattr(loop, "evaluate", lambda *args: (*next(scores), np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", {**tiny, "lr": 0.05})
    trainer.train()
    last_P = trainer.model.params.flat_P.clone()
    record = report(trainer)
    assert record["run"]["best_step"] == 4
    index_T = trainer.source.index(TEST)
    right = open_run(tmp_path / "other", {**tiny, "lr": 0.05})[0]
    restore(right.model, checkpoint.load(tmp_path / "run/checkpoints/step-4"))
    assert not torch.equal(right.model.params.flat_P, last_P)
    probability_TC = predictions(right.predictor, right.source.rows, index_T).probability_TC
    outcome_T = right.source.rows.outcome_R[index_T]
    assert record["test"]["accuracy"] == (probability_TC.argmax(1) == outcome_T).mean()
    assert record["test"]["log_loss"] == pytest.approx(
        -np.log(probability_TC[np.arange(len(index_T)), outcome_T]).mean()
    )


def test_a_dense_report(tmp_path, tiny, open_run):
    """One expert, and the page takes it."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "model": "dense", "model_options": {}, "steps": 4})
    trainer.train()
    record = report(trainer)
    assert record["run"]["experts"] == 1 and record["evidence"] is None
    write_report(trainer.run.path, record)
    assert "dense nano" in (trainer.run.path / "report.html").read_text()


def test_written_and_read_again(tmp_path, tiny, open_run):
    """A run is finished when both files are there; one of them alone means that the end was cut off."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 4})
    trainer.train()
    record = report(trainer)
    folder = trainer.run.path
    assert finished_report(folder) is None
    write_report(folder, record)
    assert finished_report(folder) == json.loads(json.dumps(record))
    page = (folder / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>") and record["summary"].split(" (")[0] in page
    (folder / "report.html").unlink()
    assert finished_report(folder) is None
    assert not list(folder.glob(".partial-*"))


@pytest.mark.parametrize(("statuses", "right"), [("pp", "proven"), ("pr", "refuted"), ("pi", "inconclusive")])
def test_evidence_is_not_made_better_than_it_is(tmp_path, tiny, open_run, statuses, right):
    """A claim that could not be decided is not proven."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 4})
    trainer.train()
    names = dict(p="proven", r="refuted", i="inconclusive")
    lines = [json.dumps({"claim": "adjoint", "status": names[letter]}) for letter in statuses]
    (trainer.run.path / "evidence.jsonl").write_text("\n".join(lines) + "\n")
    evidence = report(trainer)["evidence"]
    assert evidence["claims"] == 2 and evidence["status"] == right


def test_a_damaged_best_checkpoint_does_not_hold_the_run_for_ever(tmp_path, tiny, open_run, monkeypatch):
    """The last one is whole: report it, or stop with a sentence; as bad input (exit 2) no --resume would ever help."""
    scores = iter([(1.0, 0.9), (2.0, 0.5), (3.0, 0.1)])
    monkeypatch.setattr(loop, "evaluate", lambda *args: (*next(scores), np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", tiny)
    trainer.train()
    file = trainer.run.checkpoints / "step-4" / checkpoint.MODEL
    file.write_bytes(file.read_bytes()[:-1])
    with contextlib.suppress(Stopped):
        report(trainer)


def test_a_table_has_no_bayes_row(tmp_path, tiny, open_run):
    """The best possible score is known of the synthetic set alone; and a table's notes are in the report."""
    pytest.importorskip("polars")
    random = np.random.default_rng(0)
    rows = [f"{'ab'[int(v > 0)]},{v:.3f},{'xyz'[i % 3]},{i % 5}" for i, v in enumerate(random.normal(size=300))]
    table = tmp_path / "table.csv"
    table.write_text("y,number,name,five\n" + "\n".join(rows) + "\n")
    options = {**tiny, "data": str(table), "target": "y", "model_options": dict(hidden=8, depth=0)}
    trainer, _ = open_run(tmp_path / "run", options)
    trainer.train()
    record = report(trainer)
    assert [row["name"] for row in record["scores"]] == [
        "moe nano",
        "boosted trees",
        "logistic regression",
        "majority class",
    ]
    assert record["test"]["metrics"] == [] and record["schema"]["columns"] == 3
    assert record["notes"] == trainer.source.notes


def test_a_large_test_part_is_sampled(tmp_path, tiny, open_run, monkeypatch):
    """All of it at once would not fit into memory where the table does not; how many there are is said all the same."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 4})
    trainer.train()
    monkeypatch.setattr("gradproof.train.report.SCORED_ROWS", 10)
    record = report(trainer)
    assert 5 < record["test"]["rows"] <= 10 < record["run"]["test_rows"] == len(trainer.source.index(TEST))
    assert sum(map(sum, record["test"]["confusion"])) == record["test"]["rows"]


def test_many_rows_are_sampled_for_the_baselines(tmp_path, tiny, open_run, monkeypatch):
    """Evenly from the training rows, at most so many."""
    asked = []

    def fit(x_RI, outcome_R, chunks, outcome_T, classes):
        asked.append((x_RI.shape, len(outcome_R), np.concatenate(list(chunks)).shape, classes))
        return {"name": "logistic regression", "accuracy": None, "log_loss": None, "note": ""}

    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 4})
    trainer.train()
    monkeypatch.setattr("gradproof.train.baselines.MOST_ROWS", 100)
    monkeypatch.setattr("gradproof.train.baselines.logistic_regression", fit)
    monkeypatch.setattr("gradproof.train.baselines.MOST_TREE_ROWS", 50)
    record = report(trainer)
    assert 25 < record["scores"][2]["rows"] <= 50
    ((fitted, outcomes, scored, classes),) = asked
    assert fitted == (outcomes, 96) and 50 < outcomes <= 100 and classes == 12
    assert scored == (len(trainer.source.index(TEST)), 96)
