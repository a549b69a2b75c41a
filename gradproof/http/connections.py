"""Connections of a service: how many there may be at a time, and the size and seconds of a request's head.

The door bounds bodies; what comes before them is uvicorn's, which reads heads of any size for as long as it takes.
Without these bounds anybody who can connect, with a token or without, could take all memory or all file descriptors.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gradproof.http.answers import as_json

HEAD_BYTES = 64 << 10  # of request line and headers; of what a chunked body adds to its content as well
HEAD_SECONDS = 10.0  # from the connection, or from the answer before, to the end of the head
CHUNK_COST = 16  # bytes on the wire for each byte of a chunked body: a chunk of one byte takes six
REASONS = {429: "Too Many Requests", 431: "Request Header Fields Too Large"}


def bounded_protocol(most: int, of: type | None = None) -> type:
    """uvicorn's protocol, or `of`, a kind of it, for at most so many connections."""
    if of is None:
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

        of = AutoHTTPProtocol

    class BoundedProtocol(of):  # type: ignore[misc, valid-type]
        _looking: asyncio.TimerHandle | None = None
        _free_since = 0.0  # when the last request was answered, or the connection made
        _received = _content = 0  # bytes since a message began, and those of them that are its body
        _counts = False  # h11 has no callbacks for this; it bounds heads itself

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                return self._refuse(429, f"more than {most} connections are open; try again in a second")
            self._free_since = self.loop.time()
            self._looking = self.loop.call_later(HEAD_SECONDS, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._looking is not None:
                self._looking.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self._received += len(data)
            super().data_received(data)
            if self._counts and self._received - CHUNK_COST * self._content > HEAD_BYTES:
                self._refuse(431, f"the head of a request may have {HEAD_BYTES:,} bytes")

        def on_message_begin(self) -> None:
            self._counts, self._received, self._content = True, 0, 0
            super().on_message_begin()

        def on_body(self, body: bytes) -> None:
            self._content += len(body)
            super().on_body(body)

        def on_response_complete(self) -> None:
            self._free_since = self.loop.time()
            super().on_response_complete()

        def _look(self) -> None:
            """Closes a connection on which no request is being answered, and none has come."""
            answering = self.cycle is not None and not self.cycle.response_complete
            free = self.loop.time() - self._free_since
            if not answering and free >= HEAD_SECONDS:
                return self.transport.close()
            self._looking = self.loop.call_later(HEAD_SECONDS - (0 if answering else free), self._look)

        def _refuse(self, status: int, sentence: str) -> None:
            """Answers, unless another answer has begun, and closes."""
            if self.cycle is None or self.cycle.response_complete:
                body = as_json({"error": sentence})
                head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
                wait = "retry-after: 1\r\n" if status == 429 else ""
                self.transport.write(f"{head}{wait}content-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()

    return BoundedProtocol
