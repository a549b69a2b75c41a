import errno
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.data.synthetic import BLOCKS
from gradproof.proof.verdict import SubjectVerdict
from gradproof.serve.predict import as_frame, as_records
from gradproof.train import checkpoint, loop
from gradproof.train import evidence as evidence_module
from gradproof.train import training as training_module
from gradproof.train.checkpoint import MODEL, STEP
from gradproof.train.config import TrainConfig
from gradproof.train.evidence import prove
from gradproof.train.load import build_model, load_model, restore
from gradproof.train.loop import Trainer
from gradproof.train.predictor import Predictor
from gradproof.train.run import start
from gradproof.train.stopped import Stopped

NOT_REPRODUCED = ("rows_per_s", "memory")


def lines(trainer):
    """metrics.jsonl without what depends on the clock."""
    records = [json.loads(line) for line in trainer.metrics.path.read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in NOT_REPRODUCED} for record in records]


def ending(trainer):
    """The bytes and figures that a run ends with."""
    last = checkpoint.steps(trainer.run.checkpoints)[-1]
    folder = trainer.run.checkpoints / f"step-{last}"
    at = {name: value for name, value in vars(trainer.at).items() if name != "seconds"}
    return last, [(folder / file).read_bytes() for file in (MODEL, STEP)], lines(trainer), at


def whole(open_run, path, options):
    trainer, _ = open_run(path, options)
    trainer.train()
    return ending(trainer)


class Crash(Exception):
    """Stands for whatever may go wrong in the middle."""


def crash(at):
    def hook(record):
        if record["step"] == at:
            raise Crash

    return hook


def interrupt(at, number=signal.SIGINT):
    def hook(record):
        if record["step"] == at:
            os.kill(os.getpid(), number)

    return hook


DENSE = dict(model="dense", model_options={}, steps=12)
STILL = dict(lr=0.0, model_options=dict(hidden=8, depth=1))  # nothing moves, so nothing gets better


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """undisturbed(open_run, options): how a run of these options ends when nothing happens."""
    known = {}

    def whole_once(open_run, options):
        key = json.dumps(options, sort_keys=True)
        if key not in known:
            known[key] = whole(open_run, tmp_path_factory.mktemp("whole") / "run", options)
        return known[key]

    return whole_once


# What a run leaves.


def test_a_run_learns_and_logs(tmp_path, tiny, open_run):
    """A step that is not applied, an ema of something else, a share that is no share: each is in the lines."""
    trainer, watch = open_run(tmp_path / "run", {**tiny, "steps": 60, "validate_every": 20, "lr": 1e-2, "log_every": 7})
    trainer.train()
    records = [json.loads(line) for line in trainer.metrics.path.read_text().splitlines()]
    assert [record["step"] for record in records] == sorted({1, 20, 40, 60, *range(7, 61, 7)})
    assert watch.records == records
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]
    for record in records:
        assert record["rows"] == 32 * record["step"] and record["skipped"] == 0
        assert sum(record["per_expert_share"]) == pytest.approx(1) and len(record["per_expert_share"]) == 4
        assert 0 < record["router_entropy"] <= math.log(4) + 1e-6
        assert record["grad_norm"] > 0 and record["rows_per_s"] > 0 and record["memory"] > 0
        validated = record["step"] % 20 == 0
        assert ("validation_loss" in record) == ("validation_accuracy" in record) == validated
    schedule = trainer.step.schedule
    assert [record["lr"] for record in records] == [1e-2 * schedule.factor(record["step"] - 1) for record in records]
    assert trainer.at.finished == "finished" and checkpoint.steps(trainer.run.checkpoints)[-1] == 60


def test_loss_ema_and_trend_are_of_every_step(tmp_path, tiny, open_run):
    """Of the logged steps only, they would depend on log_every."""
    losses = [record["loss"] for record in whole(open_run, tmp_path / "all", {**tiny, "steps": 24})[2]]
    sparse = whole(open_run, tmp_path / "some", {**tiny, "steps": 24, "log_every": 100})[2]
    assert [record["step"] for record in sparse] == [1, 4, 8, 12, 16, 20, 24]
    ema = losses[0]
    for loss in losses[1:]:
        ema = 0.99 * ema + 0.01 * loss
    assert sparse[-1]["loss_ema"] == pytest.approx(ema, rel=1e-12)
    assert sparse[-1]["trend"] == pytest.approx((sum(losses[14:]) - sum(losses[4:14])) / 10, abs=1e-12)
    assert sparse[-2]["trend"] != 0 and sparse[-3]["trend"] == 0


