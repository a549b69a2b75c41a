"""The examples run as their first lines say, and print what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "verify_module": (),
    "verify_triton_kernel": ("triton",),
    "train_and_serve": ("polars", "fastapi", "uvicorn"),
    "guard_agent": ("tokenizers", "lmdb", "tree_sitter", "sqlglot", "re2"),
}
SLOW = {"guard_agent", "train_and_serve"}  # they train a whole gate, a table
PRINTED = {
    "verify_module": ["refuted: ", "parameter gain"],
    "verify_triton_kernel": ["proven: "],
    "train_and_serve": ["200 rows decided", "\nyes\n"],
    "guard_agent": ["allow  ", "ask    ", "block  ", "corrected: allow"],
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NEEDS}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in NEEDS])
def test_example(name, tmp_path):
    for package in NEEDS[name]:
        pytest.importorskip(package)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "XDG_STATE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, env=environment, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    for expected in PRINTED[name]:
        assert expected in ended.stdout + ended.stderr, ended.stdout
    assert "Warning" not in ended.stderr
