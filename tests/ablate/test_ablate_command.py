"""`gradproof ablate`, from the command line to the page."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import gradproof as gradproof_package
from gradproof.cli import app
from gradproof.train.load import load_predictor

pytest.importorskip("sklearn")

CONFIG = """
data = "synthetic:rows=600"
budget = 6000
seeds = 2
steps = 20
batch = 32
learning_rates = [0.01]
families = ["moe", "dense"]
baselines = ["logistic-regression", "mlp"]
jobs = 1
"""


def gradproof(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """A whole study: two seeds, two families, two baselines."""
    folder = tmp_path_factory.mktemp("ablate")
    (folder / "study.toml").write_text(CONFIG)
    return folder, gradproof(
        "ablate", folder / "study.toml", "--out", folder / "study", "--json", folder / "found.json"
    )


def results(folder):
    return sorted(folder.rglob("result.json"))


def test_a_study(studied):
    """The answer first in the summary, the same record in the folder and where it was asked for."""
    folder, ended = studied
    assert ended.exit_code == 0, ended.stderr
    record = json.loads((folder / "study" / "report.json").read_text())
    assert record == json.loads((folder / "found.json").read_text())
    assert re.match(r"(No evidence that MoE helps|MoE helps) on this table: ", record["summary"])
    assert record["summary"] in " ".join(ended.stdout.split())
    assert [row["name"] for row in record["rows"]] == ["moe", "dense", "logistic-regression", "mlp"]
    assert len(record["runs"]) == 2 * (1 + 1 + 3 + 1) == len(results(folder))
    assert [(c["first"], c["second"]) for c in record["comparisons"]] == [
        ("moe", "dense"),
        ("moe", "logistic-regression"),
        ("moe", "mlp"),
    ]


def test_a_study_of_a_table(tmp_path):
    """Ensembles: all members count, each is trained, and the experts that are shown are one member's."""
    rng = np.random.default_rng(0)
    a, name = rng.normal(size=300), rng.choice(["x", "y"], 300)
    late = np.where(a + (name == "x") + rng.normal(size=300) / 2 > 0.5, "late", "on time")
    rows = [f"{u:.4f},{n},{o}" for u, n, o in zip(a, name, late, strict=True)]
    (tmp_path / "orders.csv").write_text("\n".join(["a,name,outcome", *rows]) + "\n")
    table = CONFIG.replace('data = "synthetic:rows=600"', f'data = "{tmp_path / "orders.csv"}"\ntarget = "outcome"')
    (tmp_path / "study.toml").write_text("members = 3\n" + table.replace('"logistic-regression", "mlp"', ""))
    ended = gradproof("ablate", tmp_path / "study.toml", "--out", tmp_path / "study")
    assert ended.exit_code == 0, ended.stderr
    record = json.loads((tmp_path / "study" / "report.json").read_text())
    assert record["study"]["members"] == 3 and record["study"]["steps"] == 20
    for row in record["rows"]:
        run = tmp_path / "study" / "runs" / row["name"] / "seed-0" / "lr-0.01"
        trained = load_predictor(run)[0].model
        assert len(trained.members) == 3 and trained.params.count >= row["total"]
        assert sum(entry_size(entry) for entry in trained.config.spec()) == row["total"]
        assert row["total"] == pytest.approx(6000, rel=0.1)
    (experts,) = record["experts"]
    assert experts["experts"] == 4 and sum(experts["load"]) == pytest.approx(1)


def entry_size(entry):
    return int(np.prod(entry.shape))


def test_the_table_of_two_seeds(studied):
    """One degree of freedom would give intervals such as 83.7 to 105.0%: none is shown, and what to do instead is. The
    majority class is the floor that every accuracy is read against."""
    folder, ended = studied
    record = json.loads((folder / "study" / "report.json").read_text())
    for row in record["rows"]:
        assert row["accuracy"]["low"] is row["accuracy"]["high"] is row["accuracy"]["margin"] is None
    head, *lines = ended.stdout.splitlines()
    assert re.split(r"  +", head) == ["contestant", "accuracy (95% CI)", "parameters", "active", "MFLOP/row", "seconds"]
    assert "±" not in ended.stdout and "No intervals: they need three seeds or more (--seeds 5)." in ended.stdout
    assert 0 < record["study"]["majority"] < 0.5
    assert [line.split() for line in lines if line.startswith("majority class")] == [
        ["majority", "class", f"{record['study']['majority']:.2%}"]
    ]
    assert "Majority class" in (folder / "study" / "report.html").read_text()
    assert max(map(len, lines[: len(record["rows"])])) <= 80


