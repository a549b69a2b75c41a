"""Writes decisions to the journal from a separate thread, grouped into commits."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from gradproof.gate.journal import Journal

WAITING = 10_000  # decisions that may wait for the disk
TOGETHER = 256  # in one commit
MOMENT = 0.05  # seconds of decisions that are written together


class DecisionWriter:
    """`put` never waits for the disk, `flush` does. `ask_seconds` is how long a question waits."""

    def __init__(self, journal: Journal, ask_seconds: Callable[[], float]):
        self._journal, self._ask_seconds = journal, ask_seconds
        self._waiting: queue.Queue[dict[str, Any]] = queue.Queue(WAITING)
        self._hurry, self._closing = threading.Event(), False
        self.error: ValueError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, decision: dict[str, Any]) -> None:
        self._waiting.put(decision)

    def flush(self) -> None:
        self._hurry.set()
        self._waiting.join()
        self._hurry.clear()
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def close(self) -> None:
        self._closing = True
        self._hurry.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing or not self._waiting.empty():
            self._hurry.wait(MOMENT)
            batch: list[dict[str, Any]] = []
            while len(batch) < TOGETHER and not self._waiting.empty():
                batch.append(self._waiting.get())
            if not batch:
                if self._hurry.is_set() and not self._closing:
                    time.sleep(0.001)  # whoever hurries has not looked yet
                continue
            try:
                self._journal.record(batch, self._ask_seconds())
            except ValueError as error:
                self.error = error
            except Exception as error:  # a full disk, for one: decisions go on, and whoever flushes is told
                self.error = ValueError(f"decisions could not be written: {error}")
            for _ in batch:
                self._waiting.task_done()