def test_a_dense_run_has_the_same_lines(tmp_path, tiny, open_run):
    """One form for every model: share 1, entropy 0."""
    dense = whole(open_run, tmp_path / "run", {**tiny, **DENSE})[2]
    moe = whole(open_run, tmp_path / "moe", tiny)[2]
    assert [set(a) for a in dense] == [set(b) for b in moe]
    assert all(record["per_expert_share"] == [1.0] and record["router_entropy"] == 0.0 for record in dense)


def test_no_row_is_both_learned_and_held_out(tmp_path, tiny, open_run, monkeypatch):
    """An index into a part taken for one into the table would train on validation rows; in 15 batches all are seen."""
    monkeypatch.setattr(loop, "evaluate", lambda *args: (1.0, 0.5, np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 15})
    row_of = {row.tobytes(): i for i, row in enumerate(trainer.source.rows.numbers_RN)}
    seen, inputs = [], trainer.encoder.inputs

    def spy(rows):
        seen.extend(row_of[row.tobytes()] for row in rows.numbers_RN)
        return inputs(rows)

    monkeypatch.setattr(trainer.encoder, "inputs", spy)
    trainer.train()
    learned = trainer.source.index(TRAIN).tolist()
    assert len(row_of) == 400 and sorted(seen[: len(learned)]) == learned
    assert not set(seen) & {*trainer.source.index(VALIDATION), *trainer.source.index(TEST)}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_micro_rows_are_only_a_matter_of_memory(tmp_path, tiny, open_run, precision):
    """The same batches and nearly the same losses, whatever is in flight at a time."""
    logs = [
        whole(open_run, tmp_path / str(rows), {**tiny, "micro_rows": rows, "precision": precision})[2]
        for rows in (None, 5)
    ]
    unit = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 5e-3}[precision]
    for one, other in zip(*logs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=unit)


