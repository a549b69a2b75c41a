"""`gradproof doctor`, and what is imported only when it is needed."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.commands import doctor
from gradproof.commands.doctor import PURPOSES, requirements
from gradproof.kernels.cpu import build


def ran(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_doctor_reports_this_machine(tmp_path):
    """The record and the text agree; every kernel has a status, and every extra of the package is listed."""
    ended = ran("--json", str(tmp_path / "doctor.json"))
    assert ended.exit_code == 0, ended.stderr
    record = json.loads((tmp_path / "doctor.json").read_text())
    assert record["environment"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {variant["status"] for variant in record["kernels"]} <= {"admitted", "refused", "missing"}
    admitted = sum(variant["status"] == "admitted" for variant in record["kernels"])
    assert f"{admitted} of {len(record['kernels'])} kernels are proven on this machine." in ended.stdout
    for sentence in record["missing"]:
        assert sentence in ended.stdout
    assert max(map(len, ended.stdout.split("kernels are proven")[0].splitlines())) <= 80


def test_every_extra_of_the_package_is_known():
    """An extra that users may install must not be forgotten here."""
    import tomllib
    from pathlib import Path

    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert {*pyproject["project"]["optional-dependencies"]} - {"test", "lint", "docs"} == {*PURPOSES}


def test_a_missing_extra_names_its_command(monkeypatch):
    monkeypatch.setattr(doctor, "surveyed", lambda device: [])
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "polars" else "1.0")
    record = json.loads(ran("--json", "-").stdout)
    assert (
        "To train on CSV and Parquet files (polars missing), type: pip install 'gradproof[data]'" in record["missing"]
    )
    assert [extra["extra"] for extra in record["extras"] if extra["status"] == "missing"] == ["data"]


def test_a_missing_compiler_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    cached = (build.available, build.library, build.compiler)
    for function in cached:
        function.cache_clear()
    try:
        monkeypatch.setattr(doctor, "surveyed", lambda device: [])
        record = json.loads(ran("--json", "-").stdout)
    finally:
        for function in cached:
            function.cache_clear()
    assert record["environment"]["compiler"] is None
    assert (
        "The compiled CPU kernels are off: no C++ compiler found; install g++ or set CXX to one. "
        "Training on a CPU is slower without them." in record["missing"]
    )


def test_requirements_of_an_extra():
    """Quotes of either kind, and lines of other extras with a similar name."""
    lines = ["torch>=2.11", "polars>=1.34; extra == 'data'", 'x.y-z; extra == "data"', "w; extra == 'dataset'"]
    assert requirements(lines, "data") == ["polars", "x.y-z"]


PLAIN = """
import sys, torch, gradproof, gradproof.cli
from gradproof.train import loop, report
from gradproof.ablate import record
gradproof.verify(torch.nn.Linear(3, 2), (torch.randn(4, 3),), quick=True)
step = gradproof.TrainStep(gradproof.MoE.sized("nano"), "cross_entropy", gradproof.AdamW())
step(torch.randn(8, 96), torch.randint(20, (8,)))
print([name for name in ("matplotlib", "jinja2") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "code", ["import sys, gradproof.pytest_plugin; print([m for m in ('torch',) if m in sys.modules])", PLAIN]
)
def test_pages_are_not_loaded_before_one_is_written(code):
    """A training or verifying process must not pay for matplotlib and jinja2."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip().splitlines()[-1] == "[]"
