"""The store: where it lies by default, who may read it, and the warning about one inside the project."""

import json
import os
from pathlib import Path

import pytest
from made_calls import rows
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.gate import founding
from gradproof.gate.calls import Call
from gradproof.gate.decider import Decider
from gradproof.gate.place import default_folder, warning
from gradproof.gate.store import SETTINGS, Store

DEFAULT = Path("gradproof/gates/default")


@pytest.fixture
def gate(monkeypatch, trained, tmp_path):
    """gate("init", …): its result, in a home and a project of its own and with a first model that need not train."""
    monkeypatch.setattr(founding, "starter_rows", lambda seed: rows(40))
    monkeypatch.setattr(founding, "fit_rows", lambda rows, **options: trained.copy())
    project = tmp_path / "project" / "src"
    project.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("GRADPROOF_GATE", raising=False)

    def call(*args):
        result = CliRunner().invoke(app, ["gate", *map(str, args)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return call


def modes(folder):
    return {path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("state", "expected"),
    [("/srv/state", "/srv/state"), ("", "/home/me/.local/state"), ("state", "/home/me/.local/state")],
    ids=["set", "empty", "relative"],
)
def test_the_default_folder(monkeypatch, state, expected):
    """A relative XDG_STATE_HOME is invalid, and would put the store into the project."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert default_folder() == Path(expected) / DEFAULT


def test_the_default_store_is_outside_the_project_and_private(gate, tmp_path, monkeypatch):
    """Every file of a store that has decided, been corrected and learned, whatever the umask."""
    before = os.umask(0)
    try:
        assert "warning" not in gate("init").stderr
        answer = json.loads(gate("decide", '{"command": "git push origin x"}').stdout)
        gate("feedback", answer["id"], "override_allow")
        assert gate("learn").exit_code == 0
    finally:
        os.umask(before)
    store = tmp_path / "me/.local/state" / DEFAULT
    assert store.stat().st_mode & 0o777 == 0o700 and list(Path.cwd().iterdir()) == []
    found = modes(store)
    assert {"store.json", "rules.toml", "redaction.key", "learner.lock", "journal/data.mdb"} <= set(found)
    folders = {"journal", "versions", "audit"}
    assert {mode for name, mode in found.items() if name in folders} == {0o700}
    assert {mode for name, mode in found.items() if name not in folders} == {0o600}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = gate("status")
    assert result.exit_code == 2 and str(tmp_path / "state" / DEFAULT) in result.stderr


def test_init_corrects_the_modes_of_a_store(gate, store):
    store.close()
    link = store.folder / "link"
    link.symlink_to(store.folder.parent / "elsewhere.toml")
    link.resolve().write_text("")
    for path in (store.folder, *store.folder.rglob("*")):
        path.chmod(0o755)
    assert gate("init", "--store", store.folder, "--size", "17").exit_code == 0
    found = modes(store.folder)
    assert found.pop("link") == 0o755
    assert set(found.values()) == {0o600, 0o700} and store.folder.stat().st_mode & 0o777 == 0o700
    store.__init__(store.folder, store.clock)


def test_a_store_inside_the_project_is_warned_of(gate, tmp_path):
    """By commands that change the gate, in one sentence; they do their work all the same."""
    result = gate("init", "--store", "gate")
    (said,) = [line for line in result.stderr.splitlines() if "warning" in line]
    assert said.startswith(f"gradproof: warning: the store gate is inside the project {tmp_path / 'project'}, where")
    assert said.endswith(str(tmp_path / "me/.local/state" / DEFAULT)) and result.exit_code == 0
    answer = gate("decide", '{"command": "git push origin x"}', "--store", "gate")
    assert "warning" not in answer.stderr
    remarked = gate("feedback", json.loads(answer.stdout)["id"], "override_allow", "--store", "../src/gate")
    assert remarked.exit_code == 0 and "warning: the store ../src/gate is inside the project" in remarked.stderr
    assert "warning" not in gate("status", "--store", "gate").stderr
    assert "warning" in gate("corrections", "retract", "c1", "--store", "gate").stderr


def test_where_a_store_is_inside(gate, tmp_path, monkeypatch):
    """The project is the nearest folder with .git, else the working directory; a home is none."""
    assert warning(tmp_path / "project" / "gate") and not warning(tmp_path / "gate")
    (tmp_path / "link").symlink_to(tmp_path / "project")
    assert warning(tmp_path / "link" / "gate")
    (tmp_path / "plain" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "plain" / "below")
    assert warning(Path("gate")) and not warning(Path("../gate"))
    (tmp_path / "me").mkdir()
    monkeypatch.chdir(tmp_path / "me")
    assert not warning(default_folder())


def test_the_environment_names_a_store(gate, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADPROOF_GATE", str(tmp_path / "mine"))
    assert gate("init").exit_code == 0 and (tmp_path / "mine" / SETTINGS).is_file()
    assert json.loads(gate("status", "--json", "-").stdout)["store"] == str(tmp_path / "mine")


def test_the_floor_knows_a_store_by_a_relative_path(store, monkeypatch):
    """`--store ../gate` is the same folder."""
    (store.folder.parent / "project").mkdir()
    monkeypatch.chdir(store.folder.parent / "project")
    store.close()
    decider = Decider(Store(Path("../gate"), store.clock))
    answer = decider.decide(Call("Write", {"file_path": f"{store.folder}/rules.toml", "content": ""}, os.getcwd()))
    decider.close()
    decider.store.close()
    assert answer.decision == "block" and "the gate's own" in answer.reason
    store.__init__(store.folder, store.clock)
