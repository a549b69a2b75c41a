"""Limits: the memory that one client can occupy in a service, and its request rate."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from gradproof.http.answers import ConnectionScope, Receive, Refused

BODIES_LIMIT = 64  # times the limit of one body: bytes of all bodies that are being read
BODY_SECONDS = 30.0  # from the headers to the end of the body
MOST_CLIENTS = 10_000  # whose rates are remembered


class BodyReader:
    """Reads bodies of at most `limit` bytes; `advice` is what the sentence about a longer one says to do."""

    def __init__(self, limit: int, advice: str):
        self.limit, self.advice = limit, advice
        self.held = 0  # bytes of bodies that are not complete

    async def __call__(self, scope: ConnectionScope, receive: Receive) -> bytes | None:
        """The whole body, or None if the client went away. Refuses as soon as it is known to be too long."""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and float(value) > self.limit:
                raise self._too_long()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while (message := await receive())["type"] == "http.request":
                    chunk = message.get("body", b"")
                    if not message.get("more_body", False) and not body and len(chunk) <= self.limit:
                        return chunk
                    self.held += len(chunk)
                    body += chunk
                    if len(body) > self.limit:
                        raise self._too_long()
                    if self.held > BODIES_LIMIT * self.limit:
                        raise Refused(429, "too many large bodies at once; try again in a second", unread=True)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refused(408, f"the body was not complete after {BODY_SECONDS:.0f} s", unread=True) from None
        finally:
            self.held -= len(body)
        return None

    def _too_long(self) -> Refused:
        return Refused(413, f"the body may have {self.limit:,} bytes; {self.advice}", True)


class RateLimit:
    """So many requests a second of each client, and `burst` at once: a bucket that fills at `rate`."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic):
        self.rate, self.burst, self.clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when that was

    def check(self, client: str) -> None:
        """Takes one; Refused where none is left."""
        now = self.clock()
        left, before = self._buckets.pop(client, (self.burst, now))
        left = min(self.burst, left + (now - before) * self.rate)
        taken = left >= 1
        self._buckets[client] = (left - taken, now)
        while len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not taken:
            raise Refused(429, f"more than {self.rate:g} requests a second; try again in a second")
