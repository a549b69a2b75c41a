"""What a finished run leaves: report.json, the record, and report.html, the page made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.files import write_atomically
from gradproof.train import baselines, checkpoint
from gradproof.train.cautions import cautions
from gradproof.train.config import TrainConfig
from gradproof.train.evaluate import predictions, spaced
from gradproof.train.load import restore
from gradproof.train.loop import Stopped, Trainer, environment, read_evidence
from gradproof.train.number_report import number_cautions, number_scores, number_summary
from gradproof.train.number_score import number_score, true_values
from gradproof.train.score import score

SCORED_ROWS = 100_000  # of a larger test part, evenly spaced
CHUNK = 1024
PARTS = (TRAIN, VALIDATION, TEST)


def report(trainer: Trainer) -> dict[str, Any]:
    """Scores the best checkpoint on the rows that nothing was chosen by, beside what anyone would compare with."""
    source, config, at = trainer.source, trainer.config, trainer.at
    best, test, index_T = score_best(trainer)
    name = model_name(config)
    if source.schema.quantity:
        scores = number_scores(name, test, source, index_T)
        summary, warnings = number_summary(scores, test), number_cautions(scores, test)
    else:
        own = {figure: test[figure] for figure in ("accuracy", "balanced_accuracy", "log_loss")}
        scores = [{"name": name, **own, "note": "best checkpoint"}]
        scores += _compared(trainer, source.rows.take(index_T), index_T)
        summary, warnings = _summary(name, scores, len(index_T)), cautions(scores, len(index_T))
    return {
        "status": at.finished,
        "summary": summary,
        "run": run_facts(trainer, best, [len(source.index(part)) for part in PARTS], source.schema.inputs),
        "scores": scores,
        "warnings": warnings,
        "history": trainer.metrics.read(),
        "test": test,
        "config": config.to_dict(),
        "schema": {
            "columns": len(source.schema.columns),
            "left_out": dict(source.schema.left_out),
        },
        "task": "regression" if source.schema.quantity else "classification",
        "columns": source.columns,
        "notes": source.notes,
        "evidence": evidence_of(trainer.run.path / "evidence.jsonl"),
        "environment": environment(config, trainer.kernels()),
    }


def model_name(config: TrainConfig) -> str:
    """What the tables call a run's model."""
    if config.members == 1:
        return f"{config.model} {config.size}"
    return f"{config.members} {'mixtures' if config.model == 'moe' else 'dense models'}"


def score_best(trainer: Trainer) -> tuple[checkpoint.Checkpoint, dict[str, Any], np.ndarray]:
    """The best checkpoint, which the trainer's model then is, its score on the test rows, and which rows these are."""
    best, source = best_of(trainer), trainer.source
    index_T = spaced(source.index(TEST), SCORED_ROWS)
    predicted = predictions(trainer.predictor, source.rows, index_T)
    truth = source.rows.take(index_T)
    if source.schema.quantity:
        return best, number_score(predicted, true_values(truth, source.schema)), index_T
    return best, score(predicted, truth, source.schema), index_T


def best_of(trainer: Trainer) -> checkpoint.Checkpoint:
    """The best checkpoint, restored into the model."""
    best = checkpoint.best(trainer.run.checkpoints, trainer.watch.say)
    if best is None:
        raise Stopped(f"no checkpoint in {trainer.run.path} is whole; --resume trains it again")
    restore(trainer.model, best)
    trainer.calibrate()
    return best


def run_facts(trainer: Trainer, best: checkpoint.Checkpoint, rows: list[int], inputs: int) -> dict[str, Any]:
    """What a report says of the run itself; `rows` to train on, to validate and to test."""
    config, at = trainer.config, trainer.at
    return {
        "model": config.model,
        "size": config.size,
        "members": config.members,
        "parameters": trainer.model.params.count,
        "data": config.data,
        **dict(zip(("train_rows", "validation_rows", "test_rows"), rows, strict=True)),
        "steps": at.step,
        "best_step": best.step,
        "seconds": at.seconds,
        "device": config.device,
        "precision": config.precision,
        "inputs": inputs,
        "experts": trainer.model.experts,
    }


def finished_report(run: Path) -> dict[str, Any] | None:
    """The record of a run that needs nothing more; None while there is something left to do, or to do again."""
    if not ((run / "report.json").exists() and (run / "report.html").exists()):
        return None
    try:
        return json.loads((run / "report.json").read_text(encoding="utf-8"))
    except ValueError:
        return None


def write_report(run: Path, record: dict[str, Any]) -> None:
    """report.json first, then the page."""
    from gradproof.report.page import render

    write_atomically(run / "report.json", json.dumps(record, indent=1) + "\n")
    write_atomically(run / "report.html", render("train.html", record))


def _compared(trainer: Trainer, truth: Rows, index_T: np.ndarray) -> list[dict[str, Any]]:
    source = trainer.source
    rows, C = [], len(source.schema.classes)
    if source.best_R is not None:
        best = float(source.best_R[index_T].mean())
        rows.append({"name": "Bayes-optimal", "accuracy": best, "log_loss": None, "note": "no model can expect more"})
    train_R = source.index(TRAIN)
    encoder = Encoder(source.schema)
    some = source.rows.take(spaced(train_R, min(baselines.MOST_ROWS, baselines.MOST_NUMBERS // source.schema.inputs)))
    chunks = (encoder.inputs(truth.slice(i, i + CHUNK)).numpy() for i in range(0, truth.count, CHUNK))
    x_RI = np.concatenate([encoder.inputs(some.slice(i, i + CHUNK)).numpy() for i in range(0, some.count, CHUNK)])
    rows.append(baselines.logistic_regression(x_RI, some.outcome_R, chunks, truth.outcome_R, C))
    rows.append(baselines.majority(np.asarray(source.rows.outcome_R[train_R]), truth.outcome_R, C))
    return rows


def _summary(name: str, scores: list[dict[str, Any]], rows: int) -> str:
    others = ", ".join(f"{s['name']} {s['accuracy']:.1%}" for s in scores[1:] if s["accuracy"] is not None)
    return f"{name} decides {scores[0]['accuracy']:.1%} of {rows:,} held-out rows right ({others})."


def evidence_of(file: Path) -> dict[str, Any] | None:
    """What the run's evidence.jsonl amounts to."""
    lines = read_evidence(file)
    if not lines:
        return None
    statuses = {line["status"] for line in lines}
    worst = next(status for status in ("refuted", "inconclusive", "proven") if status in statuses or status == "proven")
    return {"claims": len(lines), "status": worst}
