"""Routes for calls: decisions, the report that a call ran, and questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response

from gradproof.gate import calls
from gradproof.gate.asks import WAITING, Ask
from gradproof.gate.audit import AuditQuery, told_decision
from gradproof.gate.corrections import safe
from gradproof.gate.database import time_of
from gradproof.gate.explaining import explanation
from gradproof.gate.service import ADMIN, AGENT, REVIEWER, GateService, may
from gradproof.http.answers import Refused, as_json
from gradproof.http.door import Visitor

MOST_LOOKED_AT = 20_000  # decisions, for one page
Id = Annotated[str, Path(max_length=64, examples=["01a1e6b0c3d2aabbccdd"])]
Wait = Annotated[float, Query(ge=0, le=60, description="Seconds to wait for news.")]

CALL = {"tool": "Bash", "arguments": {"command": "rm -rf ../shared"}, "cwd": "/home/ann/app", "session": "s7"}
CALL_SCHEMA = {
    "type": "object",
    "description": "A call in any of its shapes: tool and arguments, a hook's payload, MCP's tools/call, a command.",
    "properties": {
        "tool": {"type": "string", "minLength": 1, "maxLength": calls.MOST_NAME},
        "arguments": {"type": "object"},
        "cwd": {"type": "string", "maxLength": calls.MOST_PATH},
        "history": {"type": "array", "items": {"type": "object"}},
        "session": {"type": "string", "maxLength": calls.MOST_NAME},
        "actor": {"type": "string", "maxLength": calls.MOST_NAME},
        "annotations": {"type": "object"},
    },
    "example": CALL,
}
ANSWER = {
    "id": "01a1e6b0c3d2aabbccdd",
    "decision": "ask",
    "probability": 0.64,
    "reason": "deletes /home/ann/shared/, outside the project",
    "acts": [
        {"effect": "delete", "program": "rm", "verb": "", "target": "/home/ann/shared/", "scope": "outside", "via": []}
    ],
    "version": 1,
    "by": "policy",
    "because": "policy: delete in outside is ask",
    "expires": 1789000900.0,
}


def example(content: Any) -> dict[int | str, dict[str, Any]]:
    """What a route answers, by example."""
    return {200: {"content": {"application/json": {"example": content}}}}


def answered(content: Any, status: int = 200) -> Response:
    return Response(as_json(content), status, media_type="application/json")


def visitor_of(request: Request) -> Visitor:
    """Whom the door let in."""
    return request.scope["visitor"]


def told_ask(ask: Ask, now: float) -> dict[str, Any]:
    """A question; `remaining` seconds until it expires."""
    remaining = {"remaining": round(max(0.0, ask.expires - now), 3)} if ask.state == WAITING else {}
    return ask.plain() | remaining


def _body(example_of: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema, "example": example_of}}}


def _with_body(way: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return {"openapi_extra": {**way["openapi_extra"], "requestBody": body}}


def add(app: FastAPI, service: GateService) -> None:
    """The routes."""
    store, journal = service.store, service.store.journal

    @app.post(
        "/v1/decide",
        summary="Decide a call",
        responses=example(ANSWER),
        **_with_body(may(AGENT, ADMIN, most=calls.MOST_BYTES, socket=True), _body(CALL, CALL_SCHEMA)),
    )
    async def decide(request: Request, explain: bool = False) -> Response:
        call, tool_use = _call(await request.body())
        answer, record = await service.decide(call, visitor_of(request), tool_use)
        told = answer.plain()
        if answer.decision == "ask":
            told["expires"] = time_of(answer.id) + service.ask_seconds()
            if service.address:
                told["answer_at"] = f"http://{service.address}/#asks/{answer.id}"
        if explain:
            told["explanation"] = explanation(service.decider.serving, record)
        return answered(told)

    @app.post(
        "/v1/ran",
        summary="Say that a call has run",
        responses=example({"id": ANSWER["id"], "ran": True}),
        **_with_body(
            may(AGENT, ADMIN, most=calls.MOST_BYTES, socket=True),
            _body({"id": ANSWER["id"]}, {"type": "object", "properties": {"id": {"type": "string"}}}),
        ),
    )
    async def ran(request: Request) -> Response:
        body, visitor = await request.body(), visitor_of(request)
        id = _named(body)
        if id is None:
            call, tool_use = _call(body)
            id = service.made(call, visitor, tool_use)
            if id is None:
                raise Refused(404, "you have no decision on this call")
        else:
            await service.own_decision(id, visitor)
        service.decider.ran(id)
        return answered({"id": id, "ran": True})

    @app.get(
        "/v1/decisions", summary="List decisions, newest first", responses=example({"decisions": [], "next": None}),
        **may(AGENT, REVIEWER, ADMIN),
    )  # fmt: skip
    async def decisions(
        request: Request,
        decision: Literal["", "allow", "ask", "block"] = "",
        by: Literal["", "floor", "rule", "correction", "policy", "model"] = "",
        session: Annotated[str, Query(max_length=256)] = "",
        actor: Annotated[str, Query(max_length=600)] = "",
        effect: Annotated[str, Query(max_length=32)] = "",
        tool: Annotated[str, Query(max_length=256)] = "",
        since: Annotated[str, Query(max_length=64, examples=["24h"])] = "",
        remarked: bool | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        before: Annotated[str, Query(max_length=64)] = "",
        after: Annotated[str, Query(max_length=64)] = "",
    ) -> Response:
        query = AuditQuery(decision, since, safe(session, store.key), safe(actor, store.key), effect)
        try:
            query.check()
            start = query.start(store.clock())
        except ValueError as error:
            raise Refused(422, str(error).replace("--", "")) from None
        search = _Search(service, query, visitor_of(request), start, after, limit)
        search.more = (by, safe(tool, store.key), remarked)
        search.before = before
        await service.in_turns(search.step, visitor_of(request))
        remarked = any("remarked" in record for record in search.found)
        records = await service.in_thread(journal.correction_records) if remarked else []
        said = {record["decision"]: record for record in records}
        told = [told_decision(record, said.get(record["id"])) for record in search.found]
        return answered({"decisions": told, "next": search.next})

    @app.get(
        "/v1/decisions/{id}", summary="One decision", responses=example({**ANSWER, "text": "Bash\ncommand: …"}),
        **may(AGENT, REVIEWER, ADMIN, socket=True),
    )  # fmt: skip
    async def decision(request: Request, id: Id, explain: bool = False) -> Response:
        record = await service.own_decision(id, visitor_of(request))
        records = await service.in_thread(journal.correction_records) if "remarked" in record else []
        said = next((r for r in reversed(records) if r["decision"] == record["id"]), None)
        told = told_decision(record, said)
        ask = journal.asks.get(record["id"], store.clock())
        told |= {"ask": told_ask(ask, store.clock())} if ask is not None else {}
        if explain:
            told["explanation"] = explanation(service.decider.serving, record)
        return answered(told)

    @app.get(
        "/v1/asks", summary="List questions, newest first", responses=example({"asks": [], "stamp": "12"}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def asks(
        state: Literal["", "waiting", "allowed", "blocked", "expired"] = "",
        limit: Annotated[int, Query(ge=1, le=2000)] = 200,
    ) -> Response:
        def listed() -> dict[str, Any]:
            now, stamp = store.clock(), journal.asks.stamp()
            chosen = [ask for ask in journal.asks.all(now) if state in ("", ask.state)][:limit]
            return {
                "asks": [told_ask(ask, now) | {"decision": _briefly(service, ask.id)} for ask in chosen],
                "stamp": str(stamp),
            }

        return answered(await service.in_thread(listed))

    @app.get(
        "/v1/asks/{id}", summary="One question, or its answer",
        responses=example({"id": ANSWER["id"], "state": "waiting", "expires": 1789000900.0, "remaining": 812.4}),
        **may(AGENT, REVIEWER, ADMIN, socket=True),
    )  # fmt: skip
    async def ask(request: Request, id: Id, wait: Wait = 0) -> Response:
        record = await service.own_decision(id, visitor_of(request))
        first = journal.asks.get(record["id"], store.clock())
        if first is None:
            raise Refused(404, f"the decision {record['id']} is not a question")

        def settled() -> Ask | None:
            there = journal.asks.get(record["id"], store.clock())
            return None if there is not None and there.state == WAITING else there or first

        there = await service.until(settled, wait, visitor_of(request))
        return answered(told_ask(there or journal.asks.get(record["id"], store.clock()) or first, store.clock()))


class _Search:
    """The decisions that match, page by page, a little at a time."""

    def __init__(self, service: GateService, query: AuditQuery, visitor: Visitor, start: float, after: str, limit: int):
        self.service, self.query, self.visitor, self.start = service, query, visitor, start
        self.after, self.limit = after, limit
        self.before, self.next = "", None
        self.more: tuple[str, str, bool | None] = ("", "", None)
        self.found: list[dict[str, Any]] = []
        self.looked_at = 0

    def step(self, seconds: float) -> bool:
        page = self.service.store.journal.page(self.before, 50)
        for record in page:
            if record["id"] <= self.after or time_of(record["id"]) < self.start:
                return False
            if self.looked_at >= MOST_LOOKED_AT or len(self.found) >= self.limit:
                self.next = self.before
                return False
            self.before = record["id"]
            self.looked_at += 1
            if self._matches(record):
                self.found.append(record)
        return bool(page)

    def _matches(self, record: Mapping[str, Any]) -> bool:
        by, tool, remarked = self.more
        return (
            self.query.matches(record)
            and self.service.owns(self.visitor, record.get("actor", ""))
            and by in ("", record["by"])
            and tool in ("", record["text"].split("\n", 1)[0])
            and remarked in (None, "remarked" in record)
        )


def _call(body: bytes) -> tuple[calls.Call, str]:
    """A call, and the name that its agent has for this use of the tool."""
    try:
        fields = calls.decoded(body)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    try:
        call = calls.parse(fields)
    except ValueError as error:
        raise Refused(422, str(error)) from None
    tool_use = fields.get("tool_use_id")
    return call, tool_use[: calls.MOST_NAME] if isinstance(tool_use, str) else ""


def _named(body: bytes) -> str | None:
    """The id in `{"id": …}`, and nothing else."""
    try:
        fields = calls.decoded(body)
    except ValueError:
        return None  # told of by whoever reads it as a call
    id = fields.get("id")
    return id[:64] if fields.keys() == {"id"} and isinstance(id, str) else None


def _briefly(service: GateService, id: str) -> dict[str, Any] | None:
    """What a question is about."""
    try:
        record = service.store.journal.decision(id)
    except ValueError:
        return None
    told = told_decision(record, None)
    names = ("reason", "because", "text", "acts", "worst", "by", "probability", "time", "session")
    return {name: told[name] for name in names}
