"""Traffic: how many bytes a rank sends to the others, by kind of operation.

Of n ranks each sends, for S bytes of tensor, what a ring sends:

    all-reduce      2·S·(n − 1)/n; of few bytes on a CPU S·(n − 1), all of them to each
    reduce-scatter    S·(n − 1)/n, the pieces of the others
    all-gather        S·(n − 1)/n, S all pieces together
    all-to-all        the rows for the others

The headers of messages are not counted. `wire_bytes` asks the kernel, which counts them.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import Counter

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")
_TCP_INFO, _ACKNOWLEDGED = 11, 120  # of linux/tcp.h: the option, and where tcpi_bytes_acked stands


def of_all_reduce(size: int, ranks: int, at_once: bool = False) -> int:
    """Bytes that a rank sends to add up `size` bytes, by a ring or all of them to each other."""
    return size * (ranks - 1) if at_once else 2 * size * (ranks - 1) // ranks


def of_pieces(size: int, ranks: int) -> int:
    """Bytes that a rank sends to scatter or to gather `size` bytes."""
    return size * (ranks - 1) // ranks


class Traffic:
    """Counts what one rank has sent: bytes and operations by kind."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def add(self, kind: str, sent: int) -> None:
        self.sent[kind] += sent
        self.calls[kind] += 1

    def clear(self) -> None:
        self.sent.clear()
        self.calls.clear()

    @property
    def total(self) -> int:
        return self.sent.total()


def wire_bytes() -> int | None:
    """Bytes that this process has sent over the TCP connections that are open now and that have arrived, as Linux
    counts them; None elsewhere."""
    if sys.platform != "linux":
        return None
    return sum(_acknowledged(int(name)) for name in os.listdir("/proc/self/fd"))


def _acknowledged(fd: int) -> int:
    """Of one file descriptor; 0 of what is no TCP connection."""
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            return 0
        with socket.socket(fileno=os.dup(fd)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
        return struct.unpack_from("Q", info, _ACKNOWLEDGED)[0]
    except (OSError, struct.error):  # closed meanwhile, or of another family
        return 0
