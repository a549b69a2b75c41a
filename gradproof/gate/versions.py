"""Versions of the gate's model: weights, metadata, optimizer state, and which one serves.

They have an LMDB environment of their own, so that writing megabytes of weights never holds up a decision or a signal.
A version and the switch to it are one synced transaction: the serving version is whole at any moment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.gate.database import NotThere, Outdated, open_environment

KEEP = 8  # versions, and the one that serves


class Version(NamedTuple):
    """`record` is plain data: the policy, scores on the held-back set, when, why, from which version."""

    number: int
    record: dict[str, Any]


class Versions:
    """`Versions(folder, 1024)`: MiB at most."""

    def __init__(self, folder: Path, mebibytes: int):
        self.folder, self.mebibytes = folder, mebibytes
        self.env = open_environment(folder, mebibytes, 4)
        names = ("meta", "records", "weights", "optimizer")
        self._meta, self._records, self._weights, self._optimizer = (self.env.open_db(n.encode()) for n in names)

    def serving(self) -> int:
        """The number of the version that decides; 0 before there is one."""
        with self.env.begin() as txn:
            return int(txn.get(b"serving", b"0", db=self._meta))

    def add(
        self, weights: bytes, record: dict[str, Any], optimizer: bytes = b"", *, after: int | None = None
    ) -> int | None:
        """Keeps a version, and lets it serve from this moment on. With `after`, only where that one still serves:
        otherwise nothing is kept, and None is returned."""
        from lmdb import MapFullError

        try:
            with self.env.begin(write=True) as txn:
                if after is not None and int(txn.get(b"serving", b"0", db=self._meta)) != after:
                    return None
                number = 1 + int(txn.get(b"newest", b"0", db=self._meta))
                txn.put(b"newest", b"%d" % number, db=self._meta)
                txn.put(_key(number), weights, db=self._weights)
                txn.put(_key(number), json.dumps(record).encode(), db=self._records)
                txn.put(_key(number), optimizer, db=self._optimizer)
                txn.put(b"serving", b"%d" % number, db=self._meta)
                self._prune(txn)
        except MapFullError:
            raise ValueError(
                f"the store {self.folder.parent} has no room for another version in its {self.mebibytes} MiB"
            ) from None
        return number

    def get(self, number: int) -> Version:
        with self.env.begin() as txn:
            stored = txn.get(_key(number), db=self._records)
        if stored is None:
            kept = ", ".join(str(version.number) for version in self.all()) or "none"
            raise NotThere(f"there is no version {number}; the versions kept are {kept}")
        return Version(number, json.loads(stored))

    def weights(self, number: int) -> bytes:
        with self.env.begin() as txn:
            return txn.get(_key(number), db=self._weights)

    def optimizer(self, number: int) -> bytes:
        """The optimizer's state that goes with a version; empty where it starts anew."""
        with self.env.begin() as txn:
            return txn.get(_key(number), b"", db=self._optimizer)

    def all(self) -> list[Version]:
        """The versions kept, oldest first."""
        with self.env.begin() as txn:
            return [Version(int.from_bytes(key, "big"), json.loads(v)) for key, v in txn.cursor(self._records)]

    def serve(self, number: int, after: int) -> None:
        """Lets a version serve that is kept; ValueError where another one than `after` serves by now."""
        self.get(number)
        with self.env.begin(write=True) as txn:
            now = int(txn.get(b"serving", b"0", db=self._meta))
            if now != after:
                raise Outdated(f"version {now} serves by now, not {after}; look at `gate status` and try again")
            txn.put(b"serving", b"%d" % number, db=self._meta)

    def _prune(self, txn: Any) -> None:
        """The newest few, and the one that serves. Only the newest two keep an optimizer: it is twice the weights."""
        serving = txn.get(b"serving", db=self._meta)
        numbers = [int.from_bytes(key, "big") for key, _ in txn.cursor(self._records)]
        for number in numbers[:-KEEP]:
            if b"%d" % number != serving:
                for db in (self._records, self._weights, self._optimizer):
                    txn.delete(_key(number), db=db)
        for number in numbers[:-2]:
            if b"%d" % number != serving:
                txn.delete(_key(number), db=self._optimizer)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")
