"""The prediction service: JSON records in, decisions out, over HTTP.

    POST /predict   a record, or {"records": [...]}     GET /schema    what a record holds
                    with "explain": true beside records: why
    GET /healthz    is it up, and what does it serve    GET /metrics   for Prometheus

{"records": [...], "costs": {"CLASS": 5}} decides by what a mistake costs for rows of each class.

Whatever a client sends is answered with JSON: its predictions, or {"error": "one sentence"} and a 4xx. What one client
can make the service hold in memory is bounded by the limits below.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.http.answers import ConnectionScope, Receive, Refused, Send, as_json, respond
from gradproof.http.limits import BodyReader
from gradproof.http.listening import address_of, listen, need_serve
from gradproof.http.metrics import Counted, RequestMeters
from gradproof.serve.batcher import INLINE, WAITING, Batcher, Busy
from gradproof.serve.predict import as_records
from gradproof.serve.records import BadRecord, RecordReader
from gradproof.train.costs import cost_array, decide
from gradproof.train.explanation import Explainer
from gradproof.train.predictor import CHUNK, Predictions, Predictor

if TYPE_CHECKING:
    from fastapi import FastAPI

BODY_LIMIT = 1 << 20  # bytes of one request
RECORDS_LIMIT = 10_000  # records of one request
EXPLAINED_LIMIT = 100  # of one request with explanations: each takes as long as some hundred decisions
EXPLAINED_WAITING = 1000  # records of all requests that are waiting for explanations
PIECE = 256  # records of an answer that are written at once
SMALL = 4_000_000  # parameters; a smaller model loses more to waking threads than it gains from them
PATHS = ("/predict", "/healthz", "/schema", "/metrics")


def app(
    predictor: Predictor,
    *,
    explainer: Explainer | None = None,
    run: str = "",
    step: int = 0,
    body_limit: int = BODY_LIMIT,
    batching: bool = True,
) -> FastAPI:
    """The service as an ASGI app. Without `batching` every request is a forward of its own; without an `explainer` no
    decision is explained."""
    need_serve()
    from fastapi import FastAPI
    from starlette.routing import Route

    meters = Meters(predictor.schema)
    small = predictor.model.params.count < SMALL and predictor.model.params.flat_P.device.type == "cpu"
    batcher = Batcher(meters.counted(predictor), CHUNK if batching else 1, inline=INLINE if small else 0)
    meters.watch(batcher)

    reasons = Reasons(explainer)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()
        reasons.close()

    service = FastAPI(openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    service.add_middleware(Counted, meters=meters)
    # A pure ASGI endpoint: it stops reading a body that is too long, and closes the connection gently.
    endpoint = Predict(RecordReader(predictor.schema), batcher, reasons, body_limit, meters)
    service.router.routes.append(Route("/predict", endpoint, methods=["POST"]))
    _add_pages(service, predictor.schema, meters, run, step)
    _add_errors(service)
    return service


class Reasons:
    """Explanations for requests, in a thread of their own: decisions do not wait for them."""

    def __init__(self, explainer: Explainer | None):
        self.explainer = explainer
        self.waiting = 0  # records
        self._thread = ThreadPoolExecutor(1, "explain")

    def check(self, records: int) -> None:
        """Before anything is decided."""
        if self.explainer is None:
            raise BadRecord("this service cannot explain decisions; omit explain")
        if records > EXPLAINED_LIMIT:
            raise BadRecord(f"a batch with explanations has at most {EXPLAINED_LIMIT} records, not {records:,}")
        if self.waiting and self.waiting + records > EXPLAINED_WAITING:
            raise Busy(f"{self.waiting:,} records are waiting for explanations")

    async def __call__(self, rows: Rows, predictions: Predictions) -> list[dict[str, Any] | None]:
        assert self.explainer is not None
        self.waiting += rows.count
        try:
            loop = asyncio.get_running_loop()
            explained = await loop.run_in_executor(self._thread, self.explainer, rows, predictions.decision_T)
            return [explanation and explanation.record() for explanation in explained]
        finally:
            self.waiting -= rows.count

    def close(self) -> None:
        """Lets the thread end."""
        self._thread.shutdown(wait=False)


class Predict:
    """POST /predict, from the bytes of a body to the bytes of the answer."""

    def __init__(self, reader: RecordReader, batcher: Batcher, reasons: Reasons, body_limit: int, meters: Meters):
        self.reader, self.batcher, self.reasons = reader, batcher, reasons
        self.body, self.meters = BodyReader(body_limit, "send the records in several requests"), meters
        self.schema = reader.schema
        self.rows = 0  # rows that are not answered
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        try:
            body = await self.body(scope, receive)
            if body is not None:  # else the client went away
                await respond(send, 200, await self._answer(body))
        except Refused as refused:
            await refused.respond(receive, send)
        except BadRecord as bad:
            await respond(send, 422, as_json({"error": str(bad)}))
        except Busy as busy:
            await respond(send, 429, as_json({"error": f"{busy}; try again in a second"}))

    async def _answer(self, body: bytes) -> bytes:
        records, many, cost_C, explain = self._records(self._parsed(body))
        rows, unread = self.reader.read(records)
        if explain and self.schema.quantity:
            raise BadRecord("explain needs a classifier; this run predicts a number")
        if explain:
            self.reasons.check(rows.count)
        if self.rows and self.rows + rows.count > WAITING:
            raise Busy(f"{self.rows:,} rows are waiting")
        self.rows += rows.count
        try:
            predictions = decide(await self.batcher(rows), cost_C)
            if (predictions.decision_T < 0).any():
                i = int(predictions.decision_T.argmin()) + 1
                raise BadRecord(f"record {i}: the model's output for it is not finite")
            for column in chain.from_iterable(unread.values()):
                self.meters.unread.labels(column).inc()
            self.meters.decided(predictions)
            if explain:
                reasons = await self.reasons(rows, predictions)
                decided = as_records(predictions, self.schema, unread)
                explained = [{**record, "explanation": why} for record, why in zip(decided, reasons, strict=True)]
                return as_json({"predictions": explained})
            if many:
                return await self._listed(predictions, unread)
            return as_json(as_records(predictions, self.schema, unread)[0])
        finally:
            self.rows -= rows.count

    async def _listed(self, predictions: Predictions, unread: Mapping[int, list[str]]) -> bytes:
        """Written piece by piece: a large answer does not keep the small ones waiting."""
        pieces = []
        for start in range(0, predictions.count, PIECE):
            if start:
                await asyncio.sleep(0)
            here = {i - start: columns for i, columns in unread.items() if start <= i < start + PIECE}
            pieces.append(as_json(as_records(predictions.slice(start, start + PIECE), self.schema, here))[1:-1])
        return b'{"predictions": [' + b", ".join(pieces) + b"]}"

    def _parsed(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body.decode())
        except UnicodeDecodeError as error:
            raise Refused(400, f"the body is not UTF-8 (compressed ones are not read): byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {error}") from None
        except RecursionError:
            raise Refused(400, "the body is nested too deeply") from None
        except ValueError:
            raise Refused(400, "the body is not JSON: an integer has too many digits") from None

    def _records(self, content: Any) -> tuple[list, bool, np.ndarray | None, bool]:
        """The records, whether the answer is a list, cost_C where costs were sent, and whether the answer says why. A
        column may be named `records`: it never holds a list."""
        if not isinstance(content, dict):
            raise BadRecord('the body must be an object: a record, or {"records": [...]}')
        records = content.get("records")
        if "records" not in content or ("records" in self.reader.known and not isinstance(records, list)):
            return [content], False, None, False
        if not isinstance(records, list) or content.keys() - {"records", "costs", "explain"}:
            raise BadRecord('a batch is {"records": [...]} with no other keys than "costs" and "explain"')
        explain = content.get("explain", False)
        if not isinstance(explain, bool):
            raise BadRecord("explain must be true or false")
        if not 1 <= len(records) <= RECORDS_LIMIT:
            raise BadRecord(f"a batch must have 1 to {RECORDS_LIMIT:,} records, not {len(records):,}")
        return records, True, self._costs(content["costs"]) if "costs" in content else None, explain

    def _costs(self, costs: Any) -> np.ndarray:
        if not isinstance(costs, dict):
            raise BadRecord('costs must be {"CLASS": NUMBER, ...}: the cost of a wrong decision for rows of each class')
        try:
            return cost_array(costs.items(), self.schema.classes)
        except ValueError as error:
            raise BadRecord(f"costs: {error}") from None


def _refuse_constant(name: str) -> None:
    raise Refused(400, f"the body is not JSON: {name} is not a JSON number; use null for a missing value")


class Meters(RequestMeters):
    """What /metrics tells. Labels take few values: our own paths, status codes, the classes."""

    def __init__(self, schema: Schema):
        from prometheus_client import Counter, Gauge, Histogram

        super().__init__("gradproof", lambda scope: scope["path"] if scope["path"] in PATHS else "other")
        self.rows = self.meter(Counter, "rows", "Rows predicted.")
        text = "Values that did not fit and counted as missing."
        self.unread = self.meter(Counter, "unread_values", text, ("column",))
        self.batch = self.meter(Histogram, "batch_rows", "Rows a forward.", buckets=[4**i for i in range(8)])
        self.waiting = self.meter(Gauge, "waiting_rows", "Rows in the queue.")
        decisions = self.meter(Counter, "decisions", "Decisions by class.", ("decision",))
        self.decisions = [decisions.labels(name) for name in schema.classes]

    def watch(self, batcher: Batcher) -> None:
        self.waiting.set_function(lambda: batcher.waiting)

    def counted(self, predictor: Predictor) -> Callable[[Rows], Predictions]:
        """The predictor, each forward of which is counted."""

        def predict(rows: Rows) -> Predictions:
            predictions = predictor(rows)
            self.rows.inc(rows.count)
            self.batch.observe(rows.count)
            return predictions

        return predict

    def decided(self, predictions: Predictions) -> None:
        """Counts the decisions of an answer: after the forward, since each request may have costs of its own."""
        for decision, count in collections.Counter(predictions.decision_T.tolist()).items():
            if decision < len(self.decisions):  # a number is not a decision
                self.decisions[decision].inc(count)


def _add_pages(service: FastAPI, schema: Schema, meters: Meters, run: str, step: int) -> None:
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.responses import Response

    health = dict(status="ok", run=run, step=step, inputs=schema.inputs)
    health |= dict(task="regression") if schema.quantity else dict(classes=list(schema.classes))

    @service.get("/healthz")
    async def _healthz() -> Response:
        return Response(as_json(health), media_type="application/json")

    @service.get("/schema")
    async def _schema() -> Response:
        return Response(as_json(described(schema)), media_type="application/json")

    @service.get("/metrics")
    async def _metrics() -> Response:
        return Response(meters.text(), headers={"content-type": CONTENT_TYPE_LATEST})


def described(schema: Schema) -> dict[str, Any]:
    """What a record holds and what an answer says, for a person or a client to read."""
    columns = [
        dict(name=c.name, kind="category", values=list(c.values), other=c.other, missing=c.missing, boolean=c.boolean)
        for c in schema.categories
    ]
    columns += [
        dict(
            name=n.name,
            kind="date" if n.date else "number",
            mean=n.mean,
            std=n.std,
            missing=n.missing,
            format=n.format.example if n.format else None,
        )
        for n in schema.numbers
        if not n.part
    ]
    metrics = [dict(name=m.name, low=m.low, high=m.high) for m in schema.metrics]
    ignored = [schema.target, *(metric.name for metric in schema.metrics), *schema.left_out]
    answer: dict[str, Any] = dict(classes=list(schema.classes), metrics=metrics)
    if quantity := schema.quantity:
        answer = dict(mean=quantity.mean, std=quantity.std)
    return dict(columns=columns, target=schema.target, **answer, ignored=ignored)


def _add_errors(service: FastAPI) -> None:
    """What is answered outside of /predict is JSON too."""
    from starlette.responses import Response

    async def refused(request: Any, error: Any) -> Response:
        allowed = (error.headers or {}).get("Allow", "")
        sentence = {
            404: f"there is no such path; the paths are {', '.join(PATHS)}",
            405: f"this path takes {allowed} only",
        }
        content = as_json({"error": sentence[error.status_code]})
        return Response(content, error.status_code, error.headers, "application/json")

    async def failed(request: Any, error: Exception) -> Response:
        content = as_json({"error": "the service failed on this request; the reason is in its log"})
        return Response(content, 500, media_type="application/json")

    service.add_exception_handler(404, refused)
    service.add_exception_handler(405, refused)
    service.add_exception_handler(Exception, failed)


def serve(
    predictor: Predictor,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    explainer: Explainer | None = None,
    run: str = "",
    step: int = 0,
    body_limit: int = BODY_LIMIT,
    batching: bool = True,
) -> None:
    """Serves until Ctrl-C, which lets the requests in flight finish. ValueError when the address cannot be had."""
    service = app(predictor, explainer=explainer, run=run, step=step, body_limit=body_limit, batching=batching)
    import uvicorn

    listener = listen(host, port)
    if predictor.model.params.count < SMALL:
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is loaded stays: collections need not look at it again
    print(f"serving {run or 'the model'} at http://{address_of(listener)} (Ctrl-C stops it)", flush=True)
    options: dict[str, Any] = dict(log_level="warning", access_log=False, server_header=False, ws="none")
    try:
        with suppress(KeyboardInterrupt):  # uvicorn's way to say that it has shut down
            uvicorn.Server(uvicorn.Config(service, timeout_graceful_shutdown=10, **options)).run([listener])
    finally:
        gc.unfreeze()
