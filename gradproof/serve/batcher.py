"""Batcher: concurrent requests, one forward.

A forward costs almost as much for one row as for a hundred. So whatever has arrived by the end of the last forward is
the next batch; nobody waits for a batch to fill.

Small batches run in the event loop itself: handing them to a thread costs more than it gains, since both sides take
turns at Python's lock. A batch that would keep the loop from its other work for long runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gradproof.data.rows import Rows
from gradproof.train.predictor import CHUNK, Predictions

WAITING = 1 << 16  # rows in the queue; each takes a few hundred bytes
INLINE = 256  # rows that run in the event loop: about 3 ms of a nano model

Request = tuple[Rows, "asyncio.Future[Predictions]"]


class Busy(Exception):
    """The queue is full; asking again later may succeed."""


class Batcher:
    """`await batcher(rows)`: the predictions of these rows, computed together with those of other callers.

    A batch takes whole requests in their order, as many as fit into `max_rows` and always at least one: with
    `max_rows=1` every request is a forward of its own. An error in a forward reaches every caller of its batch, and
    nobody else."""

    def __init__(
        self,
        predict: Callable[[Rows], Predictions],
        max_rows: int = CHUNK,
        max_waiting: int = WAITING,
        inline: int = INLINE,
    ):
        self.predict, self.max_rows, self.max_waiting, self.inline = predict, max_rows, max_waiting, inline
        self.waiting = 0  # rows in the queue
        self._queue: deque[Request] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "forward")  # starts with the first batch that it is given

    async def __call__(self, rows: Rows) -> Predictions:
        if self.waiting and self.waiting + rows.count > self.max_waiting:
            raise Busy(f"{self.waiting:,} rows are waiting")
        future: asyncio.Future[Predictions] = asyncio.get_running_loop().create_future()
        self._queue.append((rows, future))
        self.waiting += rows.count
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await future

    def close(self) -> None:
        """Lets the thread end."""
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        """Runs batches until nobody waits."""
        try:
            while self._queue:
                await self._arrivals()
                batch = self._take()
                if not batch:
                    continue
                try:
                    _answer(batch, await self._forward(_joined([rows for rows, _ in batch])))
                except Exception as error:
                    _fail(batch, error)
        finally:
            self._worker = None

    async def _arrivals(self) -> None:
        """Lets the loop read what clients have already sent, until that is all or fills a batch."""
        before = -1
        while before != len(self._queue):
            before = len(self._queue)
            await asyncio.sleep(0)
            if self.waiting >= self.max_rows:
                break

    def _take(self) -> list[Request]:
        batch, count = [], 0
        while self._queue and (not batch or count + self._queue[0][0].count <= self.max_rows):
            rows, future = self._queue.popleft()
            self.waiting -= rows.count
            if not future.done():  # else its caller went away
                batch.append((rows, future))
                count += rows.count
        return batch

    async def _forward(self, rows: Rows) -> Predictions:
        if rows.count <= self.inline:
            return self.predict(rows)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.predict, rows)


def _joined(parts: list[Rows]) -> Rows:
    return parts[0] if len(parts) == 1 else Rows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _answer(batch: list[Request], predictions: Predictions) -> None:
    start = 0
    for rows, future in batch:
        if not future.done():
            future.set_result(predictions.slice(start, start + rows.count))
        start += rows.count


def _fail(batch: list[Request], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
