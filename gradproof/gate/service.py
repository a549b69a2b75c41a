"""The gate over HTTP: code shared by all routes, and the app.

One event loop decides, in turn: a decision takes a millisecond or two, less than handing it to a thread. What waits is
bounded; beyond that a call is answered 429, after a moment. What people say waits for the disk, in a thread. What looks
at many decisions takes turns with the decisions.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gradproof.gate.calls import Call
from gradproof.gate.corrections import digest, safe
from gradproof.gate.database import NotThere, Outdated
from gradproof.gate.decider import Answer, Decider
from gradproof.gate.remarks import Giver
from gradproof.gate.roles import ADMIN, AGENT, REVIEWER, ROLES
from gradproof.gate.store import Store
from gradproof.http.answers import AsgiApp, ConnectionScope, Refused, as_json
from gradproof.http.batching import Batching, Busy
from gradproof.http.door import EVERYBODY, Visitor, WayIn
from gradproof.http.failures import SENTENCE
from gradproof.http.metrics import Counted, RequestMeters
from gradproof.http.tokens import Tokens

if TYPE_CHECKING:
    from fastapi import FastAPI

WAITING = 64  # calls that may wait for a decision
REMEMBERED = 20_000  # decisions whose calls are known again when they have run
MOST_WAIT = 60.0  # seconds that a request may wait for news
MOST_WAITERS = 128  # of agents, and of people
LOOK = 0.2  # seconds between two looks for news
SLICE = 0.003  # seconds that something long may take before decisions have their turn
LONG, MOST_LONG = 2, 32  # long things at a time, of agents and of people; and those that may wait for it
PROBES = ("/healthz", "/metrics")  # asked by machines, whether the gate is used or not
WRITTEN, SOON = 1.0, 0.01  # seconds until a decision is in the store, and between two looks for it
HELD_UP = 0.25  # seconds before a call that finds no place is refused

Result = TypeVar("Result")


class ToDecide(NamedTuple):
    """A call of a visitor."""

    call: Call
    home: str


class GateService:
    """A store, the decider of it, and who may ask. `tokens` are those of TCP; `address` is where people reach it."""

    def __init__(self, store: Store, decider: Decider, tokens: Tokens, address: str = "", socket: str = ""):
        self.store, self.decider, self.tokens = store, decider, tokens
        self.address, self.socket, self.started = address, socket, time.time()
        self.deciding: Batching[ToDecide, tuple[Answer, dict[str, Any]]] = Batching(
            lambda items: [decider.decided(*item) for item in items], 1, WAITING, inline=1, unit="calls"
        )
        self.decided: Counter[str] = Counter()  # since the last point of the trend
        self.ending = asyncio.Event()
        self.learner: Callable[[], Mapping[str, Any]] = lambda: dict(running=False, pid=None, restarts=0, last="")
        self.meters = GateMeters(self)
        self._made: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._fresh: OrderedDict[str, None] = OrderedDict()  # ids of decisions that may not be in the store yet
        self._thread = ThreadPoolExecutor(2, "gate")
        # Agents and people have their own shares: neither keeps the other out.
        self._waiters: Counter[bool] = Counter()
        self._long_waiters: Counter[bool] = Counter()
        self._long = {agent: asyncio.Semaphore(LONG) for agent in (True, False)}
        self.last_request = time.monotonic()

    # calls

    async def decide(self, call: Call, visitor: Visitor, tool_use: str = "") -> tuple[Answer, dict[str, Any]]:
        """Decides a call of a visitor, under the visitor's name."""
        call = replace(call, actor=self.actor(call.actor, visitor))
        try:
            answer, record = await self.deciding(ToDecide(call, visitor.home))
        except Busy as busy:
            # Whoever asks again at once would otherwise take the time that decisions need.
            await asyncio.sleep(HELD_UP)
            raise Refused(429, f"{busy}; try again in a second") from None
        self.decided[record["decision"]] += 1
        self.meters.decisions.labels(record["decision"], record["by"]).inc()
        _remember(self._fresh, answer.id, None)
        _remember(self._made, (call.actor, call.session, record["digest"]), answer.id)
        if tool_use:
            _remember(self._made, (call.actor, tool_use), answer.id)
        return answer, record

    def made(self, call: Call, visitor: Visitor, tool_use: str = "") -> str | None:
        """The id of the decision on a call that was decided before."""
        actor = self.actor(call.actor, visitor)
        by_use = self._made.get((actor, tool_use)) if tool_use else None
        return by_use or self._made.get((actor, call.session, digest(call, self.store.key)))

    def actor(self, said: str, visitor: Visitor) -> str:
        """Who makes a call: the visitor, and behind that what the call itself says."""
        actor = visitor.name if said in ("", visitor.name) else f"{visitor.name}/{said}"
        return safe(actor, self.store.key)

    @staticmethod
    def owns(visitor: Visitor, actor: str) -> bool:
        """Whether a visitor may see what this actor did."""
        return visitor.role != AGENT or actor == visitor.name or actor.startswith(f"{visitor.name}/")

    async def own_decision(self, id: str, visitor: Visitor) -> dict[str, Any]:
        """A decision that the visitor may see; what is not the visitor's does not exist. One that was answered a moment
        ago is waited for, and no other: an agent could name any number of them, and would hold up whoever waits too."""
        journal, until = self.store.journal, time.monotonic() + WRITTEN
        while (record := journal.find(id)) is None and id in self._fresh and time.monotonic() < until:
            await asyncio.sleep(SOON)
        if record is None or not self.owns(visitor, record.get("actor", "")):
            raise Refused(404, f"{'you have' if visitor.role == AGENT else 'there is'} no decision {id[:40]!r}")
        return record

    def idle_seconds(self) -> float:
        """Since the last request of somebody who is known; probes do not count."""
        busy = self.deciding.waiting or any(self._waiters.values()) or any(self._long_waiters.values())
        return 0.0 if busy else time.monotonic() - self.last_request

    def ask_seconds(self) -> float:
        return self.decider.settings.ask_minutes * 60

    # others

    async def in_thread(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """What waits for the disk. What is not there is a 404, what came too late a 409, what makes no sense a 422."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: work(*arguments, **named))
        except NotThere as error:
            raise Refused(404, str(error)) from None
        except Outdated as error:
            raise Refused(409, str(error)) from None
        except ValueError as error:
            raise Refused(422, str(error)) from None
        except OSError as error:
            raise Refused(503, f"the store cannot be used: {error.strerror or error}") from None

    async def in_turns(self, step: Callable[[float], bool], visitor: Visitor) -> None:
        """Something long, a little at a time."""
        agent = visitor.role == AGENT
        if self._long_waiters[agent] >= MOST_LONG:
            raise Refused(429, f"{MOST_LONG} long requests are waiting; try again in a second")
        self._long_waiters[agent] += 1
        try:
            async with self._long[agent]:
                while step(SLICE):
                    # A call takes several rounds of the loop; with a slice in each of them it would wait for all.
                    await asyncio.sleep(SLICE)
                    if self.ending.is_set():
                        raise Refused(503, "the service is ending")
        finally:
            self._long_waiters[agent] -= 1

    async def until(self, look: Callable[[], Result | None], seconds: float, visitor: Visitor) -> Result | None:
        """Looks until there is something, for so long at most; ends with the service."""
        result, end, agent = look(), time.monotonic() + min(seconds, MOST_WAIT), visitor.role == AGENT
        if result is not None or seconds <= 0:
            return result
        if self._waiters[agent] >= MOST_WAITERS:
            raise Refused(429, f"{self._waiters[agent]} requests are waiting for changes; try again in a second")
        self._waiters[agent] += 1
        try:
            while result is None and time.monotonic() < end and not self.ending.is_set():
                await asyncio.sleep(LOOK)
                result = look()
        finally:
            self._waiters[agent] -= 1
        return result

    def close(self) -> None:
        """Lets the threads end."""
        self.deciding.close()
        self._thread.shutdown(wait=True)


def _remember(table: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > REMEMBERED:
        table.popitem(last=False)


class GateMeters(RequestMeters):
    """What /metrics tells. Labels take few values: our own paths, decisions, parts of the gate."""

    def __init__(self, service: GateService):
        from prometheus_client import Counter as Total
        from prometheus_client import Gauge

        super().__init__("gradproof_gate", lambda scope: scope.get("gate.path", "other"))
        self.service = service
        self.decisions = self.meter(Total, "decisions", "Decisions.", ("decision", "by"))
        waiting = self.meter(Gauge, "waiting_calls", "Calls that wait for a decision.")
        waiting.set_function(lambda: service.deciding.waiting)
        version = self.meter(Gauge, "version", "The version of the model that decides.")
        version.set_function(lambda: service.decider.serving.number)
        lines = self.meter(Gauge, "audit_lines", "Lines of the audit log, by its head.")
        lines.set_function(lambda: service.store.audit.head().count)
        wrong = self.meter(Gauge, "complaints", "1 where a file of the gate cannot be read or written.")
        wrong.set_function(lambda: float(bool(service.decider.complaint)))
        restarts = self.meter(Gauge, "learner_restarts", "How often the learner was started again.")
        restarts.set_function(lambda: service.learner().get("restarts", 0))

    def answered(self, scope: ConnectionScope, status: int, seconds: float) -> None:
        super().answered(scope, status, seconds)
        if scope.get("visitor") is not None and self.path_of(scope) not in PROBES:
            self.service.last_request = time.monotonic()


def may(*roles: str, most: int = 1 << 18, socket: bool = False) -> dict[str, Any]:
    """What a route asks of its visitors. A route without it lets nobody in."""
    return {"openapi_extra": {"x-roles": list(roles), "x-most": most, "x-socket": socket}}


def giver_of(visitor: Visitor) -> Giver:
    """Who gives a signal."""
    return Giver(visitor.name, visitor.role, "")


def app(service: GateService) -> FastAPI:
    """All routes. Who may come in is decided before, at the door (`daemon.py`)."""
    from fastapi import FastAPI

    from gradproof.gate import service_calls, service_files, service_pages, service_words
    from gradproof.version import __version__

    made = FastAPI(
        title="Gradproof gate",
        version=__version__,
        description="Decides the tool calls of agents, and learns from what people say of its decisions.",
        openapi_url=None,
        redirect_slashes=False,
    )
    for part in (service_calls, service_words, service_files, service_pages):
        part.add(made, service)
    _add_errors(made)
    return made


def counted(app: AsgiApp, service: GateService) -> Counted:
    """Every answer is counted, also those at the door."""
    return Counted(app, service.meters)


def way_finder(app: FastAPI, socket: bool = False) -> Callable[[ConnectionScope], WayIn | None]:
    """What the route of a request asks for; on the unix socket there are only the routes for agents."""
    from starlette.routing import Match, Route

    routes = [route for route in app.routes if isinstance(route, Route)]
    nobody = WayIn(())

    def way_of(scope: ConnectionScope) -> WayIn | None:
        other = None
        for route in routes:
            match, _ = route.matches(scope)
            if match is Match.NONE:
                continue
            asked = getattr(route, "openapi_extra", None) or {}
            way = WayIn(tuple(asked.get("x-roles", ())), asked.get("x-most", nobody.most)) if asked else nobody
            way = way if asked.get("x-socket") or not socket else None
            scope["gate.path"] = route.path
            if match is Match.FULL:  # the route that will answer: no other may say who comes in
                return way
            other = other or way  # the path is there, for another method
        return other

    return way_of


def token_reader(tokens: Tokens) -> Callable[[ConnectionScope], Visitor | None]:
    """Who sends a token."""
    from gradproof.http.door import bearer

    def visitor_of(scope: ConnectionScope) -> Visitor | None:
        said = bearer(scope)
        try:
            token = tokens.find(said) if said else None
        except ValueError as error:
            print(f"gradproof: {error}; all tokens are refused", file=sys.stderr, flush=True)
            return None
        return None if token is None else Visitor(token.name, token.role)

    return visitor_of


def _add_errors(made: FastAPI) -> None:
    """Whatever goes wrong is JSON and one sentence."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

    def answered(status: int, sentence: str, headers: Any = None) -> Response:
        return Response(as_json({"error": sentence}), status, headers, "application/json")

    async def refused(_: Any, error: Any) -> Response:
        headers = {"retry-after": "1"} if error.status == 429 else None
        return answered(error.status, str(error), headers)

    async def http_error(_: Any, error: Any) -> Response:
        allowed = (error.headers or {}).get("Allow", "")
        sentence = f"this path takes {allowed} only" if error.status_code == 405 else str(error.detail)
        return answered(error.status_code, sentence, error.headers)

    async def invalid(_: Any, error: Any) -> Response:
        (first, *_) = error.errors()
        if first["type"] == "json_invalid":
            return answered(400, "the body is not JSON")
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return answered(422, f"{where[:100]}: {first['msg'][:1].lower()}{first['msg'][1:200]}")

    async def failed(_: Any, error: Exception) -> Response:
        return answered(500, SENTENCE)

    made.add_exception_handler(Refused, refused)
    made.add_exception_handler(HTTPException, http_error)
    made.add_exception_handler(RequestValidationError, invalid)
    made.add_exception_handler(Exception, failed)


__all__ = ["ADMIN", "AGENT", "EVERYBODY", "REVIEWER", "ROLES", "GateService", "app", "counted", "may", "way_finder"]
