"""Unexpected errors: answered with a 500, and logged in a line without any content of the request."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from gradproof.http.answers import AsgiApp, ConnectionScope, Message, Receive, Send, as_json, respond

SENTENCE = "the service failed on this request; the location is in its log"


class Contained:
    """ASGI middleware, the outermost: an exception goes no further. Its message may quote what a client sent, so `say`
    is told its type and its place alone."""

    def __init__(self, app: AsgiApp, say: Callable[[str], None]):
        self.app, self.say = app, say

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except Exception as error:
            self.say(f"a request failed: {place_of(error)}")
            if scope["type"] == "http" and not started:
                await respond(send, 500, as_json({"error": SENTENCE}))


def place_of(error: Exception) -> str:
    """The type of an error and the lines of code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return f"{type(error).__name__} at {', '.join(f'{frame.filename}:{frame.lineno}' for frame in frames)}"
