import errno
import json
import subprocess
import sys

import pytest

from gradproof.train import run as run_module
from gradproof.train.run import Run, lock, start

GIVEN = {"steps": 7, "batch": 32, "data": "synthetic:rows=100"}


def test_config_is_the_first_file(tmp_path):
    """Whatever happens next, --resume finds what was asked for."""
    run = start(tmp_path / "deep/run", GIVEN, resume=False)
    assert run.fresh and run.checkpoints == tmp_path / "deep/run/checkpoints"
    assert [path.name for path in run.path.iterdir()] == ["config.json"]
    written = json.loads((run.path / "config.json").read_text())
    assert written == run.config.to_dict() and written["steps"] == 7
    again = Run(run.path)
    assert again.config == run.config and not again.fresh


def test_resume_needs_no_other_flag(tmp_path):
    """The defaults must not count as a contradiction."""
    start(tmp_path / "run", GIVEN, resume=False)
    run = start(tmp_path / "run", {}, resume=True)
    assert run.config.steps == 7 and not run.fresh
    assert start(tmp_path / "run", {"batch": 32}, resume=True).config == run.config


def test_a_config_that_says_the_same_in_other_words(tmp_path):
    """1 and 1.0 are one learning rate."""
    start(tmp_path / "run", {"lr": 1.0}, resume=False)
    assert start(tmp_path / "run", {"lr": 1}, resume=True).config.lr == 1.0


@pytest.mark.parametrize("resume", [True, False])
def test_another_config_is_refused(tmp_path, resume):
    """Going on with other options would end with a model that no config describes."""
    start(tmp_path / "run", GIVEN, resume=False)
    before = (tmp_path / "run/config.json").read_bytes()
    with pytest.raises(ValueError, match="has a different config: batch is 32 there and 64 here; choose another --out"):
        start(tmp_path / "run", {"batch": 64, "steps": 7}, resume)
    assert (tmp_path / "run/config.json").read_bytes() == before


def test_a_run_is_not_started_twice(tmp_path):
    """Without --resume nobody means to go on with it."""
    start(tmp_path / "run", GIVEN, resume=False)
    with pytest.raises(ValueError, match="already holds this run; resume it with --resume"):
        start(tmp_path / "run", GIVEN, resume=False)


def test_resume_without_out():
    """Which run?"""
    with pytest.raises(ValueError, match="--resume needs --out"):
        start(None, {}, resume=True)


def test_resume_of_nothing(tmp_path):
    """Without options there is nothing to start; with them a run killed before its first file starts over."""
    with pytest.raises(ValueError, match=r"is not a run that can be resumed: it has no config\.json"):
        start(tmp_path / "run", {}, resume=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.partial-config.json").write_text('{"ste')
    assert start(tmp_path / "run", GIVEN, resume=True).config.steps == 7


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_something_else_is_left_alone(tmp_path, resume):
    """A run that could not start removes its folder; it must never have been somebody's own."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="not empty and is not a run"):
        start(tmp_path / "mine", GIVEN, resume)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="file is a file, but a run is a folder"):
        start(tmp_path / "file", GIVEN, resume)
    with pytest.raises(ValueError, match="file is a file, but a run is a folder"):
        start(tmp_path / "file/run", GIVEN, resume)
    assert (tmp_path / "mine/letter.txt").read_text() == "dear" and (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"steps": 0}', '{"nothing": 3}', "\x00", "null"], ids=["empty", "cut", *"abcde"]
)
def test_a_damaged_config_is_one_sentence(tmp_path, text):
    """It names the file; the run stays."""
    run = start(tmp_path / "run", GIVEN, resume=False)
    (run.path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is not the config of a run"):
        start(run.path, {}, resume=True)
    assert (run.path / "config.json").read_text() == text


def test_a_bad_option_writes_nothing(tmp_path):
    """The folder must not be made before the options are known to be good."""
    with pytest.raises(ValueError, match="steps = 0"):
        start(tmp_path / "run", {"steps": 0}, resume=False)
    assert list(tmp_path.iterdir()) == []


def test_free_folders_are_numbered(tmp_path, monkeypatch):
    """A second run must not go on in, or over, the first."""
    monkeypatch.chdir(tmp_path)
    names = [start(None, GIVEN, resume=False).path.as_posix() for _ in range(3)]
    assert names == ["runs/moe-nano-synthetic", "runs/moe-nano-synthetic-2", "runs/moe-nano-synthetic-3"]
    other = start(None, {"data": "tables/loans.csv", "target": "y", "model": "dense"}, resume=False)
    assert other.path.as_posix() == "runs/dense-nano-loans"


def test_a_run_that_cannot_start_leaves_nothing(tmp_path, monkeypatch):
    """Neither its folder nor those made on the way to it; an older run is never taken back."""
    monkeypatch.chdir(tmp_path)
    start(tmp_path / "run", GIVEN, resume=False).discard()
    assert list(tmp_path.iterdir()) == []
    old = start(tmp_path / "old", GIVEN, resume=False)
    start(tmp_path / "old", {}, resume=True).discard()
    assert (old.path / "config.json").is_file()


@pytest.mark.parametrize("out", ["deep/er/run", None])
def test_discard_takes_the_folders_above_that_it_made(tmp_path, monkeypatch, out):
    """An empty runs/ is something left behind."""
    monkeypatch.chdir(tmp_path)
    start(None if out is None else tmp_path / out, GIVEN, resume=False).discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("outs", [("deep/one", "deep/two"), (None, None)])
def test_discard_leaves_the_runs_of_others(tmp_path, monkeypatch, outs):
    """Two runs start side by side; the first one made runs/, cannot start, and must not take the second one with it."""
    monkeypatch.chdir(tmp_path)
    one, two = (start(None if out is None else tmp_path / out, GIVEN, resume=False) for out in outs)
    (two.path / "checkpoints").mkdir()
    one.discard()
    assert not one.path.exists() and (two.path / "config.json").exists() and two.checkpoints.exists()


def test_discard_leaves_the_folder_that_was_there(tmp_path):
    """--out . or an empty folder made by hand: it is the user's, only what was put into it goes."""
    (tmp_path / "mine").mkdir()
    start(tmp_path / "mine", GIVEN, resume=False).discard()
    assert (tmp_path / "mine").is_dir() and list((tmp_path / "mine").iterdir()) == []


def test_a_full_disk_at_the_first_file_leaves_nothing(tmp_path, monkeypatch):
    """An empty folder would be in the way of the next try."""

    def no_space(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_module, "write_atomically", no_space)
    with pytest.raises(OSError, match="No space left"):
        start(tmp_path / "run", GIVEN, resume=False)
    assert list(tmp_path.iterdir()) == []


HOLD = """
import sys, time
from pathlib import Path
from gradproof.train.run import Run, lock
with lock(Run(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_processes_do_not_share_a_run(tmp_path):
    """Both would write checkpoints of one name; a lock that outlives a killed process would end the run for good."""
    run = start(tmp_path / "run", GIVEN, resume=False)
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        sentence = r"another process is training in .*run; wait for it or choose another --out"
        with pytest.raises(ValueError, match=sentence), lock(run):
            pass
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    for _ in range(2):
        with lock(run):
            pass
