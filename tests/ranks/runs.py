"""A short run of `gradproof train`, and what it means that two runs are the same."""

import json

import pytest

RUN = ["--data", "synthetic:rows=600,regimes=4", "--steps", "12", "--batch", "50"]
CONFIG = "validate_every = 4\nlog_every = 1\ncompare_every = 3\nclip = 0.5\n"


def losses(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, 13))
    names = ("loss", "grad_norm", "router_entropy", "validation_loss")
    return {(record["step"], name): record[name] for record in records for name in names if name in record}


def same_run(run, other):
    """In float32 sums differ by their order: far less than a rank that trained by itself would."""
    own, others = losses(run), losses(other)
    assert own.keys() == others.keys()
    for key, figure in own.items():
        assert figure == pytest.approx(others[key], rel=2e-4), key
    reports = [json.loads((path / "report.json").read_text()) for path in (run, other)]
    assert reports[0].keys() == reports[1].keys()
    assert reports[0]["status"] == reports[1]["status"]
    assert {path.name for path in run.iterdir()} == {path.name for path in other.iterdir()}
