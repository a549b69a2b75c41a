"""Routes for administrators: policy, rules, settings, versions, tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from pydantic import Field

from gradproof.gate import changes
from gradproof.gate.reach import Basis, Reach, with_rules
from gradproof.gate.rules import Rules
from gradproof.gate.service import ADMIN, REVIEWER, ROLES, GateService, giver_of, may
from gradproof.gate.service_calls import answered, example, visitor_of
from gradproof.gate.service_words import REACH, Body, Days, Limit, basis_of
from gradproof.gate.standing import parsed_table
from gradproof.gate.status import versions_of
from gradproof.http.answers import Refused
from gradproof.http.door import Visitor

FileText = Annotated[str, Field(max_length=changes.MOST_TEXT)]
Stamp = Annotated[str | None, Field(max_length=64)]
VersionNumber = Annotated[int | None, Field(ge=1, lt=1 << 32)]
Share = Annotated[float | None, Field(gt=0, lt=1, allow_inf_nan=False)]
Amount = Annotated[float | None, Field(ge=0, le=36_500, allow_inf_nan=False)]
TokenName = Annotated[str, Field(max_length=64, examples=["ci"])]


class TextBody(Body):
    text: FileText
    stamp: Stamp = None


class TextPreviewBody(Body):
    text: FileText
    days: Days = 7
    limit: Limit = 100


class SettingsBody(Body):
    shadow: bool | None = None
    review_hours: Amount = None
    ask_minutes: Amount = None
    keep_days: Amount = None
    log_arguments: bool | None = None
    false_allow: Share = None
    false_block: Share = None


class RollbackBody(Body):
    version: VersionNumber = None
    serving: VersionNumber = None


class TokenBody(Body):
    name: TokenName
    role: Annotated[str, Field(max_length=16, examples=["agent"])]


POLICY = {
    "text": '[read]\nallow = "project temp"\n',
    "default": False,
    "stamp": "9f…",
    "table": {"read": {"project": "allow"}},
}
RULES = {"text": "", "default": True, "stamp": "9f…", "rules": []}


def add(app: FastAPI, service: GateService) -> None:
    """The routes."""
    _add_policy(app, service)
    _add_rules(app, service)
    _add_settings(app, service)
    _add_versions(app, service)
    _add_tokens(app, service)


def _add_policy(app: FastAPI, service: GateService) -> None:
    store = service.store

    def told() -> dict[str, Any]:
        text, default = changes.policy_text(store)
        table: dict[str, dict[str, str]] = {}
        for (effect, scope), outcome in parsed_table(text).items():
            table.setdefault(effect, {})[scope] = outcome
        return {"text": text, "default": default, "stamp": changes.stamp_of(text), "table": table}

    @app.get("/v1/policy", summary="The policy", responses=example(POLICY), **may(REVIEWER, ADMIN))
    async def policy() -> Response:
        return answered(await service.in_thread(told))

    @app.put("/v1/policy", summary="Replace the policy", responses=example(POLICY), **may(ADMIN))
    async def put_policy(request: Request, body: TextBody) -> Response:
        giver = giver_of(visitor_of(request))
        await service.in_thread(changes.write_policy, store, body.text, giver, body.stamp)
        return answered(await service.in_thread(told))

    @app.delete("/v1/policy", summary="Take the default policy", responses=example(POLICY), **may(ADMIN))
    async def default_policy(request: Request) -> Response:
        await service.in_thread(changes.write_policy, store, None, giver_of(visitor_of(request)))
        return answered(await service.in_thread(told))

    @app.post(
        "/v1/policy/preview", summary="What a policy would change", responses=example(REACH), **may(REVIEWER, ADMIN)
    )
    async def preview(request: Request, body: TextPreviewBody) -> Response:
        return await _previewed(
            service, visitor_of(request), body, lambda now: replace(now, policy=parsed_table(body.text))
        )


def _add_rules(app: FastAPI, service: GateService) -> None:
    store = service.store

    def told() -> dict[str, Any]:
        text, default = changes.rules_text(store)
        rules = [{"effect": rule.effect, "line": rule.line, "reason": rule.reason} for rule in Rules.parse(text).rules]
        return {"text": text, "default": default, "stamp": changes.stamp_of(text), "rules": rules}

    @app.get("/v1/rules", summary="The rules", responses=example(RULES), **may(REVIEWER, ADMIN))
    async def rules() -> Response:
        return answered(await service.in_thread(told))

    @app.put("/v1/rules", summary="Replace the rules", responses=example(RULES), **may(ADMIN))
    async def put_rules(request: Request, body: TextBody) -> Response:
        giver = giver_of(visitor_of(request))
        await service.in_thread(changes.write_rules, store, body.text, giver, body.stamp)
        return answered(await service.in_thread(told))

    @app.post("/v1/rules/preview", summary="What rules would change", responses=example(REACH), **may(REVIEWER, ADMIN))
    async def preview(request: Request, body: TextPreviewBody) -> Response:
        return await _previewed(service, visitor_of(request), body, lambda now: with_rules(now, body.text))


def _add_settings(app: FastAPI, service: GateService) -> None:
    def told() -> dict[str, Any]:
        settings = changes.read_settings(service.store.folder)
        return {name: getattr(settings, name) for name in changes.CHANGEABLE}

    shown = example({"shadow": False, "ask_minutes": 15.0})

    @app.get("/v1/settings", summary="The settings", responses=shown, **may(REVIEWER, ADMIN))
    async def settings() -> Response:
        return answered(await service.in_thread(told))

    @app.put("/v1/settings", summary="Change some settings", responses=shown, **may(ADMIN))
    async def put_settings(request: Request, body: SettingsBody) -> Response:
        given = {name: value for name, value in body.model_dump().items() if value is not None}
        if given:
            giver = giver_of(visitor_of(request))
            await service.in_thread(changes.write_settings, service.store, given, giver)
        return answered(await service.in_thread(told))


def _add_versions(app: FastAPI, service: GateService) -> None:
    store = service.store

    @app.get(
        "/v1/versions", summary="Versions of the model", responses=example({"serving": 3, "versions": []}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def versions() -> Response:
        listed = await service.in_thread(versions_of, store)
        return answered({"serving": store.versions.serving(), "versions": listed})

    @app.post(
        "/v1/versions/rollback", summary="Let an earlier version serve", responses=example({"serving": 2, "before": 3}),
        **may(ADMIN),
    )  # fmt: skip
    async def rollback(request: Request, body: RollbackBody) -> Response:
        giver = giver_of(visitor_of(request))
        serving, before = await service.in_thread(changes.roll_back, store, giver, body.version, body.serving)
        return answered({"serving": serving, "before": before})


def _add_tokens(app: FastAPI, service: GateService) -> None:
    store, tokens = service.store, service.tokens

    @app.get("/v1/tokens", summary="List tokens", responses=example({"tokens": []}), **may(ADMIN))
    async def listed() -> Response:
        return answered({"tokens": [token.plain() for token in await service.in_thread(tokens.all)]})

    @app.post(
        "/v1/tokens", summary="Create a token; it is shown once",
        responses=example({"name": "ci", "role": "agent", "token": "gp_ci_…"}), **may(ADMIN),
    )  # fmt: skip
    async def add_token(request: Request, body: TokenBody) -> Response:
        giver = giver_of(visitor_of(request))
        made = await service.in_thread(tokens.add, body.name, body.role)
        await service.in_thread(changes.log_tokens, store, giver, "made", body.name, body.role)
        return answered({"name": body.name, "role": body.role, "token": made})

    @app.delete(
        "/v1/tokens/{name}", summary="Revoke a token", responses=example({"name": "ci", "revoked": True}), **may(ADMIN),
    )  # fmt: skip
    async def revoke(request: Request, name: Annotated[str, Path(max_length=64)]) -> Response:
        giver = giver_of(visitor_of(request))
        if all(token.name != name for token in await service.in_thread(tokens.all)):
            raise Refused(404, "there is no token of that name")
        taken = await service.in_thread(tokens.revoke, name)
        await service.in_thread(changes.log_tokens, store, giver, "revoked", name, taken.role)
        return answered({"name": name, "revoked": True})

    assert tokens.roles == ROLES


async def _previewed(
    service: GateService, visitor: Visitor, body: TextPreviewBody, change: Callable[[Basis], Basis]
) -> Response:
    def changed() -> Reach:
        now = basis_of(service)
        return Reach(service.store, now, change(now), body.days, body.limit)

    looking = await service.in_thread(changed)
    await service.in_turns(looking.step, visitor)
    return answered(looking.plain())