def test_balanced_classes(tmp_path, tiny, open_run):
    """R/(C·count): by the training rows alone, mean weight 1 over them."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "class_weights": "balanced"})
    outcome_R = trainer.source.rows.outcome_R[trainer.source.index(TRAIN)]
    weight_C = trainer.step.loss.options["class_weight_C"]
    assert float(weight_C[torch.from_numpy(outcome_R)].mean()) == pytest.approx(1.0, rel=1e-5)
    counts = np.bincount(outcome_R, minlength=12)
    assert (weight_C.numpy() * counts)[counts > 0] == pytest.approx(len(outcome_R) / 12, rel=1e-5)
    trainer.train()


# Interrupted and resumed.

STEPS = (1, 3, 4, 6, 8, 11, 12)


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("how", ["crash", "interrupt"])
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path, tiny, open_run, undisturbed, how, at):
    """A moment, a schedule, a place in the epoch, an ema or a line twice: anything lost shows in the last bytes."""
    right = undisturbed(open_run, tiny)
    trainer, _ = open_run(tmp_path / "run", tiny, (crash if how == "crash" else interrupt)(at))
    if how == "interrupt" and at == 12:  # nothing was left to do
        trainer.train()
    else:
        with pytest.raises(Crash if how == "crash" else KeyboardInterrupt):
            trainer.train()
    saved = checkpoint.steps(tmp_path / "run/checkpoints")
    assert (saved or [0])[-1] == (at if how == "interrupt" else (at - 1) // 4 * 4)
    trainer, watch = open_run(tmp_path / "run", {})
    assert trainer.at.step == (saved or [0])[-1]
    trainer.train()
    assert ending(trainer) == right
    assert watch.said == []


def interrupted_once(open_run, path, options):
    """The run after an interrupt at step 6, and who watched the rest."""
    trainer, _ = open_run(path, options, interrupt(6))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer, watch = open_run(path, {})
    trainer.train()
    return trainer, watch


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_resumed_run_in_low_precision(tmp_path, tiny, open_run, undisturbed, precision):
    """A narrow copy from before the restore, or a loss scale from the start, would change the bits."""
    options = {**tiny, "precision": precision}
    trainer, _ = interrupted_once(open_run, tmp_path / "run", options)
    assert ending(trainer) == undisturbed(open_run, options)


def test_a_resumed_dense_run(tmp_path, tiny, open_run, undisturbed):
    """One path for every model."""
    options = {**tiny, **DENSE}
    trainer, _ = open_run(tmp_path / "run", options, crash(7))
    with pytest.raises(Crash):
        trainer.train()
    trainer, _ = open_run(tmp_path / "run", options, interrupt(10))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer, _ = open_run(tmp_path / "run", {})
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, options)


SHEAF = dict(router="sheaf", encoding="padic")


def test_a_resumed_sheaf_run_on_padic_inputs(tmp_path, tiny, open_run, undisturbed):
    """The same columns and patches after a resume; the energy is in every line."""
    options = {**tiny, **SHEAF}
    trainer, watch = interrupted_once(open_run, tmp_path / "run", options)
    assert ending(trainer) == undisturbed(open_run, options)
    assert trainer.model.config.patches == (*BLOCKS, 44) and trainer.model.config.inputs == 118
    assert all(record["router_energy"] > 0 for record in watch.records)
    loaded = load_model(tmp_path / "run")
    rows = trainer.source.rows.slice(0, 7)
    predictions = Predictor(loaded.model, loaded.schema)(rows)
    assert predictions.energy_TR.shape == (7, 1) and (predictions.energy_TR > 0).all()
    record = as_records(predictions, loaded.schema)[0]
    assert record["router_energy"] == predictions.energy_TR[0, 0]
    frame = as_frame(predictions, loaded.schema)
    assert (
        frame.columns[-1] == "router_energy"
        and frame["router_energy"].to_list() == predictions.energy_TR[:, 0].tolist()
    )


def test_interrupted_over_and_over(tmp_path, tiny, open_run, undisturbed):
    """At every single step, by crash and by signal in turn: no state may leak from one process to the next."""
    trainer, _ = open_run(tmp_path / "run", tiny)
    for at in range(1, 12):
        number = signal.SIGTERM if at % 2 else signal.SIGINT
        trainer, _ = open_run(tmp_path / "run", {}, interrupt(at, number))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    trainer, _ = open_run(tmp_path / "run", {})
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, tiny)
    assert len(checkpoint.steps(trainer.run.checkpoints)) <= 3


def test_a_crash_inside_the_step(tmp_path, tiny, open_run, undisturbed, monkeypatch):
    """Gradients half accumulated are no part of a checkpoint."""
    trainer, _ = open_run(tmp_path / "run", tiny)
    update = training_module.Training.end

    def dies(self, *args):
        if trainer.step.steps == 9:
            raise Crash
        return update(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(training_module.Training, "end", dies)
        with pytest.raises(Crash):
            trainer.train()
    trainer, _ = open_run(tmp_path / "run", {})
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, tiny)


def test_the_signal_handlers_are_put_back(tmp_path, tiny, open_run):
    """Ctrl-C in whatever the caller does next must work again, after an error too."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trainer, _ = open_run(tmp_path / "run", tiny, crash(5))
    with pytest.raises(Crash):
        trainer.train()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_interrupt_stops_at_once(tmp_path, tiny, open_run, undisturbed):
    """Somebody who presses Ctrl-C twice does not want to wait for a save; the checkpoint before is still there."""

    def twice(record):
        if record["step"] == 6:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    trainer, _ = open_run(tmp_path / "run", tiny, twice)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [4]
    trainer, _ = open_run(tmp_path / "run", {})
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, tiny)


# Damage.


