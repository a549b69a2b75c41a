"""Reloads a file when people change it while the gate decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Watched(Generic[Value]):
    """What a file holds; a change that cannot be read changes nothing, and `complaint` says why."""

    def __init__(self, path: Path, read: Callable[[Path], Value], what: str):
        self._path, self._read, self._what = path, read, what
        self._stamp, self.complaint = self._changed(), ""
        self.value = read(path)

    def look(self) -> Value:
        """Reads it again where it has changed."""
        stamp = self._changed()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self.value, self.complaint = self._read(self._path), ""
            except (OSError, ValueError) as error:
                self.complaint = f"{error}; keeping the previous {self._what}"
        return self.value

    def _changed(self) -> tuple[int, int, int]:
        try:
            there = self._path.stat()
        except OSError:
            return 0, 0, 0
        return there.st_ino, there.st_mtime_ns, there.st_size
