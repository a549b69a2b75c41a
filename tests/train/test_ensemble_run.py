"""An ensemble from a table to its predictions: resumed with the same bits, whatever the number of cores."""

import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from gradproof.train import checkpoint
from gradproof.train.load import load_predictor
from gradproof.train.report import report
from gradproof.train.run import Run


@pytest.fixture
def options(tmp_path):
    """A table of 400 rows, trained for 12 steps: three members, dropout, selection by loss."""
    rng = np.random.default_rng(3)
    a, b, name = rng.normal(size=400), rng.integers(0, 90, 400), rng.choice(["x", "y", "z"], 400)
    late = np.where(a + 0.02 * b + (name == "x") + rng.normal(size=400) > 1, "late", "on time")
    lines = ["a,b,name,outcome", *(f"{u:.4f},{v},{n},{o}" for u, v, n, o in zip(a, b, name, late, strict=True))]
    (tmp_path / "orders.csv").write_text("\n".join(lines) + "\n")
    given = dict(data=str(tmp_path / "orders.csv"), target="outcome", members=3, validate_every=4, log_every=1)
    return given | dict(
        recipe="table",
        steps=12,
        dropout=0.25,
        average=0.9,
        select="loss",
        settled=True,
        model_options={"hidden": 8},
    )


def final(run):
    saved = checkpoint.newest(run / "checkpoints", print)
    return {**saved.tensors(checkpoint.MODEL), **saved.tensors(checkpoint.STEP)}


def alike(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_stopped_run_ends_with_the_same_bits(tmp_path, options, open_run):
    """Dropout, the average, each member's order and moments go on where they were."""
    whole, _ = open_run(tmp_path / "whole", options)
    whole.train()

    def stop(record):
        if record["step"] == 6:
            raise RuntimeError("killed")

    stopped, _ = open_run(tmp_path / "stopped", options, stop)
    with pytest.raises(RuntimeError):
        stopped.train()
    resumed, _ = open_run(tmp_path / "stopped", options)
    assert resumed.at.step == 4
    resumed.train()
    assert alike(final(tmp_path / "whole"), final(tmp_path / "stopped"))


def test_bits_do_not_depend_on_cores(tmp_path, options, open_run):
    finals = []
    for name in ("side by side", "one by one"):
        trainer, _ = open_run(tmp_path / name, options)
        if name == "one by one":
            trainer.step._pool = None
        trainer.train()
        finals.append(final(tmp_path / name))
    assert alike(*finals)


def test_members_learn_apart(tmp_path, options, open_run):
    """One that got another's rows or gradients would make two of them equal."""
    trainer, watch = open_run(tmp_path / "run", options)
    before = [member.params.flat_P.clone() for member in trainer.model.members]
    trainer.train()
    moved = [member.params.flat_P - first for member, first in zip(trainer.model.members, before, strict=True)]
    assert all(float(m.abs().max()) > 0 for m in moved) and not torch.equal(moved[0], moved[1])
    assert len(watch.records[-1]["per_expert_share"]) == trainer.model.experts == 12


def test_time_becomes_steps_once(tmp_path, options, open_run):
    """The number of steps is kept in config.json: a faster machine that resumes takes as many."""
    given = {name: value for name, value in options.items() if name not in ("steps", "settled")}
    trainer, _ = open_run(tmp_path / "run", {**given, "minutes": 0.001})
    before = trainer.model.params.flat_P.clone()
    trainer.settle()
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["settled"] and kept["steps"] == trainer.config.steps < 800
    assert torch.equal(trainer.model.params.flat_P, before)  # the steps that were timed leave nothing behind
    assert not trainer.step.first.training.optimizer.m_P.any()
    again, _ = open_run(tmp_path / "run", {})
    again.settle()
    assert again.config == trainer.config == Run(tmp_path / "run").config


def test_the_report_and_predict_use_the_temperature(tmp_path, options, open_run):
    trainer, _ = open_run(tmp_path / "run", options)
    trainer.train()
    record = report(trainer)
    assert record["scores"][0]["name"] == "3 mixtures"
    predictor, step = load_predictor(tmp_path / "run")
    assert predictor.temperature == trainer.predictor.temperature != 1.0
    assert step == min(trainer.metrics.read(), key=lambda line: line.get("validation_loss", np.inf))["step"]


KILLS, STEPS = 8, 1200  # more than are taken before the last kill


@pytest.mark.slow
def test_kill_after_kill(tmp_path, options, open_run):
    """`kill -9` of the command at random moments, from the imports to the last checkpoint: averages, moments, dropout
    and each member's order end with the same bits as in one go."""
    given = {**options, "steps": STEPS, "validate_every": 20, "average": 0.9, "patience": None}
    (tmp_path / "options.json").write_text(json.dumps(given))
    out, draw, ended = tmp_path / "killed", random.Random(5), 0
    command = [sys.executable, "-m", "gradproof", "train", str(tmp_path / "options.json"), "--out", str(out)]
    for kill in range(KILLS):
        process = subprocess.Popen([*command, *["--resume"] * (out / "config.json").exists()], stderr=subprocess.PIPE)
        steps = draw.randrange(1, 40) if kill else 0
        begun = last_step(out)
        while process.poll() is None and last_step(out) < begun + steps:
            time.sleep(0.01)
        time.sleep(draw.random() / 10)
        process.kill()
        process.communicate()
        ended += process.returncode == 0
    assert ended == 0 and 0 < last_step(out) < STEPS
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    whole, _ = open_run(tmp_path / "whole", given)
    whole.train()
    assert alike(final(tmp_path / "whole"), final(out))


def last_step(run):
    """The last one that is logged, whole or not."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return 0
    return len([line for line in lines if line.endswith("}")])
