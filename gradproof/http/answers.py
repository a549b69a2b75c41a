"""Answers: JSON, and one sentence for what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

LINGER_SECONDS = 2.0  # how long a refused body is read on and thrown away

Message = MutableMapping[str, Any]
ConnectionScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[ConnectionScope, Receive, Send], Awaitable[None]]


class Refused(Exception):
    """A request that is answered with a 4xx and one sentence; `unread` when its body has not been read to the end."""

    def __init__(self, status: int, sentence: str, unread: bool = False):
        super().__init__(sentence)
        self.status, self.unread = status, unread

    async def respond(self, receive: Receive, send: Send) -> None:
        await respond(send, self.status, as_json({"error": str(self)}), self.unread)
        if self.unread:
            # The connection cannot go on, but closing it at once would reset it before the client has read why.
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    while (await receive()).get("more_body", False):
                        pass
            await send({"type": "http.response.body", "body": b""})


async def respond(send: Send, status: int, content: bytes, unread: bool = False) -> None:
    """One JSON answer; `unread`: the connection is closed after it."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if unread:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": unread})


def as_json(content: Any) -> bytes:
    """ASCII, so that no text that a client sent can fail to encode."""
    return json.dumps(content).encode("ascii")