def spoil(file):
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("file", [MODEL, STEP, checkpoint.STATE])
def test_a_damaged_newest_checkpoint_costs_its_steps_only(tmp_path, tiny, open_run, undisturbed, file):
    """The run falls back to the one before, says so, and ends with the same bytes."""
    trainer, _ = open_run(tmp_path / "run", tiny, interrupt(10))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    spoil(tmp_path / "run/checkpoints/step-10" / file)
    trainer, watch = open_run(tmp_path / "run", {})
    assert trainer.at.step == 8 and "step-10" in watch.said[0] and "falling back" in watch.said[0]
    assert [record["step"] for record in lines(trainer)] == list(range(1, 9))
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, tiny)


def test_all_checkpoints_damaged(tmp_path, tiny, open_run, undisturbed):
    """From the start again, to the same end."""
    trainer, _ = open_run(tmp_path / "run", tiny, interrupt(10))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    for step in checkpoint.steps(tmp_path / "run/checkpoints"):
        spoil(tmp_path / f"run/checkpoints/step-{step}" / MODEL)
    trainer, watch = open_run(tmp_path / "run", {})
    assert trainer.at.step == 0 and len(watch.said) >= 2 and lines(trainer) == []
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, tiny)


def test_what_was_saved_after_a_fall_back_is_kept(tmp_path, tiny, open_run):
    """Two damaged checkpoints with larger numbers must not make `prune` take the new, whole one away."""
    options = {**tiny, **STILL, "steps": 40, "patience": None}
    trainer, _ = open_run(tmp_path / "run", options, interrupt(16))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [4, 12, 16]
    for step in (12, 16):
        spoil(tmp_path / f"run/checkpoints/step-{step}" / MODEL)
    trainer, _ = open_run(tmp_path / "run", {}, interrupt(10))
    assert trainer.at.step == 4
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer, _ = open_run(tmp_path / "run", {})
    assert trainer.at.step == 10


def test_what_a_kill_left_half_written_is_removed(tmp_path, tiny, open_run):
    """It has no name yet, so it is no checkpoint."""
    trainer, _ = open_run(tmp_path / "run", tiny, interrupt(5))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    shutil.copytree(tmp_path / "run/checkpoints/step-5", tmp_path / "run/checkpoints/.partial-step-8")
    trainer, _ = open_run(tmp_path / "run", {})
    assert trainer.at.step == 5 and not list((tmp_path / "run/checkpoints").glob(".partial*"))


def test_another_environment_is_said(tmp_path, tiny, open_run):
    """Another torch may sum in another order; nobody should wonder about other last digits."""
    trainer, _ = open_run(tmp_path / "run", tiny, interrupt(5))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    folder = tmp_path / "run/checkpoints"
    kept = checkpoint.load(folder / "step-5")
    state = {**kept.state, "environment": {**kept.state["environment"], "torch": "1.0"}}
    checkpoint.save(folder, 5, kept.tensors(MODEL), kept.tensors(STEP), state)
    _, watch = open_run(tmp_path / "run", {})
    (sentence,) = watch.said
    assert f"torch 1.0 → {torch.__version__}" in sentence and "not be bit-exact" in sentence


# Early stopping.


def test_early_stopping(tmp_path, tiny, open_run):
    """With a rate of 0 nothing gets better after the first validation, so patience ends after two more."""
    options = {**tiny, **STILL, "steps": 400, "patience": 2, "patience_after": 0}
    trainer, _ = open_run(tmp_path / "run", options)
    trainer.train()
    assert trainer.at.finished == "stopped early" and trainer.at.step == 12 and trainer.at.best_step == 4
    again, _ = open_run(tmp_path / "run", {})
    again.train()
    assert again.at.step == 12 and again.at.finished == "stopped early"


@pytest.mark.parametrize("at", [5, 9, 11])
def test_patience_survives_a_resume(tmp_path, tiny, open_run, at):
    """Counting from 0 again would train on, and more so after each crash."""
    options = {**tiny, **STILL, "steps": 400, "patience": 2, "patience_after": 0}
    trainer, _ = open_run(tmp_path / "run", options, interrupt(at))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer, _ = open_run(tmp_path / "run", {})
    trainer.train()
    assert trainer.at.step == 12 and trainer.at.since_best == 2 and trainer.at.best_step == 4


