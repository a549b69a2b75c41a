"""benchmarks/tables.py: its scores are scikit-learn's, it resumes, and its verdicts follow from the figures."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

sklearn_metrics = pytest.importorskip("sklearn.metrics")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ("contestants", "record", "scores", "search", "sets", "summary")


@pytest.fixture(scope="module")
def script():
    """Its modules, as they find each other when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        modules = {name: __import__(f"table_{name}") for name in NAMES}
        yield SimpleNamespace(**modules, main=__import__("tables"))
        for name in ("tables", *(f"table_{name}" for name in NAMES)):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_are_those_of_scikit_learn(script, classes):
    from gradproof.train.score import calibration

    rng = np.random.default_rng(classes)
    p = rng.dirichlet(np.ones(classes), 400)
    truth = np.array([rng.choice(classes, p=row) for row in p])
    scores = script.scores.scores(truth, p.argmax(1), p.astype(np.float32))
    auc = sklearn_metrics.roc_auc_score(truth, p[:, 1] if classes == 2 else p, multi_class="ovr")
    right = {
        "accuracy": sklearn_metrics.accuracy_score(truth, p.argmax(1)),
        "auc": auc,
        "log_loss": sklearn_metrics.log_loss(truth, p),
        "brier": sklearn_metrics.brier_score_loss(truth, p, labels=range(classes), scale_by_half=False),
        "ece": sum(
            b["count"] / 400 * abs(b["accuracy"] - b["confidence"])
            for b in calibration(p.max(1), p.argmax(1) == truth)
            if b["count"]
        ),
    }
    assert scores == pytest.approx(right, rel=1e-5)


def test_regression_scores(script):
    truth, mean = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 2.0, 2.0, 4.0])
    scores = script.scores.regression_scores(truth, mean, mean - 0.5, mean + 0.5)
    assert scores == pytest.approx(
        {"rmse": sklearn_metrics.root_mean_squared_error(truth, mean), "coverage": 0.75, "width": 1.0}
    )
    assert set(script.scores.regression_scores(truth, mean)) == {"rmse"}


def test_every_row_is_tested_once_and_names_reach_the_trees(script):
    folds = [script.sets.fold("wine", 0, number) for number in range(5)]
    whole = script.sets.table("wine").frame
    assert pl.concat([fold.test for fold in folds]).sort(whole.columns).equals(whole.sort(whole.columns))
    assert not folds[0].test.equals(script.sets.fold("wine", 1, 0).test)
    names = [f"n{i % 300}" for i in range(1200)]
    frame = pl.DataFrame(
        {"name": names, "id": [f"id{i}" for i in range(1200)], "x": range(1200), "y": ["a", "b"] * 600}
    )
    columns = script.contestants.TreeColumns(script.sets.Fold(frame, frame, "y"))
    assert (columns.numbers, columns.names, columns.categorical) == (["x"], ["name"], [False, True])
    unseen = frame[:1].with_columns(name=pl.lit("never seen"))
    assert np.isnan(columns.matrix(unseen)[0, 1]) and np.nanmax(columns.matrix(frame)[:, 1]) == 253


def test_a_figure_by_the_same_code_is_not_measured_again(script, tmp_path, capsys):
    file = tmp_path / "tables.json"
    setting = script.record.setting(jobs=2, threads=1)
    planned = script.main.work(["wine"], ["hist"], 1)[:2]
    script.main.measure_folds(script.record.Record(file, setting), "folds", planned, 1, resume=True)
    written = json.loads(file.read_text())
    assert [entry["fold"] for entry in written["folds"]] == [0, 1]
    assert written["folds"][0]["commit"] == script.record.commit() and not written["folds"][0]["seconds_comparable"]

    before = file.read_bytes()
    script.main.measure_folds(script.record.Record(file, setting), "folds", planned, 1, resume=True)
    assert file.read_bytes() == before and "2 of 2 figures are in the record" in capsys.readouterr().out


