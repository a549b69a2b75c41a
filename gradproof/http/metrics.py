"""Metrics of a service's requests for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gradproof.http.answers import AsgiApp, ConnectionScope, Message, Receive, Send


class RequestMeters:
    """Requests and their seconds, by path and status. Labels take few values: `path_of` gives one of our own paths."""

    def __init__(self, prefix: str, path_of: Callable[[ConnectionScope], str]):
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

        self.prefix, self.path_of = prefix, path_of
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self.meter(Counter, "requests", "Requests answered.", ("path", "status"))
        self.seconds = self.meter(Histogram, "request_seconds", "From headers to answer.", ("path",))
        self._children: dict[tuple[str, int], tuple[Any, Any]] = {}

    def meter(self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
        """A counter, gauge or histogram of prometheus_client."""
        return kind(f"{self.prefix}_{name}", text, labels, registry=self.registry, **options)

    def answered(self, scope: ConnectionScope, status: int, seconds: float) -> None:
        path = self.path_of(scope)
        if (path, status) not in self._children:
            self._children[path, status] = self.requests.labels(path, status), self.seconds.labels(path)
        requests, histogram = self._children[path, status]
        requests.inc()
        histogram.observe(seconds)

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


class Counted:
    """ASGI middleware: counts every answer, by path and status."""

    def __init__(self, app: AsgiApp, meters: RequestMeters):
        self.app, self.meters = app, meters

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.meters.answered(scope, message["status"], time.perf_counter() - start)
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception:  # answered with a 500 further out
            self.meters.answered(scope, 500, time.perf_counter() - start)
            raise
