"""The peer for streamable HTTP: a server at a URL, through the transport of the `mcp` package.

The transport keeps sessions, streams, reconnection and redirects. It parses messages into types, in which fields that
it does not know survive inside `params`, `result` and an error's `data`, and not beside them. What it does not do by
itself is stamp the headers of a message, which a session of the package would.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from gradproof.gate.mcp_proxy.doorkeeper import inmost
from gradproof.gate.mcp_proxy.messages import CALL, JsonMessage, RefusedError
from gradproof.gate.mcp_proxy.proxy import ServerEndedError, Tell

CONNECTING = 30.0  # seconds to connect and to write; an answer may take as long as it takes
QUEUE = 64
CLOSING = 5.0  # seconds to end the session
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)

SchemaOf = Callable[[str], Any]


class RawRequest(JSONRPCRequest, extra="allow"):
    pass


class RawNotification(JSONRPCNotification, extra="allow"):
    pass


class RawResponse(JSONRPCResponse, extra="allow"):
    pass


class RawError(JSONRPCError, extra="allow"):
    pass


class HttpServer:
    """`schema_of` knows the input schema of a tool, from which the headers of its calls follow."""

    def __init__(self, url: str, headers: Mapping[str, str], schema_of: SchemaOf, tell: Tell):
        self.url, self.headers, self.schema_of, self.tell = url, dict(headers), schema_of, tell
        self._put, self._take = anyio.create_memory_object_stream[SessionMessage](QUEUE)
        self._arrive, self._arrived = anyio.create_memory_object_stream[JsonMessage](QUEUE)
        self._stop, self._stopped = anyio.Event(), anyio.Event()
        self._version = ""  # as the handshake has settled it
        self._initialize: Any = None  # the id of the request that settles it
        self._why = "the MCP server has closed the connection"

    async def received(self) -> AsyncIterator[JsonMessage | RefusedError]:
        async for message in self._arrived:
            result = message.get("result")
            if isinstance(result, dict) and "id" in message and message["id"] == self._initialize:
                self._version = str(result.get("protocolVersion", ""))
            yield message
        raise ServerEndedError(self._why)

    async def send(self, message: JsonMessage) -> None:
        if message.get("method") == "initialize":
            self._initialize = message.get("id")
        try:
            typed = _typed(message)
        except ValidationError:
            return self.tell("dropped a message of the client that cannot be sent over HTTP")
        try:
            await self._put.send(SessionMessage(typed, ClientMessageMetadata(headers=self._stamped(message))))
        except GONE:
            return  # its end is seen where it is read from

    async def run(self) -> None:
        """Until `stop`, or until the connection fails."""
        timeout = httpx2.Timeout(CONNECTING, read=None)
        try:
            async with (
                self._arrive,
                create_mcp_http_client(self.headers, timeout) as client,
                streamable_http_client(self.url, http_client=client, max_sse_event_size=None) as (read, write),
                anyio.create_task_group() as group,
            ):

                async def outward() -> None:
                    async for message in self._take:
                        await write.send(message)

                async def inward() -> None:
                    async for message in read:
                        if isinstance(message, SessionMessage):
                            await self._arrive.send(_plain(message.message))
                        else:
                            self.tell(f"dropped what the server sent and nobody can read: {message}")
                    group.cancel_scope.cancel()

                group.start_soon(outward)
                group.start_soon(inward)
                await self._stop.wait()
                group.cancel_scope.cancel()
        except* Exception as errors:
            error = inmost(errors)
            self._why = f"the connection to the MCP server failed: {str(error) or type(error).__name__}"
            self._arrive.close()
        finally:
            self._stopped.set()

    async def stop(self) -> None:
        self._stop.set()
        with anyio.move_on_after(CLOSING):
            await self._stopped.wait()

    def _stamped(self, message: JsonMessage) -> dict[str, str]:
        """The headers that go with a message, by the version of its session."""
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        version = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
        if version not in MODERN_PROTOCOL_VERSIONS or not isinstance(method, str):
            return {MCP_PROTOCOL_VERSION_HEADER: self._version} if self._version and method != "initialize" else {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: str(version), MCP_METHOD_HEADER: method}
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        schema = self.schema_of(name) if method == CALL and isinstance(name, str) else None
        if schema is not None and find_invalid_x_mcp_header(schema) is None:
            headers |= mcp_param_headers(x_mcp_header_map(schema), params.get("arguments") or {})
        return headers


@asynccontextmanager
async def http_server(
    url: str, headers: Mapping[str, str], schema_of: SchemaOf, tell: Tell
) -> AsyncIterator[HttpServer]:
    """A server at a URL; `headers` go with every request."""
    server = HttpServer(url, headers, schema_of, tell)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        try:
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop()
            group.cancel_scope.cancel()


def _typed(message: JsonMessage) -> JSONRPCMessage:
    if "method" in message:
        kind = RawRequest if "id" in message else RawNotification
    else:
        kind = RawResponse if "result" in message else RawError
    return kind.model_validate(message)


def _plain(message: JSONRPCMessage) -> JsonMessage:
    return message.model_dump(mode="json", by_alias=True, exclude_unset=True)
