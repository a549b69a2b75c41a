"""Routes for status and history, and the console."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from gradproof.gate import trend
from gradproof.gate.service import ADMIN, AGENT, EVERYBODY, REVIEWER, GateService, may
from gradproof.gate.service_calls import Wait, answered, example, visitor_of
from gradproof.gate.status import status
from gradproof.gate.store import SETTINGS
from gradproof.http.answers import Refused

CONSOLE = Path(__file__).with_name("console")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
DAY = 86400.0


def add(app: FastAPI, service: GateService) -> None:
    """The routes."""
    _add_doing(app, service)
    _add_audit(app, service)
    _add_console(app)

    @app.get("/healthz", summary="Is it up?", responses=example({"status": "ok"}), **may(EVERYBODY, socket=True))
    async def healthz(request: Request) -> Response:
        told: dict[str, Any] = {"status": "ok"}
        if request.scope.get("visitor") is not None:
            told |= {"version": service.decider.serving.number, "shadow": service.store.settings.shadow}
        return answered(told)

    @app.get(
        "/v1/me", summary="Who asks", responses=example({"name": "ann", "role": "admin"}), **may(AGENT, REVIEWER, ADMIN)
    )
    async def me(request: Request) -> Response:
        visitor = visitor_of(request)
        return answered({"name": visitor.name, "role": visitor.role})

    @app.get("/metrics", summary="For Prometheus", response_class=Response, **may(REVIEWER, ADMIN))
    async def metrics() -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST

        return Response(service.meters.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/openapi.json", include_in_schema=False, **may(REVIEWER, ADMIN))
    async def openapi() -> Response:
        return answered(documented(app))


def documented(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with who may do what."""
    document = app.openapi()
    bearer = {"type": "http", "scheme": "bearer", "description": "gradproof gate token add NAME --role ROLE"}
    document.setdefault("components", {})["securitySchemes"] = {"token": bearer}
    refusals = {"401": "No token, or a wrong one.", "403": "The role may not.", "429": "Too many requests."}
    refusals |= {"400": "Not JSON.", "404": "Not there.", "409": "Somebody came first.", "413": "Too long."}
    refusals |= {"422": "Not what is read."}
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    for path in document["paths"].values():
        for operation in path.values():
            operation["security"] = [] if EVERYBODY in operation.get("x-roles", ()) else [{"token": []}]
            for status_code, text in refusals.items():
                content = {"application/json": {"schema": error}}
                operation["responses"][status_code] = {"description": text, "content": content}
    return document


def _add_doing(app: FastAPI, service: GateService) -> None:
    store = service.store

    @app.get(
        "/v1/status", summary="Versions, alignment, trust, drift, the daemon", responses=example({"serving": 3}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def status_of() -> Response:
        told = await service.in_thread(status, store)
        return answered({**told, "daemon": daemon_record(service)})

    @app.get("/v1/history", summary="The trend", responses=example({"points": []}), **may(REVIEWER, ADMIN))
    async def history(days: Annotated[float, Query(gt=0, le=366, allow_inf_nan=False)] = 30) -> Response:
        def told() -> list[dict[str, Any]]:
            kept = trend.points(store, store.clock() - days * DAY)
            return [*kept, trend.point(store, service.decided)]

        return answered({"points": await service.in_thread(told)})

    @app.get(
        "/v1/changes", summary="Wait for news", responses=example({"stamp": "9f…", "decisions": "01a1…", "serving": 3}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def changes(request: Request, stamp: Annotated[str, Query(max_length=64)] = "", wait: Wait = 0) -> Response:
        def news() -> dict[str, Any] | None:
            told = _news(service)
            return told if told["stamp"] != stamp else None

        return answered(await service.until(news, wait, visitor_of(request)) or _news(service))


def _add_audit(app: FastAPI, service: GateService) -> None:
    store = service.store

    @app.get("/v1/audit", summary="Lines of the audit log", responses=example({"lines": []}), **may(REVIEWER, ADMIN))
    async def audit(
        after: Annotated[int, Query(ge=0, le=1 << 53)] = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> Response:
        lines = await service.in_thread(store.audit.lines, after, limit)
        head = await service.in_thread(store.audit.head)
        return answered({"lines": lines, "head": {"count": head.count, "mac": head.mac}})

    @app.get(
        "/v1/audit/check", summary="Check the audit log", responses=example({"whole": True, "lines": 1311}),
        **may(REVIEWER, ADMIN),
    )  # fmt: skip
    async def check() -> Response:
        report = await service.in_thread(store.audit.check)
        told = {"whole": report.whole, "lines": report.lines, "problems": report.problems[:100]}
        return answered({**told, "count": report.head.count if report.head else 0})


def _add_console(app: FastAPI) -> None:
    """The page: files of one folder, by name; nothing else can be reached."""

    @app.get("/", include_in_schema=False, **may(EVERYBODY))
    async def page() -> Response:
        return _file("index.html")

    @app.get("/console/{name}", include_in_schema=False, **may(EVERYBODY))
    async def file(name: str) -> Response:
        return _file(name)


def _file(name: str) -> Response:
    there = {path.name: path for path in CONSOLE.iterdir() if path.is_file()} if CONSOLE.is_dir() else {}
    path = there.get(name)
    if path is None or path.suffix not in TYPES:
        raise Refused(404, "there is no such page")
    return Response(path.read_bytes(), media_type=TYPES[path.suffix])


def daemon_record(service: GateService) -> dict[str, Any]:
    """The process that answers."""
    head = service.store.audit.head()
    return {
        "pid": os.getpid(),
        "started": service.started,
        "uptime": time.time() - service.started,
        "version": service.decider.serving.number,
        "address": service.address,
        "socket": service.socket,
        "complaint": service.decider.complaint,
        "waiting": service.deciding.waiting,
        "learner": dict(service.learner()),
        "audit": {"count": head.count, "mac": head.mac},
    }


def _news(service: GateService) -> dict[str, Any]:
    """What may have changed, each as something that is another then."""
    store = service.store
    files = [_stamp(path) for path in (store.rules, store.policy, store.folder / SETTINGS)]
    told = {
        "decisions": store.journal.newest_id(),
        "asks": str(store.journal.asks.stamp()),
        "corrections": store.journal.corrections_stamp().decode(),
        "serving": store.versions.serving(),
        "files": hashlib.sha256(repr(files).encode()).hexdigest()[:16],
    }
    return {"stamp": hashlib.sha256(repr(told).encode()).hexdigest()[:16], **told}


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        there = path.stat()
    except OSError:
        return 0, 0, 0
    return there.st_ino, there.st_mtime_ns, there.st_size