def test_what_other_code_measured_is_not_kept(script, tmp_path):
    file = tmp_path / "tables.json"
    alone, beside = ({"jobs": 1, "threads": 2, "seconds_comparable": which} for which in (True, False))
    record = script.record.Record(file, beside)
    entry = {"table": "wine", "repeat": 0, "fold": 0, "contestant": "ours", "accuracy": 1.0, "seconds": 1.0}
    key = {name: entry[name] for name in script.record.KEYS["folds"]}
    record.add("folds", entry)
    assert record.known("folds", **key) and not record.known("folds", **{**key, "fold": 1})
    assert script.record.Record(file, beside).known("folds", **key)
    assert not script.record.Record(file, alone).known("folds", **key)  # its seconds would not do
    record.add("folds", {**entry, "accuracy": 0.5})
    assert [e["accuracy"] for e in record.content["folds"]] == [0.5]  # replaced

    made = record.content["folds"][0]
    made["commit"] = "abc"
    assert record.known("folds", **key)  # a clean commit with the same code
    made["commit"] = "abc-dirty"
    assert not record.known("folds", **key)
    made |= {"commit": record.origin["commit"], "code": "other"}
    assert not record.known("folds", **key)
    record.origin["code"] = "edited since"
    with pytest.raises(SystemExit, match="the code changed during the run"):
        record.add("folds", entry)


def test_records_that_do_not_belong_are_refused(script, tmp_path):
    file = tmp_path / "tables.json"
    file.write_text("[]")
    with pytest.raises(SystemExit, match="no record of this version"):
        script.record.read(file)
    elsewhere = {"suite": "tables", "environment": {**script.record.environment(), "numpy": "0.1"}}
    file.write_text(json.dumps(elsewhere))
    with pytest.raises(SystemExit, match=r"measured with numpy 0\.1"):
        script.record.Record(file, {})


def made_up(script, ours, hist, jobs=1, **of_table):
    """A whole record: figures of both, those of some tables different."""
    rows = {"wine": 178, "breast_cancer": 569, "digits": 1797, "flights": 50_000, "movies": 50_000}
    stamp = {"commit": "abc", "code": "one", "date": "2026-01-02T03:04:05+00:00", "seconds_comparable": jobs == 1}
    entries = []
    for name in script.sets.TABLES:
        R = rows.get(name, 20_000)
        for contestant, figures in (("ours", {**ours, **of_table.get(name, {})}), ("hist", hist)):
            entries += [
                {"table": name, "rows": R, "repeat": r, "fold": f, "contestant": contestant, **figures, **stamp}
                for r in range(script.sets.repeats(R))
                for f in range(5)
            ]
    return {"folds": entries, "search": [], "sizes": [], "regression": []}


HIST = {"accuracy": 0.9, "auc": 0.95, "log_loss": 0.4, "brier": 0.2, "ece": 0.03, "seconds": 2.0}
OURS = {"accuracy": 0.91, "auc": 0.96, "log_loss": 0.3, "brier": 0.2, "ece": 0.03, "seconds": 50.0}


def lines(script, record):
    """The verdicts, by the first two words of what they say."""
    shown = [line.split(maxsplit=1) for line in script.summary.show(record).splitlines() if line]
    verdicts = [(begin, said) for begin, said in shown if begin in ("met", "MISSED", "unclear")]
    return {" ".join(said.split()[:2]): (verdict, said) for verdict, said in verdicts}


def test_verdicts_that_are_met(script):
    record = made_up(script, OURS, HIST, movies={"accuracy": 0.897, "ece": 0.04})
    shown = script.summary.show(record)
    assert "on 9 of 9 tables:" in shown and "commit abc; 2026-01-02" in shown and "MISSED" not in shown
    verdicts = lines(script, record)
    assert "90.86%, theirs 90.00%" in verdicts["mean accuracy"][1]
    assert "log loss 0.750 of theirs" in verdicts["log loss"][1]
    assert "movies, -0.30 points" in verdicts["worst table"][1]
    assert "no worse on 8 of 9" in verdicts["calibration error"][1]
    assert "50.0 s in its slowest fold" in verdicts["slowest table"][1]


