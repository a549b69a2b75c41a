"""Pool: local ranks that are started once and then run one function after another."""

from __future__ import annotations

import datetime
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

ENDING = 0.2  # seconds, in which a process that was killed is known to have ended


class RankFailed(Exception):
    """A function failed on a rank. `kind` is the exception's name there, `trace` where it was; `missing` are those
    that gave no answer in time."""

    def __init__(self, rank: int, kind: str, message: str, trace: str = "", missing: tuple[int, ...] = ()):
        super().__init__(f"rank {rank}: {kind}: {message}" if kind else f"rank {rank} {message}")
        self.rank, self.kind, self.message, self.trace, self.missing = rank, kind, message, trace, missing


class Pool:
    """`pool.run(function, *args)` calls it on every rank, where the process group is ready (gloo, one thread), and
    returns the results by rank. The function is found by its name, so it stands at the top of a module."""

    def __init__(self, ranks: int, timeout: float = 60.0):
        self.ranks, self.timeout, self._grace = ranks, timeout, 0.5
        self._workers: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, grace: float = 0.5
    ) -> list[Any]:
        """RankFailed where it fails on one of them, or where they take longer than `seconds`; the others then have
        `grace` seconds to end by themselves, and the next call starts all ranks anew."""
        self._grace = grace
        if not self._workers:
            self._start()
        message = pickle.dumps((function, args))
        for _, pipe in self._workers:
            pipe.send_bytes(message)
        results: dict[int, Any] = {}
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._workers)}
        while len(results) < self.ranks:
            ready = wait([pipe for pipe, rank in pipes.items() if rank not in results], seconds)
            if not ready:
                missing = [rank for rank in range(self.ranks) if rank not in results]
                self.close()
                raise RankFailed(missing[0], "", f"gave no answer within {seconds:.0f} s", missing=tuple(missing))
            for pipe in ready:
                results[pipes[pipe]] = self._answer(pipes[pipe], pipe)  # type: ignore[index]
        return [results[rank] for rank in range(self.ranks)]

    def _answer(self, rank: int, pipe: Any) -> Any:
        try:
            right, answer = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            process = self._workers[rank][0]
            process.join(5)
            self._ended(rank, process.exitcode)
        if not right:
            for other, (process, _) in enumerate(self._workers):
                process.join(ENDING if other != rank else 0)
                if process.exitcode is not None:  # which is why this one failed
                    self._ended(other, process.exitcode)
            self.close()
            raise RankFailed(rank, *answer)
        return answer

    def _ended(self, rank: int, code: int | None) -> NoReturn:
        self.close()
        raise RankFailed(rank, "", f"ended with exit code {code}") from None

    def _start(self) -> None:
        context = get_context("spawn")
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.ranks):
            own, other = context.Pipe()
            about = (rank, self.ranks, self._store.port, self.timeout, other)
            process = context.Process(target=_work, args=about, daemon=True)
            process.start()
            other.close()
            self._workers.append((process, own))

    def close(self) -> None:
        """Ends the ranks."""
        for _, pipe in self._workers:
            pipe.close()
        self._workers, workers = [], self._workers
        for process, _ in workers:
            process.join(self._grace)
            if process.is_alive():
                process.kill()
                process.join()


def _work(rank: int, ranks: int, port: int, timeout: float, pipe: Connection) -> None:
    """What a rank does: functions, until the pipe is closed."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    store = TCPStore("127.0.0.1", port, is_master=False)
    seconds = datetime.timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=seconds)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            message = pipe.recv_bytes()
            try:
                function, args = pickle.loads(message)
                answer: Any = (True, function(*args))
            except (Exception, SystemExit) as error:
                about = " ".join(str(error).split())
                answer = (False, (type(error).__name__, about, traceback.format_exc()))
            pipe.send_bytes(pickle.dumps(answer))
    os._exit(0)  # groups of ranks that are gone would be waited for