def test_patience_counts_only_after_some_steps(tmp_path, tiny, open_run):
    """A short run is not stopped by validations that lie a few steps apart; a longer one counts from there on."""
    trainer, _ = open_run(tmp_path / "short", {**tiny, **STILL, "steps": 40, "patience": 2})
    trainer.train()
    assert trainer.at.finished == "finished" and trainer.at.step == 40
    trainer, _ = open_run(tmp_path / "long", {**tiny, **STILL, "steps": 400, "patience": 2, "patience_after": 12})
    trainer.train()
    assert trainer.at.finished == "stopped early" and trainer.at.step == 20


def test_an_older_run_keeps_its_patience(tmp_path, tiny, open_run):
    """Its config does not name the option; resumed, it must stop where it always did."""
    path = tmp_path / "run"
    open_run(path, {**tiny, **STILL, "steps": 400, "patience": 2})
    options = json.loads((path / "config.json").read_text())
    assert options.pop("patience_after") == 200
    (path / "config.json").write_text(json.dumps(options))
    trainer, _ = open_run(path, {})
    trainer.train()
    assert trainer.at.finished == "stopped early" and trainer.at.step == 12


def test_a_validation_names_the_worst_class(tmp_path, tiny, open_run):
    """Beside the accuracy, in every line of metrics.jsonl that has one."""
    trainer, _ = open_run(tmp_path / "run", tiny)
    trainer.train()
    lines = [line for line in trainer.metrics.read() if "validation_accuracy" in line]
    assert len(lines) == 3
    for line in lines:
        assert 0 <= line["validation_worst_recall"] <= line["validation_balanced_accuracy"] <= 1
        assert line["validation_worst_class"] in trainer.source.schema.classes


def test_no_patience_trains_to_the_end(tmp_path, tiny, open_run):
    """null in the config."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, **STILL, "steps": 40, "patience": None})
    trainer.train()
    assert trainer.at.finished == "finished" and trainer.at.step == 40


def test_the_best_is_by_accuracy_then_by_loss(tmp_path, tiny, open_run, monkeypatch):
    """And patience is spent only where neither improves."""
    scores = iter([(2.0, 0.5), (2.5, 0.6), (1.5, 0.6), (1.6, 0.6), (1.7, 0.4), (1.4, 0.3), *[(1.5, 0.2)] * 3])
    monkeypatch.setattr(loop, "evaluate", lambda *args: (*next(scores), np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 400, "patience": 3, "patience_after": 0})
    trainer.train()
    assert (trainer.at.step, trainer.at.best_step) == (36, 12)
    assert (trainer.at.best_accuracy, trainer.at.best_loss, trainer.at.lowest_loss) == (0.6, 1.5, 1.4)


def test_a_tie_is_broken_by_the_loss_of_the_best_step(tmp_path, tiny, open_run, monkeypatch):
    """A lower loss elsewhere, at a worse accuracy, must not keep a better checkpoint from being the best."""
    scores = iter([(2.0, 0.6), (1.0, 0.3), (1.5, 0.6)])
    monkeypatch.setattr(loop, "evaluate", lambda *args: (*next(scores), np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 12, "patience": None})
    trainer.train()
    assert (trainer.at.best_step, trainer.at.best_loss, trainer.at.lowest_loss) == (12, 1.5, 1.0)


def test_the_best_checkpoint_is_kept(tmp_path, tiny, open_run, monkeypatch):
    """The report is made from it, long after newer ones were pruned."""
    scores = iter([(2.0, 0.5), (2.5, 0.9), *[(3.0, 0.1)] * 8])
    monkeypatch.setattr(loop, "evaluate", lambda *args: (*next(scores), np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", {**tiny, "steps": 40, "patience": None})
    trainer.train()
    assert checkpoint.steps(trainer.run.checkpoints) == [8, 36, 40]


# What stops a run.


MARK = 123456.0


def poison(trainer, row):
    """The row, or all of them, comes out of the encoder as infinity."""
    trainer.source.rows.numbers_RN[row, 5] = MARK
    inputs = trainer.encoder.inputs

    def spoilt(rows):
        x_TI = inputs(rows)
        x_TI[torch.from_numpy(rows.numbers_RN[:, 5] == MARK), 3] = torch.inf
        return x_TI

    trainer.encoder.inputs = spoilt


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, tiny, open_run, precision):
    """The sentence names step, rows and the last checkpoint; going on would spread the NaN to every weight."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "precision": precision})
    row = int(trainer.feed.batches[0][6][3])
    poison(trainer, row)
    with pytest.raises(Stopped) as stopped:
        trainer.train()
    sentence = str(stopped.value)
    assert "loss of step 6 is not finite" in sentence and f"not finite: {row} (" in sentence
    assert f"the last good checkpoint is {tmp_path / 'run/checkpoints/step-4'}" in sentence
    failed = json.loads((tmp_path / "run/failed.json").read_text())
    assert failed["step"] == 6 and failed["not_finite"] == [row]
    assert failed["rows"] == trainer.feed.batches[0][6].tolist()
    kept = checkpoint.load(tmp_path / "run/checkpoints/step-4")
    assert all(tensor.isfinite().all() for file in (MODEL, STEP) for tensor in kept.tensors(file).values())
    assert lines(trainer)[-1]["step"] == 6