def test_verdicts_that_are_missed(script):
    late = {"ece": 0.04, "seconds": 61.0, "accuracy": 0.85}
    worse = {"accuracy": 0.89, "auc": 0.94, "log_loss": 0.5, "brier": 0.2, "ece": 0.04, "seconds": 5.0}
    verdicts = lines(script, made_up(script, worse, HIST, letter=late, wine={"accuracy": 0.5}))
    assert {verdict for verdict, _ in verdicts.values()} == {"MISSED"} and len(verdicts) == 6
    assert "letter, -5.00 points" in verdicts["worst table"][1]  # wine has too few rows to count
    assert "letter, 61.0 s" in verdicts["slowest table"][1]


def test_seconds_that_do_not_compare_and_folds_that_lack(script):
    record = made_up(script, OURS, HIST, jobs=2)
    assert lines(script, record)["slowest table"][0] == "unclear"
    assert "some seconds are not comparable" in script.summary.show(record)
    record["folds"] = [e for e in record["folds"] if (e["table"], e["contestant"], e["fold"]) != ("magic", "ours", 4)]
    assert "(incomplete: magic has 4 folds)" in script.summary.show(record)


def test_regression_and_sizes_are_shown(script):
    record = made_up(script, OURS, HIST)
    stamp = {"commit": "abc", "date": "2026-01-02", "seconds_comparable": True, "repeat": 0, "fold": 0, "seconds": 3.0}
    diabetes = {"table": "diabetes", "rows": 442, "noise": None, **stamp}
    record["regression"] = [
        {**diabetes, "contestant": "ours", "rmse": 51.0, "coverage": 0.94, "width": 2.0},
        {**diabetes, "contestant": "hist", "rmse": 50.0},
    ]
    record["sizes"] = [{"rows": 1_000_000, "peak_mib": 2048.4, **stamp}]
    shown = script.summary.show(record)
    assert "met      diabetes: RMSE 1.020 of theirs" in shown
    assert "MISSED   diabetes: 90% intervals cover 94.0%" in shown
    assert "1,000,000       3.0     2,048" in shown


def test_search_draws_the_same_options_again_and_checks_them(script, monkeypatch):
    drawn = [script.search.draw("ours", trial) for trial in range(3)]
    assert drawn == [script.search.draw("ours", trial) for trial in range(3)] and drawn[0] != drawn[1]
    assert set(drawn[0]["model_options"]) == {"hidden"} and 3e-4 <= drawn[0]["lr"] <= 1e-2
    assert all(isinstance(script.search.draw("hist", t)["max_leaf_nodes"], int) for t in range(3))
    monkeypatch.setitem(script.search.SPACES, "ours", {"lr": [0.1], "no_such": [1], "model_options.hidden": [8]})
    with pytest.raises(SystemExit, match="no option 'no_such'"):
        script.search.check_spaces()


def test_search_scores_the_test_rows_once(script, tmp_path, capsys):
    record = script.record.Record(tmp_path / "tables.json", script.record.setting(1, 1))
    chosen = script.search.search(record, "wine", "hist", 2, resume=True)
    tried = [entry for entry in record.content["search"] if entry["trial"] != "chosen"]
    assert len(tried) == 2 and len(record.content["search"]) == 3 and chosen["trials"] == 2
    assert chosen["options"] == min(tried, key=lambda entry: entry["log_loss"])["options"]
    assert script.search.search(record, "wine", "hist", 2, resume=True) is chosen


def test_missing_data_is_named(script, monkeypatch, tmp_path):
    monkeypatch.delenv("GRADPROOF_DATA", raising=False)
    with pytest.raises(SystemExit, match=r"needs \$GRADPROOF_DATA"):
        script.sets.table("magic")
    monkeypatch.setenv("GRADPROOF_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"magic\.csv does not exist"):
        script.sets.table("magic")


def test_what_the_command_says_when_it_fails_is_passed_on(script, tmp_path):
    with pytest.raises(script.contestants.CommandFailed, match=r"exit code 2: .*nothing\.csv"):
        script.contestants.run_gradproof("train", "--data", "nothing.csv", "--target", "y", folder=tmp_path)


@pytest.mark.slow
def test_ours_is_the_command_line(script):
    figures = script.contestants.measure("ours", script.sets.fold("wine", 0, 0))
    assert figures["accuracy"] > 0.9 and figures["seconds"] > 1 and figures["peak_mib"] > 100
