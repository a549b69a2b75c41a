"""Pulse: detects that a rank is dead or hung, and names it.

A thread of each rank writes a record to the store twice a second: that the process lives, how far its main thread has
come, and whether that waits for the others. A rank whose record no longer changes is dead or stopped. One that lives,
makes no progress and waits for nobody is hung.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

PERIOD = 0.5  # seconds between two records
SILENCE = 3 * PERIOD  # after which a rank is taken for dead
STOPPED = 1  # exit code


class RankLost(Exception):
    """Another rank is dead, hung or has stopped; the sentence names it. `told` where nobody else need say so."""

    def __init__(self, sentence: str, told: bool = False):
        super().__init__(sentence)
        self.told = told


class Blame(NamedTuple):
    """The ranks that are to blame for a stop, and why, in words; `told` where they have said so themselves."""

    ranks: list[int]
    sentence: str
    told: bool = False


class Pulse:
    """`store` is a connection of its own. `timeout` seconds without progress, while watched, end the process."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: float):
        self.store, self.rank, self.ranks, self.timeout = store, rank, ranks, timeout
        self.where, self.advice = "", ""
        self._beats, self._progress, self._waits, self._ended = 0, 0, False, ""
        self._moved, self._watched = time.monotonic(), False
        self._stop = threading.Event()
        self._publish()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    @property
    def patience(self) -> float:
        """A little less than the timeout, so that the run has ended by then."""
        return max(self.timeout - 5.0, 0.6 * self.timeout)

    def progress(self, where: str) -> None:
        """The main thread has come this far."""
        self.where, self._moved = where, time.monotonic()
        self._progress += 1

    @contextmanager
    def watched(self, on: bool = True) -> Iterator[None]:
        """Within, the main thread makes progress at least every `timeout` seconds; `on` false lifts that for a time."""
        before, self._watched, self._moved = self._watched, on, time.monotonic()
        try:
            yield
        finally:
            self._watched, self._moved = before, time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, the main thread waits for other ranks."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def end(self, sentence: str) -> None:
        """This rank ends, and why: others then do not take it for dead."""
        self._ended = sentence
        with suppress(Exception):
            self._publish()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2 * PERIOD)

    def records(self) -> dict[int, dict[str, Any]]:
        """What each of the other ranks wrote last; none of a store that does not answer."""
        keys = {rank: f"pulse/{rank}" for rank in range(self.ranks) if rank != self.rank}
        try:
            return {rank: json.loads(self.store.get(key)) for rank, key in keys.items() if self.store.check([key])}
        except Exception:
            return {}

    def silent(self) -> list[int]:
        """Ranks that write no more. Takes some seconds, in which this one writes: others look for it too."""
        first = self.records()
        for _ in range(round(SILENCE / PERIOD)):
            time.sleep(PERIOD)
            with suppress(Exception):
                self._publish()
        second = self.records()
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        return [r for r in others if not second.get(r, {}).get("ended") and first.get(r) == second.get(r)]

    def blame(self) -> Blame:
        """Who keeps this rank waiting, or made its connection fail. Meanwhile this rank is not hung itself."""
        self._moved = time.monotonic()
        with self.waiting():
            dead, records = self.silent(), self.records()
        ended = {rank: record["ended"] for rank, record in records.items() if record["ended"]}
        reasons = {rank: why for rank, why in ended.items() if not why.startswith("because ")}
        if dead:
            # All ranks are at the same step, and what the dead one wrote last may be from steps ago.
            when = f" at {self.where}" if self.where else ""
            return Blame(dead, "; ".join(f"rank {rank} does not answer{when}" for rank in dead))
        if reasons:
            told = "; ".join(f"rank {rank} stopped: {why}" for rank, why in reasons.items())
            return Blame(list(reasons), told, told=True)
        hung = [rank for rank, record in records.items() if not record["waits"] and not record["ended"]]
        if hung:
            told = [f"rank {rank}{_at(records[rank])} made no progress for {self.patience:.0f} s" for rank in hung]
            return Blame(hung, "; ".join(told))
        return Blame([], "the connection to the other ranks failed")

    def speaks(self, blamed: list[int]) -> bool:
        """Whether this rank is the one that says it: the first that is not to blame."""
        return self.rank == next((rank for rank in range(self.ranks) if rank not in blamed), self.rank)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            with suppress(Exception):
                self._publish()
            if self._watched and time.monotonic() - self._moved > self.patience:
                self._give_up()

    def _publish(self) -> None:
        self._beats += 1
        record = {"beats": self._beats, "progress": self._progress, "where": self.where, "waits": self._waits}
        record |= {"ended": self._ended, "pid": os.getpid(), "host": socket.gethostname()}
        self.store.set(f"pulse/{self.rank}", json.dumps(record))

    def _give_up(self) -> None:
        """No progress: the process ends from this thread, because the main thread cannot."""
        if not self._waits:
            self._say(f"rank {self.rank}{_at({'where': self.where})} made no progress for {self.patience:.0f} s")
            self._leave()
        blamed = self.blame()
        if self.speaks(blamed.ranks):
            self._say(blamed.sentence)
            self._kill(blamed.ranks)
        self._leave()

    def _leave(self) -> None:
        self.end("because another rank failed" if self._waits else "it made no progress")
        os._exit(STOPPED)

    def _say(self, sentence: str) -> None:
        print(f"gradproof: {sentence}{self.advice}", file=sys.__stderr__, flush=True)

    def _kill(self, ranks: list[int]) -> None:
        """Ranks on this machine that no longer answer: nothing else would end them before the launcher gives up."""
        for rank, record in self.records().items():
            if rank in ranks and record["host"] == socket.gethostname():
                with suppress(OSError):
                    os.kill(record["pid"], signal.SIGKILL)


def _at(record: dict[str, Any] | None) -> str:
    return f", at {record['where']}," if record and record["where"] else ""
