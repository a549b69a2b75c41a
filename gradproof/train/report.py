"""The results of a finished run: report.json, and report.html made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.files import write_atomically
from gradproof.train import baselines, checkpoint
from gradproof.train.assembly import environment
from gradproof.train.baseline import keep_baseline, mean_input
from gradproof.train.cautions import cautions
from gradproof.train.config import TrainConfig
from gradproof.train.evaluate import predictions, spaced
from gradproof.train.evidence import read_evidence
from gradproof.train.explanation import Explainer
from gradproof.train.load import restore
from gradproof.train.loop import Trainer
from gradproof.train.number_report import number_cautions, number_scores, number_summary
from gradproof.train.number_score import number_score, true_values
from gradproof.train.score import FIGURES, score
from gradproof.train.stopped import Stopped

SCORED_ROWS = 100_000  # of a larger test part, evenly spaced
CHUNK = 1024
LOOKED_AT = 1000  # test rows, among which the page finds a few to explain
RIGHT, WRONG = 3, 2  # decisions that it explains
PARTS = (TRAIN, VALIDATION, TEST)


def report(trainer: Trainer) -> dict[str, Any]:
    """Scores the best checkpoint on the rows that nothing was chosen by, beside what anyone would compare with."""
    source, config, at = trainer.source, trainer.config, trainer.at
    best, test, index_T = score_best(trainer)
    keep_baseline(trainer.run.path, baseline_I := mean_input(trainer.encoder, source.rows, source.index(TRAIN)))
    name = model_name(config)
    if source.schema.quantity:
        scores = number_scores(name, test, source, index_T)
        summary, warnings = number_summary(scores, test), number_cautions(scores, test)
    else:
        own = {figure: test[figure] for figure in FIGURES}
        fitted = {"seconds": at.seconds, "rows": len(source.index(TRAIN))}
        scores = [{"name": name, **own, **fitted, "note": "best checkpoint"}]
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
        "explained": [] if source.schema.quantity else _explained(trainer, baseline_I, index_T),
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


def _explained(trainer: Trainer, baseline_I: Tensor, index_T: np.ndarray) -> list[dict[str, Any]]:
    """The first test rows that are decided rightly, and the first that are not, with why."""
    some = trainer.source.rows.take(index_T[:LOOKED_AT])
    decision_T = trainer.predictor(some).decision_T
    right_T = decision_T == some.outcome_R
    shown = [np.nonzero(mask_T & (decision_T >= 0))[0][:most] for mask_T, most in ((right_T, RIGHT), (~right_T, WRONG))]
    some, decision_T = some.take(at := np.concatenate(shown)), decision_T[at]
    explanations = Explainer(trainer.predictor, baseline_I)(some, decision_T)
    classes = trainer.source.schema.classes
    return [
        {**explanation.record(), "outcome": classes[some.outcome_R[t]]}
        for t, explanation in enumerate(explanations)
        if explanation is not None
    ]


def model_name(config: TrainConfig) -> str:
    """What the tables call a run's model."""
    if config.members == 1:
        return f"{config.model} {config.size}"
    single = config.model == "dense" or config.model_options.get("experts") == 1
    return f"{config.members} {'networks' if single else 'mixtures'}"


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
        unknown = dict.fromkeys((*FIGURES, "seconds", "rows"))
        rows.append({"name": "Bayes-optimal", **unknown, "accuracy": best, "note": "the best possible accuracy"})
    train_R = source.index(TRAIN)
    few = source.rows.take(spaced(train_R, baselines.most_tree_rows(source.schema)))
    rows.append(baselines.boosted_trees(few, truth, source.schema))
    encoder = Encoder(source.schema)
    some = source.rows.take(spaced(train_R, min(baselines.MOST_ROWS, baselines.MOST_NUMBERS // source.schema.inputs)))
    chunks = (encoder.inputs(truth.slice(i, i + CHUNK)).numpy() for i in range(0, truth.count, CHUNK))
    x_RI = np.concatenate([encoder.inputs(some.slice(i, i + CHUNK)).numpy() for i in range(0, some.count, CHUNK)])
    rows.append(baselines.logistic_regression(x_RI, some.outcome_R, chunks, truth.outcome_R, C))
    rows.append(baselines.majority(np.asarray(source.rows.outcome_R[train_R]), truth.outcome_R, C))
    return rows


def _summary(name: str, scores: list[dict[str, Any]], rows: int) -> str:
    others = ", ".join(f"{s['name']} {s['accuracy']:.1%}" for s in scores[1:] if s["accuracy"] is not None)
    return f"{name} decides {scores[0]['accuracy']:.1%} of {rows:,} held-out rows correctly ({others})."


def evidence_of(file: Path) -> dict[str, Any] | None:
    """What the run's evidence.jsonl amounts to."""
    lines = read_evidence(file)
    if not lines:
        return None
    statuses = {line["status"] for line in lines}
    worst = next(status for status in ("refuted", "inconclusive", "proven") if status in statuses or status == "proven")
    return {"claims": len(lines), "status": worst}
