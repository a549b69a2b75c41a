"""Batching: processes concurrent requests together.

Whatever has arrived by the end of the last batch is the next one; nobody waits for a batch to fill. What may wait is
bounded: beyond that a request is refused at once, and costs next to nothing.

Small batches run in the event loop itself: handing them to a thread costs more than it gains, since both sides take
turns at Python's lock. A batch that would keep the loop from its other work for long runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Busy(Exception):
    """The queue is full; asking again later may succeed."""


class Batching(Generic[Item, Result]):
    """`await batching(item)`: the result of this item, computed together with those of other callers.

    `work` takes the items of a batch and returns their results. A batch takes items in their order, as many as fit into
    `most` and always at least one: with `most=1` each is worked on alone. An error reaches every caller of its batch,
    and nobody else."""

    def __init__(
        self,
        work: Callable[[list[Item]], Sequence[Result]],
        most: int,
        most_waiting: int,
        *,
        inline: int,
        size: Callable[[Item], int] = lambda item: 1,
        unit: str = "requests",
    ):
        self.work, self.most, self.most_waiting, self.inline = work, most, most_waiting, inline
        self.size, self.unit = size, unit
        self.waiting = 0  # the sizes of what is in the queue
        self._queue: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "batch")  # starts with the first batch that it is given

    async def __call__(self, item: Item) -> Result:
        size = self.size(item)
        if self.waiting and self.waiting + size > self.most_waiting:
            raise Busy(f"{self.waiting:,} {self.unit} are waiting")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        self.waiting += size
        if self._worker is None:
            self._worker = asyncio.create_task(self._run())
        return await future

    def close(self) -> None:
        """Lets the thread end."""
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        """Works on batches until nobody waits."""
        try:
            while self._queue:
                await self._arrivals()
                batch = self._take()
                if not batch:
                    continue
                try:
                    results = await self._work([item for item, _ in batch])
                except Exception as error:
                    _fail([future for _, future in batch], error)
                else:
                    _answer([future for _, future in batch], results)
        finally:
            self._worker = None

    async def _arrivals(self) -> None:
        """Lets the loop read what clients have already sent, until that is all or fills a batch."""
        before = -1
        while before != len(self._queue):
            before = len(self._queue)
            await asyncio.sleep(0)
            if self.waiting >= self.most:
                break

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch, taken = [], 0
        while self._queue and (not batch or taken + self.size(self._queue[0][0]) <= self.most):
            item, future = self._queue.popleft()
            self.waiting -= self.size(item)
            if not future.done():  # else its caller went away
                batch.append((item, future))
                taken += self.size(item)
        return batch

    async def _work(self, items: list[Item]) -> Sequence[Result]:
        if sum(map(self.size, items)) <= self.inline:
            return self.work(items)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.work, items)


def _answer(futures: list[asyncio.Future[Result]], results: Sequence[Result]) -> None:
    for future, result in zip(futures, results, strict=True):
        if not future.done():
            future.set_result(result)


def _fail(futures: list[asyncio.Future[Result]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
