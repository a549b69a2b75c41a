"""`verify` on a fifth of torch's own tables of modules and operators, in a process of its own: importing them changes
settings of torch and hypothesis."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "torch_tables.py"
# Refuted, and rightly so: the gradient that torch 2.13 gives is not that of a derivative or a convention.
WRONG_IN_TORCH = {
    "as_strided_scatter",  # what a view without dimensions overwrites still gets a gradient
    "native_group_norm",  # a loss of its mean or its rstd alone gives no gradient
    "nn.functional.hardsigmoid",  # its backward multiplies float64 by a sixth in float32
}


@pytest.mark.slow
@pytest.mark.parametrize(("table", "share"), [("modules", 0.95), ("operators", 0.90)])
def test_most_of_the_table_is_proven(table, share, tmp_path):
    """A module of torch's that makes verify raise, a right gradient that is refuted, or too many shrugs."""
    record = tmp_path / "record.json"
    command = [sys.executable, SCRIPT, "--table", table, "--every", "5", "--json", record]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=600)
    entries = json.loads(record.read_text())[table]
    by_status = {
        status: [entry for entry in entries if entry["status"] == status] for status in {e["status"] for e in entries}
    }
    assert "raises" not in by_status, by_status["raises"]
    plain = [entry for entry in by_status.get("refuted", []) if "convention" not in entry["summary"]]
    assert {entry["name"] for entry in plain} <= WRONG_IN_TORCH, plain
    assert len(by_status["proven"]) >= share * len(entries)
