"""Where commands write: a place that cannot be written is one sentence with the name that the user gave."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.commands.terminal import check_outputs, sentence

NOWHERE = "/no-such-folder-of-gradproof"
COMMANDS = {
    "json": ("sizes", "--rows", "2", "--json"),
    "html": ("verify", "--op", "softmax", "--html"),
    "record": ("verify", "cases.py:case", "--record"),
    "predict": ("predict", "run", "--data", "t.csv", "--out"),
    "export": ("export", "run", "--format", "torch", "--out"),
    "train": ("train", "--steps", "2", "--out"),
    "ablate": ("ablate", "--seeds", "2", "--steps", "2", "--out"),
    "init": ("gate", "init", "--store"),
}


def call(*args):
    return CliRunner().invoke(app, list(args))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("taken/x.csv", "taken is a file, not a folder"),
        (f"{NOWHERE}/deep/x.csv", f"{NOWHERE} does not exist; create it first"),
        ("/proc/x.csv", "/proc: permission denied"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, command, place, reason):
    """Before any work, without an errno or the name of a temporary file; as root, too, no folder is made in /."""
    if place.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("there is no /proc here")
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("")
    result = call(*COMMANDS[command], place)
    assert result.exit_code == 2, result.output
    said = result.stderr.strip().splitlines()[-1]
    assert said.startswith(f"gradproof: cannot write {place}: ") and reason in said
    assert "Errno" not in result.stderr and ".partial" not in result.stderr
    assert os.listdir() == ["taken"] and not Path(NOWHERE).exists()


def test_what_may_be_written_is_let_through(tmp_path, monkeypatch):
    """Folders below one that exists are made; devices are written to; a trial leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    check_outputs("new/folder/x.json", Path("/dev/null"), None)
    assert os.listdir() == []


def test_a_file_that_is_read_only(tmp_path, monkeypatch):
    """root may write it; everybody else is told before any work."""
    file = tmp_path / "x.json"
    file.write_text("kept")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file)
    with pytest.raises(ValueError, match=r"x\.json: permission denied"):
        check_outputs(str(file), None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("/disk/.partial-x.csv-alqa08mh", "/disk/x.csv"),
        ("/disk/.partial-x.csv-alqa08mh/part.csv", "/disk/x.csv"),
        ("/disk/run/.partial-config.json", "/disk/run/config.json"),
        ("/disk/x.csv", "/disk/x.csv"),
    ],
)
def test_an_error_of_the_system_names_the_file_that_was_asked_for(name, told):
    error = OSError(errno.EACCES, os.strerror(errno.EACCES), name)
    assert sentence(error) == f"{told}: permission denied"
    assert sentence(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == "no space left on device"