def test_a_rate_that_explodes(tmp_path, tiny, open_run):
    """Before the first checkpoint: the sentence says that there is none."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "lr": 1e30, "schedule": "constant"})
    sentence = r"of step \d is not finite; .*no checkpoint was saved yet; try a lower --lr, with another --out"
    with pytest.raises(Stopped, match=sentence):
        trainer.train()
    assert checkpoint.steps(tmp_path / "run/checkpoints") == []


def test_outputs_that_are_not_finite_are_not_saved(tmp_path, tiny, open_run, monkeypatch):
    """Weights that overflow on validation rows, while the batch was still finite, are no good checkpoint."""
    scores = iter([(1.0, 0.5), (float("inf"), 0.0)])
    monkeypatch.setattr(loop, "evaluate", lambda *args: (*next(scores), np.ones(12)))
    trainer, _ = open_run(tmp_path / "run", tiny)
    with pytest.raises(Stopped, match=r"not finite after step 8, which is not saved; the last good .*step-4"):
        trainer.train()
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [4]


def test_damage_outside_checkpoints_is_made_good_or_named(tmp_path, tiny, open_run):
    """A torn line of evidence is proven anew; weights of another width are refused, not broadcast."""
    trainer, _ = open_run(tmp_path / "run", tiny, interrupt(5))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    file = tmp_path / "run/evidence.jsonl"
    file.write_text('{"claim": "adj')
    prove(trainer.run, trainer.model)
    assert len(file.read_text().splitlines()) > 3
    other = build_model(TrainConfig(model_options=dict(hidden=1)), trainer.source.schema, "cpu")
    with pytest.raises(ValueError, match="step-5 belongs to another model: its experts"):
        restore(other, checkpoint.newest(trainer.run.checkpoints, print))


def test_fp16_skips_and_goes_on(tmp_path, tiny, open_run):
    """One bad batch costs one step: counted, its loss null, and no NaN anywhere after it."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "precision": "fp16", "steps": 10})
    poison(trainer, trainer.feed.batches[0][6][3])
    trainer.train()
    records = lines(trainer)
    assert [record["skipped"] for record in records] == [0] * 6 + [1] * 4
    assert records[6]["loss"] is None and records[6]["loss_ema"] == records[5]["loss_ema"]
    assert trainer.model.params.flat_P.isfinite().all() and float(trainer.step.optimizer.count) == 9


