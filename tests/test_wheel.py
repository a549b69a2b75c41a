"""The wheel: built, installed without its dependencies into an environment of its own, and tried there."""

import json
import os
import site
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import gradproof

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]

CASE = """
import torch
def case():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3), (torch.randn(5, 4),)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment that holds the wheel, and sees the packages of this one but not its gradproof."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True, timeout=120)
    (packages,) = home.glob("lib/python*/site-packages")
    # Plain paths: the .pth files of this environment, its editable gradproof among them, are not read.
    (packages / "seen.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return home


def run(installed, *arguments, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = str(installed / "bin" / arguments[0])
    return subprocess.run(
        [program, *arguments[1:]], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_file_of_the_package_is_in_it(wheel):
    """Templates, C++ sources, TOML and py.typed as well: a file that is left out is missed only by users."""
    held = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files", "gradproof"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("the sources are not a git checkout")
    assert {*listed.stdout.split()} <= held
    assert "gradproof/py.typed" in held and not [name for name in held if name.startswith("tests")]


def test_one_place_for_the_version(wheel):
    """Wheel, package and changelog agree; pyproject.toml has no number of its own."""
    assert wheel.name.split("-")[1] == gradproof.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    assert f"## {gradproof.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_installed_wheel_works(installed, tmp_path):
    """The command, a proof, a training with its page, a prediction, and the pytest fixture, away from the sources."""
    where = run(installed, "python", "-c", "import gradproof; print(gradproof.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(installed)), where.stdout + where.stderr
    assert run(installed, "gradproof", "--version", cwd=tmp_path).stdout == f"gradproof {gradproof.__version__}\n"
    (tmp_path / "mine.py").write_text(CASE)
    verified = run(installed, "gradproof", "verify", "mine.py:case", "--quick", "--json", "v.json", cwd=tmp_path)
    assert verified.returncode == 0, verified.stderr
    assert json.loads((tmp_path / "v.json").read_text())["status"] == "proven"
    pytest.importorskip("polars")
    rows = "\n".join(f"{i},{i % 7},{'yes' if i % 7 > 3 else 'no'}" for i in range(300))
    (tmp_path / "table.csv").write_text(f"a,b,answer\n{rows}\n")
    table = ("--data", "table.csv")
    trained = run(
        installed, "gradproof", "train", *table, "--target", "answer", "--steps", "20", "--out", "run", cwd=tmp_path
    )
    assert trained.returncode == 0, trained.stderr
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    predicted = run(installed, "gradproof", "predict", "run", *table, "--out", "decided.csv", cwd=tmp_path)
    assert predicted.returncode == 0 and "300 rows decided" in predicted.stdout + predicted.stderr


def test_the_gates_hook_is_installed_with_it_and_fails_closed(installed, tmp_path):
    """As `gate install` writes it: this environment's interpreter, and the console script beside it."""
    project = tmp_path / "project"
    project.mkdir()
    store = tmp_path / "missing"
    asked = ["gate", "install", "claude", "--project", "--yes", "--store", str(store)]
    done = run(installed, "gradproof", *asked, cwd=project)
    assert done.returncode == 0, done.stderr
    settings = json.loads((project / ".claude" / "settings.json").read_text())
    (handler,) = settings["hooks"]["PreToolUse"][0]["hooks"]
    assert f"{installed}/bin/python -I {installed}/bin/gradproof-hook --store {store}" in handler["command"]
    event = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
    shell = ["sh", "-c", handler["command"]]
    answered = subprocess.run(shell, input=json.dumps(event), capture_output=True, text=True, cwd=project, timeout=60)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["hookSpecificOutput"]["permissionDecision"] == "ask"
    (installed / "bin" / "gradproof-hook").unlink()
    gone = subprocess.run(shell, input=json.dumps(event), capture_output=True, text=True, cwd=project, timeout=60)
    assert gone.returncode == 2 and "the call is blocked" in gone.stderr
