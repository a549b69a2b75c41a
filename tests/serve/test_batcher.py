"""Batcher: who asks together is computed together, and everyone gets their own."""

import asyncio
import threading
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.rows import Rows
from gradproof.serve.batcher import Batcher, Busy
from gradproof.train.predictor import Predictions


def rows(*values):
    """Rows that carry a number each, by which their answers are recognised."""
    R = len(values)
    return Rows(np.zeros((R, 1), np.int32), np.array(values, np.float64)[:, None], np.full(R, -1), np.zeros((R, 0)))


class Echo:
    """A model that answers each row with its own number, and remembers its batches."""

    def __init__(self, fails_at=None):
        self.batches, self.threads, self.fails_at = [], set(), fails_at

    def __call__(self, given):
        values = given.numbers_RN[:, 0]
        self.batches.append(values.tolist())
        self.threads.add(threading.get_ident())
        if self.fails_at in values:
            raise ArithmeticError("no")
        return Predictions(values.astype(np.int64), *(np.stack([values] * 2, 1) for _ in range(4)))


def together(batcher, *requests):
    """The answers to requests that are made at once; an exception is an answer too."""

    async def ask():
        return await asyncio.gather(*(batcher(rows(*values)) for values in requests), return_exceptions=True)

    return asyncio.run(ask())


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    max_rows=st.sampled_from([1, 2, 7, 50, 8192]),
    inline=st.sampled_from([0, 3, 10**6]),
)
def test_each_caller_gets_its_own_rows(sizes, max_rows, inline):
    values, echo = iter(range(1000)), Echo()
    requests = [[next(values) for _ in range(size)] for size in sizes]
    batcher = Batcher(echo, max_rows, inline=inline)
    answers = together(batcher, *requests)
    batcher.close()
    assert [answer.decision_T.tolist() for answer in answers] == requests
    assert all(answer.gates_TE[:, 0].tolist() == request for answer, request in zip(answers, requests, strict=True))
    # Whole requests in their order, as many as fit, at least one.
    assert [*chain(*echo.batches)] == [*chain(*requests)]
    assert all(len(batch) <= max_rows or batch in requests for batch in echo.batches)
    assert batcher.waiting == 0


def test_who_asks_together_is_one_batch():
    echo = Echo()
    together(Batcher(echo), [1], [2, 3], [4])
    assert echo.batches == [[1, 2, 3, 4]]


def test_without_batching_every_request_is_a_forward():
    echo = Echo()
    together(Batcher(echo, max_rows=1), [1], [2, 3], [4])
    assert echo.batches == [[1], [2, 3], [4]]


def test_what_arrives_during_a_forward_is_the_next_batch():
    """The loop goes on while a forward runs in the thread."""
    release, echo = threading.Event(), Echo()

    def slow(given):
        assert release.wait(10)
        return echo(given)

    async def ask():
        batcher = Batcher(slow, inline=0)
        first = asyncio.create_task(batcher(rows(0)))
        while batcher.waiting or not first:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(batcher(rows(i))) for i in (1, 2, 3)]
        while batcher.waiting < 3:
            await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(first, *others)

    assert [answer.decision_T.tolist() for answer in asyncio.run(ask())] == [[0], [1], [2], [3]]
    assert echo.batches == [[0], [1, 2, 3]]


def test_small_batches_run_in_the_loop_and_large_ones_in_a_thread():
    echo = Echo()
    together(Batcher(echo, inline=2), [1, 2])
    assert echo.threads == {threading.get_ident()}
    together(Batcher(echo, inline=2), [1, 2, 3])
    assert len(echo.threads) == 2


@pytest.mark.parametrize("inline", [0, 100])
def test_an_error_reaches_its_batch_and_nobody_else(inline):
    echo = Echo(fails_at=5)
    answers = together(Batcher(echo, max_rows=2, inline=inline), [1], [2], [4], [5], [6], [7])
    assert [isinstance(answer, ArithmeticError) for answer in answers] == [False, False, True, True, False, False]
    assert answers[5].decision_T.tolist() == [7]


def test_a_caller_that_goes_away_costs_nobody():
    """Before its batch it is not computed; during it, its answer is dropped."""
    echo = Echo()

    async def ask():
        batcher = Batcher(echo, max_rows=1)
        tasks = [asyncio.create_task(batcher(rows(i))) for i in range(4)]
        while batcher.waiting < 4:
            await asyncio.sleep(0)
        tasks[2].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True), batcher.waiting

    answers, waiting = asyncio.run(ask())
    assert isinstance(answers[2], asyncio.CancelledError) and waiting == 0
    assert echo.batches == [[0], [1], [3]]


def test_a_full_queue_is_busy_and_recovers():
    echo = Echo()
    batcher = Batcher(echo, max_waiting=5)
    answers = together(batcher, [1, 2], [3, 4], [5, 6], [7])
    assert [isinstance(answer, Busy) for answer in answers] == [False, False, True, False]
    assert batcher.waiting == 0
    # One request larger than the queue is taken when nobody waits: it could never be otherwise.
    assert together(batcher, [1, 2, 3, 4, 5, 6, 7])[0].count == 7
