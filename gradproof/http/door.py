"""Access control of a service, before a byte of the body is read and before any other code runs.

It checks, in this order, the `Host` header, the path, the token or the socket's peer, the rate, the role, and the
length of the body. A route without roles lets nobody in. Every answer gets the strict headers, whoever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from gradproof.http.answers import AsgiApp, ConnectionScope, Message, Receive, Refused, Send
from gradproof.http.limits import BodyReader, RateLimit

EVERYBODY = "everybody"  # as a role of a route: no token is asked for
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
BEARER = re.compile(rb"bearer +(\S+)", re.IGNORECASE)


class Visitor(NamedTuple):
    """Who asks: the name of a token or of a user, with a role; `home` where another user's is known."""

    name: str
    role: str
    home: str = ""


class WayIn(NamedTuple):
    """What a route asks of its visitors; `most` bytes of a body."""

    roles: Collection[str]
    most: int = 1 << 18


class Door:
    """ASGI middleware. `way_of` says what the route of a request asks for, None where there is none; `visitor_of` who
    asks, None where nobody is known. Where `hosts` is given, the `Host` header must be one of them."""

    def __init__(
        self,
        app: AsgiApp,
        way_of: Callable[[ConnectionScope], WayIn | None],
        visitor_of: Callable[[ConnectionScope], Visitor | None],
        *,
        hosts: Collection[str] | None = None,
        rate: RateLimit,
        strangers: RateLimit,
    ):
        self.app, self.way_of, self.visitor_of, self.hosts = app, way_of, visitor_of, hosts
        self.rate, self.strangers = rate, strangers
        self._readers: dict[int, BodyReader] = {}

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        send = _strict(send)
        try:
            way = self._let_in(scope)
            body = await self._reader(way.most)(scope, receive)
        except Refused as refused:
            return await refused.respond(receive, send)
        if body is not None:  # else the client went away
            await self.app(_as_json(scope), _again(body, receive), send)

    def _let_in(self, scope: ConnectionScope) -> WayIn:
        """The way that is open to whoever asks; Refused says why none is."""
        headers = dict(scope["headers"])
        if self.hosts is not None and not self._is_own(scope):
            raise Refused(421, "the Host header names another service; use the address that this one listens on")
        way = self.way_of(scope)
        if way is not None and EVERYBODY in way.roles:
            scope["visitor"] = self.visitor_of(scope)
            (self.rate if scope["visitor"] else self.strangers).check(_client(scope, scope["visitor"]))
            return way
        visitor = scope["visitor"] = self.visitor_of(scope)
        if visitor is None:
            self.strangers.check(_client(scope, None))
            said = "a wrong token" if b"authorization" in headers else "no token: send Authorization: Bearer TOKEN"
            raise Refused(401, said)
        self.rate.check(visitor.name)
        if way is None:
            raise Refused(404, "there is no such path; docs/gate-service.md lists them")
        if visitor.role not in way.roles:
            raise Refused(403, f"the role {visitor.role} may not do that; {' or '.join(sorted(way.roles))} may")
        return way

    def _is_own(self, scope: ConnectionScope) -> bool:
        """Whether there is one Host header, and it names this service: of two, others may read the other one."""
        said = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        return self.hosts is not None and len(said) == 1 and said[0] in self.hosts

    def _reader(self, most: int) -> BodyReader:
        if most not in self._readers:
            self._readers[most] = BodyReader(most, "send less")
        return self._readers[most]


def bearer(scope: ConnectionScope) -> str:
    """The token in the Authorization header; empty where there is none, or more than one."""
    said = [value for name, value in scope["headers"] if name == b"authorization"]
    match = BEARER.fullmatch(said[0]) if len(said) == 1 else None
    return match[1].decode("latin-1") if match else ""


def own_hosts(host: str, port: int, more: Collection[str] = ()) -> frozenset[str]:
    """What the Host header may say of a service that listens there."""
    names = {"localhost", "127.0.0.1", "[::1]", *more}
    if host not in ("0.0.0.0", "::", ""):
        names.add(f"[{host}]" if ":" in host else host)
    with_port = {f"{name}:{port}" for name in names}
    return frozenset(name.lower() for name in (*with_port, *more, *(names if port == 80 else ())))


def _client(scope: ConnectionScope, visitor: Visitor | None) -> str:
    client = scope.get("client")
    return visitor.name if visitor is not None else client[0] if client else "?"


def _as_json(scope: ConnectionScope) -> ConnectionScope:
    """A body is read as JSON, whatever it is called: `curl -d` calls it a form. No browser sends a token by itself."""
    scope["headers"] = [
        *(pair for pair in scope["headers"] if pair[0] != b"content-type"),
        (b"content-type", b"application/json"),
    ]
    return scope


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what else comes."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def once() -> Message:
        return messages.pop() if messages else await receive()

    return once


def _strict(send: Send, headers: Mapping[str, str] = HEADERS) -> Send:
    strict = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own: list[Any] = list(message.get("headers", ()))
            there = {name.lower() for name, _ in own}
            own += [(name, value) for name, value in strict if name not in there]
            if message["status"] == 401:
                own.append((b"www-authenticate", b"Bearer"))
            message = {**message, "headers": own}
        await send(message)

    return sent