def test_an_interval_stays_in_its_range():
    """An accuracy of 99.8% ± 0.4 is not shown as 99.4 to 100.2%; the margin is that of the test."""
    from gradproof.ablate.record import _interval
    from gradproof.ablate.statistics import estimate

    scores = [0.999, 0.995, 1.0]
    accuracy, plain = _interval(scores, 0.25, 1.0), estimate(scores, 0.25)
    assert plain.high is not None and plain.high > 1.0 and accuracy["high"] == 1.0 and accuracy["low"] == plain.low
    assert accuracy["margin"] == pytest.approx(plain.high - plain.mean)
    loss = _interval([0.01, 0.5, 0.01], 0.25, None)
    assert loss["low"] == 0.0 and loss["high"] > 0.5


def test_the_splits_are_everybodys(studied):
    """Each seed has its own rows, the same for every contestant."""
    runs = json.loads((studied[0] / "study" / "report.json").read_text())["runs"]
    for seed in (0, 1):
        assert len({run["bayes"] for run in runs if run["seed"] == seed}) == 1
    assert len({run["bayes"] for run in runs}) == 2


def test_the_validation_rows_choose(studied):
    """The setting with the best validation is the one whose test score is reported, be it the best there or not."""
    record = json.loads((studied[0] / "study" / "report.json").read_text())
    row = next(row for row in record["rows"] if row["name"] == "logistic-regression")
    for i, seed in enumerate((0, 1)):
        tried = [r for r in record["runs"] if (r["contestant"], r["seed"]) == ("logistic-regression", seed)]
        assert len(tried) == 3
        best = max(tried, key=lambda r: (r["validation"]["accuracy"], -r["validation"]["log_loss"]))
        assert (row["settings"][i], row["scores"][i]) == (best["setting"], best["test"]["accuracy"])


def test_specialisation_is_recorded(studied):
    (experts,) = json.loads((studied[0] / "study" / "report.json").read_text())["experts"]
    regimes = experts["groupings"][0]
    assert regimes["name"] == "hidden regime" and len(regimes["groups"]) == 4
    assert sum(experts["load"]) == pytest.approx(1) and len(experts["router_entropies"]) == 2
    for shares in regimes["share"]:
        assert sum(shares) == pytest.approx(1)


def test_the_page_stands_alone(studied):
    """One file, the sentence on it, nothing fetched from outside."""
    page = (studied[0] / "study" / "report.html").read_text()
    record = json.loads((studied[0] / "study" / "report.json").read_text())
    assert record["summary"].replace("'", "&#39;") in page and page.count("<svg") >= 8
    assert not re.search(r'(src|href)="(?!#)', page)


def test_the_page_of_a_sheaf_router(studied):
    """Gluing energy against error where there is any; a run that diverged is listed as such."""
    from gradproof.report.page import render

    record = json.loads((studied[0] / "study" / "report.json").read_text())
    tenths = {"mean": 0.5, "energy": [0.1, 0.9], "error": [0.1, 0.3], "rows": [30, 30], "auc": 0.7}
    record["experts"][0] |= {"energy": tenths, "energy_aucs": [0.7, 0.6]}
    record["runs"][0] = {**record["runs"][0], "diverged": "the loss is not finite"}
    page = render("ablate.html", record)
    assert "Gluing energy against error" in page and "70%, 60% (50% is chance)" in page and "<td>diverged</td>" in page


def test_a_run_is_an_ordinary_run(studied):
    """`gradproof train --resume` finds nothing to train, and writes the report of the run alone."""
    run = studied[0] / "study" / "runs" / "dense" / "seed-1" / "lr-0.01"
    before = sorted((run / "checkpoints").iterdir())
    ended = gradproof("train", "--resume", "--out", run)
    assert ended.exit_code == 0 and (run / "report.html").exists(), ended.stderr
    assert sorted((run / "checkpoints").iterdir()) == before


