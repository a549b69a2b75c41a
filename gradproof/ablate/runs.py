"""Runs the units of a study in parallel: processes with one thread each, which take the next unit when they are done.

A worker whose parent is gone stops at once, so nothing goes on behind a study that was killed; what it was at resumes
from its last checkpoint. SIGTERM lets a run save first.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

from gradproof.ablate.unit import Unit, work

PATIENCE = 30.0  # seconds for a run to save when it is told to stop


class Failed(Exception):
    """A run that cannot go on, and why."""


class StudyWatch(Protocol):
    """Who looks on at all runs."""

    def started(self, unit: Unit) -> None: ...
    def moved(self, unit: Unit, done: int, total: int) -> None: ...
    def ended(self, unit: Unit, result: dict[str, Any]) -> None: ...


class _Worker(NamedTuple):
    process: Any
    pipe: Connection


def run_all(unfinished: Sequence[Unit], jobs: int, watch: StudyWatch) -> None:
    """Every unit, `jobs` at a time; the first that fails stops the others, each of which can go on later."""
    waiting = list(reversed(unfinished))
    if not waiting:
        return
    with _workers(min(jobs, len(waiting))) as workers:
        busy: dict[Connection, Unit] = {}
        for worker in workers:
            _next(worker.pipe, waiting, busy, watch)
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                _hear(pipe, waiting, busy, watch)


def _next(pipe: Connection, waiting: list[Unit], busy: dict[Connection, Unit], watch: StudyWatch) -> None:
    if waiting:
        busy[pipe] = waiting.pop()
        watch.started(busy[pipe])
        pipe.send(busy[pipe])


def _hear(pipe: Connection, waiting: list[Unit], busy: dict[Connection, Unit], watch: StudyWatch) -> None:
    unit = busy[pipe]
    try:
        kind, *said = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise Failed(f"{unit.name}: its process died, possibly out of memory") from None
    if kind == "moved":
        watch.moved(unit, *said)
    elif kind == "failed":
        raise Failed(f"{unit.name}: {said[0]}")
    else:
        del busy[pipe]
        watch.ended(unit, said[0])
        _next(pipe, waiting, busy, watch)


@contextmanager
def _workers(count: int) -> Iterator[list[_Worker]]:
    """Started fresh rather than forked: torch's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    workers = []
    try:
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            with _one_thread():
                process.start()
            there.close()
            workers.append(_Worker(process, here))
        yield workers
    except BaseException:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(PATIENCE)
        raise
    finally:
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries read how many threads to use when they are loaded, in the process that is being started."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _serve(pipe: Connection) -> None:
    """A worker: unit after unit until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal; the parent tells us what to do
    os.setsid()
    inbox = _inbox(pipe)
    send = threading.Lock()

    def say(*message: Any) -> None:
        with send:
            pipe.send(message)

    signal.signal(signal.SIGTERM, _stop)
    while True:
        unit = inbox()
        try:
            result = work(unit, _progress(say))
        except KeyboardInterrupt:
            os._exit(130)
        except Exception as error:
            say("failed", " ".join(str(error).split()) or type(error).__name__)
        else:
            say("ended", result)


def _inbox(pipe: Connection) -> Callable[[], Unit]:
    """The next unit. A thread listens all the time: when the parent is gone, so is this process."""
    import queue

    units: queue.Queue[Unit] = queue.Queue()

    def listen() -> None:
        while True:
            try:
                units.put(pipe.recv())
            except (EOFError, OSError):
                os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return units.get


def _progress(say: Callable[..., None]) -> Callable[[int, int], None]:
    """At most a hundred messages a run."""
    told = -1

    def moved(done: int, total: int) -> None:
        nonlocal told
        if 100 * done // max(total, 1) > told:
            told = 100 * done // max(total, 1)
            say("moved", done, total)

    return moved


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
