"""Atomic writes: a file is written under a temporary name, synced, then renamed."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, text: str, *, new: bool = False, mode: int | None = None) -> None:
    """Replaces the contents of `path`, or leaves it as it was. With `new`, raises FileExistsError if it exists. Without
    `mode`, the file gets the default permissions.
    """
    aside = path.with_name(f".partial-{path.name}")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(aside, path)
            aside.unlink()
        else:
            os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def claim(path: Path) -> Path | None:
    """Makes a folder and its parents. Returns the outermost folder that it created, or None if `path` existed."""
    made = None if path.exists() else path
    while made is not None and not made.parent.exists():
        made = made.parent
    path.mkdir(parents=True, exist_ok=True)
    return made


def take_back(path: Path, made: Path | None) -> None:
    """Deletes the contents of `path`, then `path` and its parents up to `made`, as far as they are empty."""
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with suppress(OSError):
        for folder in (path, *path.parents):
            if made is None or not folder.is_relative_to(made):
                break
            folder.rmdir()


def publish(aside: Path, folder: Path) -> None:
    """Syncs a finished folder and its files, and renames it to `folder`."""
    for file in aside.iterdir():
        sync(file)
    sync(aside)
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(aside, folder)
    sync(folder.parent)


def sync(path: Path) -> None:
    """Calls fsync on a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