def test_fp16_gives_up_where_no_scale_fits(tmp_path, tiny, open_run):
    """Else a run of NaN would go on for days."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "precision": "fp16", "steps": 100, "validate_every": 100})
    poison(trainer, slice(None))
    with pytest.raises(Stopped, match="is not finite"):
        trainer.train()
    assert float(trainer.step.training.scale) == 1.0 and trainer.at.step <= 20


def test_fp16_tries_the_scale_of_one(tmp_path, tiny, open_run, monkeypatch):
    """A batch that overflowed at a scale of 2 says nothing of the scale of 1 that is next."""
    monkeypatch.setattr(training_module, "FIRST_SCALE", 2.0)
    trainer, _ = open_run(tmp_path / "run", {**tiny, "precision": "fp16", "steps": 4})
    poison(trainer, trainer.feed.batches[0][1][3])
    trainer.train()
    assert lines(trainer)[-1]["skipped"] == 1 and trainer.at.finished == "finished"


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def no_space_inside_safetensors(*args, **kwargs):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("where", "fails"),
    [
        ("gradproof.train.checkpoint.save_file", no_space),
        ("gradproof.train.checkpoint.save_file", no_space_inside_safetensors),
        ("os.fsync", no_space),
        ("os.rename", no_space),
    ],
)
def test_a_full_disk_stops_the_run_and_costs_no_checkpoint(
    tmp_path, tiny, open_run, undisturbed, monkeypatch, where, fails
):
    """The one before is named and whole, nothing half-written is left; with room again the run ends as ever."""

    def fill(record):
        if record["step"] == 8:
            monkeypatch.setattr(where, fails)

    with monkeypatch.context() as monkeypatch:
        trainer, _ = open_run(tmp_path / "run", tiny, fill)
        with pytest.raises(Stopped) as stopped:
            trainer.train()
    sentence = str(stopped.value)
    assert "step-8 could not be written" in sentence and "No space left" in sentence
    assert "checkpoints/step-4; free some space" in sentence and "gradproof train --resume --out" in sentence
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-4"]
    checkpoint.load(tmp_path / "run/checkpoints/step-4")
    trainer, watch = open_run(tmp_path / "run", {})
    assert trainer.at.step == 4 and watch.said == []
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, tiny)


def test_a_full_disk_at_a_line_of_metrics(tmp_path, tiny, open_run, undisturbed, monkeypatch):
    """Half a line is written; the resume cuts it off."""
    trainer, _ = open_run(tmp_path / "run", tiny)
    append = trainer.metrics.append

    def fills(record):
        if record["step"] == 6:
            with open(trainer.metrics.path, "a") as file:
                file.write('{"step": 6, "lo')
            no_space()
        append(record)

    monkeypatch.setattr(trainer.metrics, "append", fills)
    with pytest.raises(Stopped, match=r"metrics\.jsonl could not be written .*the last good checkpoint is .*step-4"):
        trainer.train()
    trainer, _ = open_run(tmp_path / "run", {})
    trainer.train()
    assert ending(trainer) == undisturbed(open_run, tiny)


# Building and proving.


def test_a_proof_comes_first(tmp_path, tiny):
    """evidence.jsonl: each line a claim about this run's options."""
    run = start(tmp_path / "run", tiny, resume=False)
    trainer = Trainer(run, SimpleNamespace(reading=None, say=None))
    prove(run, trainer.model)
    evidence = [json.loads(line) for line in (run.path / "evidence.jsonl").read_text().splitlines()]
    assert {"matches_autograd", "adjoint"} <= {line["claim"] for line in evidence}
    assert {line["status"] for line in evidence} == {"proven"}