def test_finished_runs_are_not_repeated(studied):
    """The same command, and --out alone: every result keeps its bytes and its time; another config is refused."""
    folder, _ = studied
    before = {file: file.stat().st_mtime_ns for file in results(folder)}
    again = gradproof("ablate", "--out", folder / "study")
    assert again.exit_code == 0 and "12 of 12 runs are already done" in again.stderr
    assert {file: file.stat().st_mtime_ns for file in results(folder)} == before
    other = gradproof("ablate", folder / "study.toml", "--steps", 21, "--out", folder / "study")
    assert other.exit_code == 2 and "is a different study: steps is 20 there and 21 here" in other.stderr


TABLE = "size,colour,label\n" + "".join(f"{i % 17},{'rgb'[i % 3]},{'yes' if i % 4 else 'no'}\n" for i in range(80))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--budget", 50, "--data", "synthetic:rows=500"], "has as few as 50 parameters"),
        (["--budget", 10**13, "--data", "synthetic:rows=500"], "this machine has"),
        (["--seeds", 1], "a test needs at least two seeds"),
        (["--families", "moe,tree"], "there is no family 'tree'"),
        (["--families", "dense-sheaf"], "has no router"),
        (["--data", "table.csv"], "--target is missing"),
        (["--data", "table.csv", "--target", "lable"], "did you mean 'label'?"),
        (["--data", "rare.csv", "--target", "label"], "class 'maybe' has 2 of the 82 rows"),
        (["--data", "nowhere.csv", "--target", "label"], "there is no file"),
        (["nowhere.toml"], "there is no config file"),
        (["wrong.toml"], "model_options: there is no option 'widht'"),
    ],
)
def test_bad_configs_get_one_sentence_before_any_run(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "rare.csv").write_text(TABLE + "3,r,maybe\n4,g,maybe\n")
    (tmp_path / "wrong.toml").write_text("[options.moe]\nwidht = 3\n")
    before = sorted(tmp_path.rglob("*"))
    ended = gradproof("ablate", *arguments)
    assert ended.exit_code == 2 and sentence in ended.stderr
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("gradproof: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_ray_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = gradproof("ablate", "--ray", "--out", tmp_path / "study")
    assert ended.exit_code == 2 and "pip install 'gradproof[ray]'" in ended.stderr and not list(tmp_path.iterdir())


def test_dry_run(tmp_path, monkeypatch):
    """The configurations for a table of one's own, and nothing on disk."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    ended = gradproof("ablate", "--data", "table.csv", "--target", "label", "--dry-run", "--json", "-")
    assert ended.exit_code == 0 and [file.name for file in tmp_path.iterdir()] == ["table.csv"]
    record = json.loads(ended.stdout)
    assert [family["family"] for family in record["families"]] == ["moe", "moe-sheaf-padic", "dense"]
    assert all(abs(family["total"] - 200_000) <= 2000 for family in record["families"])


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_started_again(tmp_path, how):
    """After `kill -9` nothing goes on behind it, finished runs keep their bytes, and the end is the same as without."""
    (tmp_path / "study.toml").write_text(CONFIG.replace("jobs = 1", "jobs = 2").replace("= 20", "= 300"))
    command = [sys.executable, "-m", "gradproof", "ablate", "study.toml", "--out", "study"]
    place: dict = dict(cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(gradproof_package.__file__).parents[1])})
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True, **place)
    while len(results(tmp_path)) < 3:
        time.sleep(0.02)
        assert started.poll() is None
    os.kill(started.pid, how)
    assert started.wait(60) == (130 if how == signal.SIGINT else -signal.SIGKILL)
    time.sleep(1)
    before = {file: file.stat().st_mtime_ns for file in results(tmp_path)}
    time.sleep(3)
    assert {file: file.stat().st_mtime_ns for file in results(tmp_path)} == before and len(before) < 12
    ended = subprocess.run(command, capture_output=True, text=True, **place)
    assert ended.returncode == 0 and f"{len(before)} of 12 runs are already done" in ended.stderr
    after = {file: file.stat().st_mtime_ns for file in results(tmp_path)}
    assert len(after) == 12 and {file: after[file] for file in before} == before
    whole = subprocess.run([*command[:-1], "whole"], capture_output=True, **place)
    assert whole.returncode == 0
    one, other = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("study", "whole"))
    assert one["comparisons"] == other["comparisons"] and one["summary"] == other["summary"]
