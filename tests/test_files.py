import errno
import os

import pytest

from gradproof import files
from gradproof.files import publish, sync, write_atomically


def fails(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_replaces_the_text(tmp_path):
    """UTF-8 whatever the locale says, and nothing else in the folder."""
    path = tmp_path / "record.json"
    write_atomically(path, "first\n")
    write_atomically(path, "γ = 1\n")
    assert path.read_bytes() == "γ = 1\n".encode() and [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("where", ["os.fsync", "os.replace", "builtins.open"])
def test_on_an_error_it_is_as_it_was(tmp_path, monkeypatch, where):
    """Opening the file itself for writing would empty it first."""
    path = tmp_path / "record.json"
    write_atomically(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(where, fails)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, "new")
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path):
    """The error comes in the middle of writing, and is no OSError."""
    path = tmp_path / "record.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new" + "\ud800")
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_synced_before_it_has_its_name(tmp_path, monkeypatch):
    """Renamed first, a power cut would leave the name without the text."""
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    write_atomically(tmp_path / "record.json", "text")
    assert events == ["sync", "rename", "sync"]  # the file, its name, the folder that holds the name


def folder(path, text):
    path.mkdir()
    (path / "a").write_text(text)
    (path / "b").write_text(text)
    return path


def test_publish(tmp_path):
    """A folder under its name, in place of an older one."""
    publish(folder(tmp_path / "aside", "old"), tmp_path / "name")
    publish(folder(tmp_path / "aside", "new"), tmp_path / "name")
    assert [entry.name for entry in tmp_path.iterdir()] == ["name"]
    assert {entry.name: entry.read_text() for entry in (tmp_path / "name").iterdir()} == {"a": "new", "b": "new"}


def test_publish_syncs_before_the_name(tmp_path, monkeypatch):
    """Every file and the folder itself; then the folder that holds the new name."""
    events = []
    rename = os.rename
    monkeypatch.setattr(files, "sync", lambda path: events.append(path.name))
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), rename(a, b)))
    publish(folder(tmp_path / "aside", "x"), tmp_path / "name")
    assert sorted(events[:2]) == ["a", "b"] and events[2:] == ["aside", "rename", tmp_path.name]


def test_an_older_folder_stays_until_the_new_one_is_synced(tmp_path, monkeypatch):
    """Removed first, a full disk would cost both."""
    folder(tmp_path / "name", "old")
    monkeypatch.setattr(files, "sync", fails)
    with pytest.raises(OSError, match="No space left"):
        publish(folder(tmp_path / "aside", "new"), tmp_path / "name")
    assert (tmp_path / "name/a").read_text() == "old"


def test_sync(tmp_path):
    """Files and folders; no descriptor is left open."""
    (tmp_path / "file").write_text("x")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for _ in range(5):
        sync(tmp_path / "file")
        sync(tmp_path)
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "missing")
