"""How the CPU kernels are built: once, whole, and with a sentence where they cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradproof.kernels.cpu import build, missing


@pytest.fixture
def unbuilt(monkeypatch, tmp_path):
    """A machine that has built nothing yet. What the process holds is put back afterwards."""
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    build.available.cache_clear()
    build.library.cache_clear()
    yield tmp_path
    build.available.cache_clear()
    build.library.cache_clear()


def test_no_compiler(unbuilt, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "no C++ compiler" in str(missing())


def test_a_missing_compiler_is_told_once(unbuilt, monkeypatch):
    """Without g++ training is half as fast, and only this line shows it."""
    from gradproof.kernels import admissions
    from gradproof.models.moe import MoE

    shape = MoE.sized("nano").shape(32, torch.float32)

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    said = []
    monkeypatch.setattr(admissions, "say", said.append)
    monkeypatch.setattr(admissions, "_told", set())
    for _ in range(2):
        admissions.choose(shape)
    assert said == [
        "the compiled CPU kernels are off: no C++ compiler found; install g++ or set CXX to one "
        "(PyTorch operations run instead, which are slower)"
    ]


@pytest.mark.parametrize("compiler", ["/nowhere/g++", "false"])
def test_a_compiler_that_fails(unbuilt, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    reason = build.available()
    assert reason is not None and compiler in reason
    assert not [*unbuilt.rglob("*.partial"), *unbuilt.rglob("*.so")]


QUICK = """
from gradproof.kernels.cpu import build
build.FLAGS = ("-O0", *build.FLAGS[1:])
print(build.available())
"""


def _start(cache: Path) -> subprocess.Popen:
    environment = {**os.environ, "GRADPROOF_CACHE": str(cache)}
    return subprocess.Popen([sys.executable, "-c", QUICK], env=environment, stdout=subprocess.PIPE, text=True)


def test_two_at_once(tmp_path):
    """Both end with the same library, and what a killed builder left behind is in nobody's way."""
    if build.available() is not None:
        pytest.skip(str(build.available()))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "kernels-0-dead.partial").touch()
    started = [_start(tmp_path) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in started] == ["None", "None"]
    assert len([*tmp_path.rglob("*.so")]) == 1 and len([*tmp_path.rglob("*.partial")]) == 1
    (kept,) = tmp_path.rglob("*.so")
    written = kept.stat().st_mtime_ns
    assert _start(tmp_path).communicate(timeout=120)[0].strip() == "None"
    assert kept.stat().st_mtime_ns == written


def test_a_cache_that_cannot_be_used(tmp_path):
    """Not a directory: the library is built for this process alone."""
    if build.available() is not None:
        pytest.skip(str(build.available()))
    (tmp_path / "file").touch()
    assert _start(tmp_path / "file").communicate(timeout=120)[0].strip() == "None"


def test_the_name_depends_on_theprocessor(monkeypatch):
    here = build._key()
    monkeypatch.setattr(build, "processor", lambda: ["flags: another"])
    assert build._key() != here
