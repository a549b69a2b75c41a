"""Reads many calls in several processes: a call takes half a millisecond, and a gate starts with thousands."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import current_process, get_context
from typing import TypeVar

LEAST = 4000  # calls, below which starting processes takes longer than reading
CHUNK = 250
MOST_PROCESSES = 8

A = TypeVar("A")
B = TypeVar("B")


def mapped(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """`[function(item) for item in items]`; the function must be importable. Falls back to this process where no other
    can be started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores > 1 and len(items) >= LEAST and not current_process().daemon:
        try:
            with ProcessPoolExecutor(min(cores, MOST_PROCESSES), mp_context=get_context("spawn")) as pool:
                return list(pool.map(function, items, chunksize=CHUNK))
        except (BrokenProcessPool, OSError):
            pass
    return [function(item) for item in items]
