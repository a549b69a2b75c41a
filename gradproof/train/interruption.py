"""Ctrl-C and SIGTERM: the first lets a run save, the second stops it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible(apart: float = 0.0) -> Iterator[list[bool]]:
    """The first Ctrl-C (or SIGTERM) fills the list, the second stops at once, if it comes `apart` seconds later:
    torchrun passes on what the terminal has already sent. Only the main thread hears them."""
    seen: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    first = 0.0

    def once(number: int, frame: Any) -> None:
        nonlocal first
        if seen and time.monotonic() - first >= apart:
            raise KeyboardInterrupt
        if not seen:
            first = time.monotonic()
            seen.append(True)

    previous = {number: signal.signal(number, once) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
