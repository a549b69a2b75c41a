"""Routes for feedback, answers and corrections, and previews of their effect."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradproof.gate import changes, reach
from gradproof.gate.database import time_of
from gradproof.gate.reach import Basis, Reach
from gradproof.gate.remarks import Remark
from gradproof.gate.service import ADMIN, REVIEWER, GateService, giver_of, may
from gradproof.gate.service_calls import Id, answered, example, visitor_of

JudgementKind = Literal["false_block", "false_allow", "override_allow", "override_block", "allow", "block"]
ActNumber = Annotated[int | None, Field(ge=0, le=10_000)]
Scope = Annotated[str, Field(max_length=4096, examples=["folder"])]
DecisionId = Annotated[str, Field(min_length=1, max_length=64, examples=["01a1e6b0c3d2aabbccdd"])]
Days = Annotated[float, Field(gt=0, le=366, allow_inf_nan=False)]
Limit = Annotated[int, Field(ge=1, le=500)]


class Body(BaseModel):
    """What a route reads: no other fields."""

    model_config = ConfigDict(extra="forbid")


class FeedbackBody(Body):
    id: DecisionId
    kind: JudgementKind
    act: ActNumber = None
    scope: Scope = ""
    once: bool = False


class AnswerBody(Body):
    answer: Literal["allow", "block"]
    for_: Annotated[Literal["once", "always"], Field(alias="for")] = "once"
    scope: Scope = ""
    act: ActNumber = None


class PreviewBody(Body):
    """Of a correction, `id` and `kind`, or of a retraction, `retract`."""

    id: DecisionId | None = None
    kind: JudgementKind | None = None
    act: ActNumber = None
    scope: Scope = ""
    retract: Annotated[str | None, Field(max_length=32, examples=["c12"])] = None
    days: Days = 7
    limit: Limit = 100

    @model_validator(mode="after")
    def _one(self) -> PreviewBody:
        if (self.retract is None) == (self.id is None) or (self.id is None) != (self.kind is None):
            raise ValueError("give id and kind of a correction, or retract")
        return self


REACH = {"looked_at": 1311, "changed": 14, "to": {"allow": 14, "ask": 0, "block": 0}, "decisions": []}
REACH |= {"summary": "would also allow 14 calls of the last 7 days"}


def add(app: FastAPI, service: GateService) -> None:
    """The routes."""
    store = service.store

    @app.post(
        "/v1/feedback", summary="Say what should have happened",
        responses=example({"id": "01a1…", "kind": "false_block", "label": 2.0, "weight": 4.0, "correction": "c12"}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def feedback(request: Request, body: FeedbackBody) -> Response:
        giver = giver_of(visitor_of(request))
        options = dict(act=body.act, scope=body.scope, once=body.once)
        given = await service.in_thread(changes.feedback, store, body.id, body.kind, giver, **options)
        signal = {**given.signal._asdict(), "target": given.signal.target}
        return answered({"id": body.id, **signal, **_told(given), "before": given.before})

    @app.post(
        "/v1/asks/{id}", summary="Answer a question",
        responses=example({"id": "01a1…", "state": "allowed", "kind": "override_allow", "once": True}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def answer(request: Request, id: Id, body: AnswerBody) -> Response:
        allow, giver = body.answer == "allow", giver_of(visitor_of(request))
        options: dict[str, Any] = dict(once=body.for_ == "once", act=body.act, scope=body.scope)
        given = await service.in_thread(changes.answer, store, id, allow, giver, **options)
        state = {"state": "allowed" if allow else "blocked", "kind": given.signal.kind, "once": options["once"]}
        return answered({"id": id, **state, **_told(given)})

    @app.get(
        "/v1/corrections", summary="List the corrections that hold", responses=example({"corrections": []}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def corrections() -> Response:
        def listed() -> list[dict[str, Any]]:
            records = store.journal.correction_records()
            by_id = {correction.id: correction for correction in store.journal.corrections()}
            return [_told_correction(record, by_id[f"c{record['sequence']}"]) for record in reversed(records)
                    if f"c{record['sequence']}" in by_id]  # fmt: skip

        return answered({"corrections": await service.in_thread(listed)})

    @app.post(
        "/v1/corrections/preview", summary="What a correction or a retraction would change", responses=example(REACH),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def preview(request: Request, body: PreviewBody) -> Response:
        def changed() -> Reach:
            now, but = basis_of(service), ""
            if body.retract is not None:
                then, touched = reach.without_correction(now, body.retract)
            else:
                assert body.id is not None and body.kind is not None
                touched = reach.corrected(store.journal, body.id, body.kind, body.act, body.scope)
                then, but = reach.with_correction(now, touched), body.id
            return Reach(store, now, then, body.days, body.limit, (touched,), but)

        looking = await service.in_thread(changed)
        await service.in_turns(looking.step, visitor_of(request))
        return answered(looking.plain())

    @app.delete(
        "/v1/corrections/{id}", summary="Take a correction back", responses=example({"id": "c12", "retracted": True}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def retract(request: Request, id: Id) -> Response:
        await service.in_thread(changes.retract, store, id, giver_of(visitor_of(request)))
        return answered({"id": id, "retracted": True})


def basis_of(service: GateService) -> Basis:
    """What decides by now."""
    decider = service.decider
    return Basis(decider.standards(), decider.policy, reach.Corrections(service.store.journal.corrections()))


def _told(given: Remark) -> dict[str, Any]:
    return {"correction": given.correction, "sequence": given.sequence}


def _told_correction(record: dict[str, Any], correction: Any) -> dict[str, Any]:
    when = datetime.fromtimestamp(record.get("time") or time_of(record["decision"]), UTC)
    own = {name: record[name] for name in ("decision", "allow", "kind", "actor", "named", "text")}
    own |= {"scope": record["widened"], "does": reach.does(correction)}
    return {"id": f"c{record['sequence']}", **own, "time": when.isoformat(timespec="milliseconds")}
