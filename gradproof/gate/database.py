"""An LMDB environment of JSON records, each in a named database.

Every write is one synced transaction: what was acknowledged survives kill -9 at any moment. Several processes may read
and write at once. No string gets in but through `safe`, so no secret can be in any file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.corrections import safe
from gradproof.gate.secrets import Redactor

PRIVATE = 0o600  # the mode of every file of a store


class NotThere(ValueError):
    """What is named does not exist."""


class Outdated(ValueError):
    """Somebody else came first: what was to be changed is no longer as it was."""


class Database:
    """Of `mebibytes` at most. Who derives from it says what may go when there is little room."""

    def __init__(self, folder: Path, mebibytes: int, names: tuple[str, ...], key: bytes = b""):
        self.folder, self.mebibytes, self.key = folder, mebibytes, key
        self.env = open_environment(folder, mebibytes, len(names))
        self.db = {name: self.env.open_db(name.encode()) for name in names}

    def write(self, change: Callable[[Any], None]) -> None:
        """`change` in one transaction, after making room if there is little."""
        from lmdb import MapFullError

        try:
            while True:
                try:
                    with self.env.begin(write=True) as txn:
                        self.make_room(txn)
                        change(txn)
                    return
                except MapFullError:  # freed pages may lie scattered: half of what may go goes, until it fits
                    if not self.halve():
                        raise
        except MapFullError:
            raise ValueError(
                f"the store {self.folder.parent} is full: {self.mebibytes} MiB of mistakes and of signals that were not"
                " learned yet; run `gradproof gate learn`, or make it larger with `gradproof gate init --size`"
            ) from None

    def make_room(self, txn: Any) -> None:
        """Drops what is beyond its bounds."""

    def halve(self) -> bool:
        """Drops half of what may go; False where nothing is left of it."""
        return False

    def put(self, txn: Any, name: str, key: bytes, record: dict[str, Any]) -> None:
        """Redacts once more, whoever wrote the record; what a decision has withheld already is not much."""
        redacted = safe(record, Redactor(self.key, most=inf))
        txn.put(key, json.dumps(redacted, ensure_ascii=False).encode(), db=self.db[name])

    def get(self, txn: Any, name: str, key: bytes) -> dict[str, Any] | None:
        stored = txn.get(key, db=self.db[name])
        return None if stored is None else json.loads(stored)

    def backwards(self, txn: Any, name: str, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """From the newest, or from the newest before `end`."""
        cursor = txn.cursor(self.db[name])
        alive = cursor.last() if end is None or not cursor.set_range(end) else cursor.prev()
        while alive:
            yield cursor.item()
            alive = cursor.prev()

    def next_number(self, txn: Any) -> int:
        """Signals are numbered: a clock may be set back."""
        number = 1 + int(txn.get(b"sequence", b"0", db=self.db["meta"]))
        txn.put(b"sequence", b"%d" % number, db=self.db["meta"])
        return number

    def used(self) -> float:
        """The share of the map that is in use."""
        with self.env.begin() as txn:
            return self.used_by(txn)

    def used_by(self, txn: Any) -> float:
        stats = [txn.stat(db) for db in self.db.values()]
        pages = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
        return pages * stats[0]["psize"] / self.env.info()["map_size"]


def open_environment(folder: Path, mebibytes: int, databases: int) -> Any:
    """An LMDB environment whose every commit is synced; readers that died are cleared away."""
    lmdb = library()
    try:
        env = lmdb.open(str(folder), map_size=mebibytes << 20, max_dbs=databases, max_readers=512, mode=PRIVATE)
        env.reader_check()
    except lmdb.Error as error:
        raise ValueError(f"the store {folder.parent} cannot be opened: {error}") from None
    return env


def library() -> Any:
    """lmdb, or one sentence where it is missing."""
    try:
        import lmdb
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    return lmdb


def new_id(now: float) -> str:
    """Ordered by time, and no two the same."""
    return f"{int(now * 1000):012x}{os.urandom(4).hex()}"


def time_of(id: str) -> float:
    """When an id was made; ValueError for what is none."""
    return int(id[:12], 16) / 1000
