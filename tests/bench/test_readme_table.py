"""The tables of speed in docs/speed.md and the README: written from the results, checked, and of one commit."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/readme_table.py"


def figures(ratio, name):
    return dict(name=name, ms=2.5 * ratio, ratio=ratio, ours_ms=2.5, peak_bytes=1, memory_ratio=1.25)


RECORD = {
    "environment": {"device": "NVIDIA H200", "threads": 16},
    "rows": [
        {
            "size": "nano",
            "rows": 8192,
            "precision": "bf16",
            "contestants": [{"name": "gradproof", "ms": 2.5, "share_of_peak": 0.421}],
            "best_uncaptured": figures(8.125, "grouped_mm-compiled"),
            "best_captured": figures(1.5, "grouped_mm-captured"),
            "speedup": 1.5,
            "memory_against_best": 0.8,
        },
        {"size": "full", "rows": 1, "precision": "bf16", "contestants": [{"name": "gradproof", "error": "no"}]},
    ],
}


STAMP = {"commit": "abc", "code": "one", "date": "2026-01-02T03:04:05+00:00"}


def stamped(record=RECORD, **stamp):
    """The record as it is written now: a peer, and where everything comes from."""
    record = copy.deepcopy(record)
    record |= {"peak_tflops_hot": 600.0, "machine": {"power_limit_w": 700.0, "clock_max_mhz": 1980.0}}
    row = record["rows"][0]
    row |= {**STAMP, **stamp, "peers": ["grouped_mm-captured"]}
    row["contestants"].append({"name": "grouped_mm-captured", "ms": 3.75})
    for entry in row["contestants"]:
        entry |= {**STAMP, **stamp}
    return record


@pytest.fixture
def script(tmp_path):
    """Runs it on pages and results of its own."""
    page, readme, results = tmp_path / "speed.md", tmp_path / "README.md", tmp_path / "results"
    results.mkdir()
    for file in (page, readme):
        file.write_text("# Title\n<!-- speed -->\nold\n<!-- /speed -->\nrest\n")

    def run(*args, **records):
        for name, record in records.items():
            (results / f"{name}.json").write_text(json.dumps(record))
        command = [sys.executable, SCRIPT, "--page", page, "--readme", readme, "--results", results, *args]
        return subprocess.run(command, capture_output=True, text=True)

    run.page, run.readme = page, readme
    return run


def test_the_page_is_written_and_checked(script):
    assert script().returncode == 2  # no results
    assert script("--check", step_h200=RECORD, diagnose={}).returncode == 1 and "old" in script.page.read_text()
    assert script().returncode == 0 and script("--check").returncode == 0
    before, table, after = script.page.read_text().partition("| NVIDIA H200, bf16 | nano, 8,192 | 2.5 ms |")
    assert table and before.startswith("# Title\n<!-- speed -->\n| hardware |") and after.endswith("-->\nrest\n")
    for cell in ("grouped_mm-captured, 3.75 ms", "grouped_mm-compiled, 20.3 ms, 8.1x", "**1.50x**", "42%", "0.80x"):
        assert cell in after
    assert "full" not in after  # ours did not run there
    script.page.write_text("# Title\n")
    lost = script()
    assert lost.returncode == 2 and "<!-- speed -->" in lost.stderr and script.page.read_text() == "# Title\n"


def test_the_readme_has_three_rows_of_few_columns(script):
    record = stamped()
    row = record["rows"][0]
    record["rows"] = [{**row, "rows": rows} for rows in (256, 8192)]
    assert script(step_h200=record).returncode == 0
    written = script.readme.read_text()
    assert (
        "| NVIDIA H200, bf16 | nano, 8,192 | 2.5 ms | 3.75 ms | **1.50x** |" in written and "nano, 256" not in written
    )
    script.readme.write_text(written.replace("1.50x", "9.50x"))
    stale = script("--check")
    assert stale.returncode == 1 and "README.md is stale" in stale.stderr and len(stale.stderr.splitlines()) == 1


def test_old_records_say_what_they_lack(script):
    """Neither a commit nor which peak."""
    assert script(step_h200=RECORD).returncode == 0
    written = script.page.read_text()
    assert "42% of the cold" in written and "before records carried commits" in written
    assert script(step_h200=stamped()).returncode == 0
    written = script.page.read_text()
    assert "| 42% |" in written and "before records" not in written and "peers measured" not in written
    assert "NVIDIA H200: commit `abc`, 2026-01-02, power limit 700 W, at most 1,980 MHz." in written


def test_a_row_that_is_not_finished_says_so(script):
    record = stamped()
    record["rows"][0]["peers"] += ["loop", "dense-all"]
    record["rows"][0]["contestants"] += [dict(name="loop", error="no"), dict(name="dense-all", error="", tries=1)]
    script(step_h200=record)
    assert "; 2 of 3 peers measured" in script.page.read_text()


def test_padded_and_unpadded_are_told_apart(script):
    record = stamped()
    row = record["rows"][0]
    record["rows"] = [{**row, "size": f"transformer-gate{end}"} for end in ("-unpadded", "")]
    assert script(step_h200=record).returncode == 0
    written = script.page.read_text()
    assert "| transformer-gate, 8,192, unpadded |" in written and "| transformer-gate, 8,192, padded |" in written


@pytest.mark.parametrize(
    "records, sentence",
    [
        (dict(step_h200=RECORD), "1 of 1 rows carry no commit, the first is nano, 8,192 in step_h200.json"),
        (dict(step_h200=stamped(commit="abc-dirty")), "changes that are in no commit: abc-dirty"),
        (dict(step_h200=stamped(), step_h100=None), "more than one commit: abc, def"),
    ],
)
def test_one_commit(script, records, sentence):
    if "step_h100" in records:
        other = stamped(commit="def")
        other["environment"]["device"] = "NVIDIA H100"
        records = {**records, "step_h100": other}
    before = script.page.read_text()
    refused = script("--one-commit", **records)
    assert refused.returncode == 1 and sentence in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert script.page.read_text() == before
    assert script().returncode == 0 and script("--check").returncode == 0, "the table itself says it"


def test_one_commit_that_is_one(script):
    assert script("--one-commit", step_h200=stamped()).returncode == 0
    assert script("--one-commit", "--check").returncode == 1, "but the README is stale"


def test_a_row_that_two_files_have(script):
    refused = script(step_h200=RECORD, step_h200_nano=RECORD)
    assert refused.returncode == 2
    assert "step_h200.json and step_h200_nano.json both have nano, 8,192 on NVIDIA H200" in refused.stderr