def test_a_refuted_config_is_never_trained(tmp_path, tiny, monkeypatch):
    """Neither at once, nor by --resume, where the evidence of the refusal is already there."""
    run = start(tmp_path / "run", tiny, resume=False)
    trainer = Trainer(run, SimpleNamespace(reading=None, say=None))
    judged = evidence_module.judge_config("moe", trainer.model.config)
    evidence = [type(check)(**{**vars(check), "status": "refuted"}) for check in judged.evidence]
    refuted = SubjectVerdict(**{**vars(judged), "status": "refuted", "evidence": evidence})
    monkeypatch.setattr(evidence_module, "judge_config", lambda *args, **kwargs: refuted)
    for _ in range(2):
        with pytest.raises(Stopped, match=r"backward pass of this config is refuted: .*; nothing was trained"):
            prove(run, trainer.model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(model_options=dict(expert=8)), "model_options: there is no option 'expert'; the options are experts"),
        (dict(model_options=dict(k=9)), "k = 9"),
        (dict(model_options=dict(inputs=5)), "model_options"),
        (dict(model_options=dict(router="sheaf")), "model_options: there is no option 'router'"),
        (dict(model_options=dict(hidden="wide")), "model_options"),
        (dict(model_options=dict(k=1.5)), "k = 1.5|model_options"),
        (dict(model_options=dict(hidden=8.5)), "hidden|model_options"),
        (dict(size="huge", model_options={}), "no MoE size 'huge'"),
        (dict(model="dense", size="huge", model_options={}), "no dense size 'huge'"),
        (dict(model="dense", model_options=dict(experts=4)), "model_options"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_sentence(tmp_path, tiny, options, message):
    """A ValueError, by which the command line takes the run back; a TypeError at the first step would leave it."""
    with pytest.raises(ValueError, match=message):
        Trainer(start(tmp_path / "run", {**tiny, **options}, resume=False), SimpleNamespace(reading=None, say=None))


def test_the_model_fits_the_data(tmp_path, tiny, open_run):
    """Inputs and outputs follow from the schema, the seed from the config."""
    trainer, _ = open_run(tmp_path / "run", {**tiny, "seed": 5})
    assert (trainer.model.config.inputs, trainer.model.config.outputs) == (96, 20)
    again = build_model(trainer.config, trainer.source.schema, "cpu")
    other, _ = open_run(tmp_path / "other", {**tiny, "seed": 6})
    assert torch.equal(trainer.model.params.flat_P, again.params.flat_P)
    assert not torch.equal(trainer.model.params.flat_P, other.model.params.flat_P)


# Killed.

COMMAND = ["--data", "synthetic:rows=2000", "--steps", "60", "--batch", "64"]


def command(out, *flags):
    return [sys.executable, "-m", "gradproof", "train", "--out", str(out), *flags]


def last_step(out, seconds):
    """The step of the last line that was written in so many seconds."""
    file = out / "metrics.jsonl"
    try:
        written = time.time() - file.stat().st_mtime < seconds
        return json.loads(file.read_text().splitlines()[-1])["step"] if written else 0
    except (OSError, ValueError, IndexError, KeyError):
        return 0


def go_on(out):
    """--resume alone, or where the kill came before config.json with the flags of the start."""
    return command(out, "--resume", *([] if (out / "config.json").exists() else COMMAND))


def killed(out, moment):
    """Starts or resumes the run and kills it when `moment(seconds)` says so; true where it had ended by itself."""
    process = subprocess.Popen(go_on(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while process.poll() is None and not moment(time.monotonic() - began):
        time.sleep(0.002)
    ended = process.poll() is not None
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return ended


def finish(out):
    done = subprocess.run(go_on(out), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").exists() and not list(out.rglob(".partial-*"))


def compare_with_undisturbed(tmp_path, open_run, out):
    """The last weights, moments and metrics, against the same run in one go."""
    options = dict(data=COMMAND[1], steps=60, batch=64)
    right, _ = open_run(tmp_path / "undisturbed", options)
    right.train()
    reopened, _ = open_run(out, options)
    assert ending(reopened) == ending(right)


def test_kill_after_kill(tmp_path, open_run):
    """Four kills, one of them before the first file: what is not synced, or not put back, would show at the end."""
    draw, out = random.Random(7), tmp_path / "run"
    killed(out, lambda seconds: True)
    assert not (out / "checkpoints").exists()
    for low in (1, 14, 30):
        step, delay, reached = draw.randrange(low, low + 14), draw.random() / 20, []

        def moment(seconds, step=step, delay=delay, reached=reached):
            if not reached and last_step(out, seconds) >= step:
                reached.append(seconds)
            return bool(reached) and seconds - reached[0] >= delay

        assert not killed(out, moment), "it ended before it was killed: more steps, please"
    finish(out)
    compare_with_undisturbed(tmp_path, open_run, out)


@pytest.mark.slow
def test_twenty_kills(tmp_path, open_run):
    """At delays that grow from 0.0 s, so that every phase of a start is hit: imports, config, data, proof, steps."""
    draw, out, ends = random.Random(11), tmp_path / "run", 0
    for kill in range(20):
        delay = 0.0 if kill == 0 else 0.3 * kill + 0.3 * draw.random()
        ends += killed(out, lambda seconds, delay=delay: seconds >= delay)
    assert ends < 20
    finish(out)
    compare_with_undisturbed(tmp_path, open_run, out)
