"""The proxy: passes messages through unchanged, but sends tool calls to the doorkeeper first.

    client → server    tools/call is decided; everything else passes. An id in use is refused; the client's ids are kept
    server → client    everything passes, but an answer that nothing asked for; tools/list is looked at
    the proxy's own    tools/list to the server, elicitation to the client, under ids that neither can guess

Each side is a `McpSide`. Where the server ends, every open request is answered by an error.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST

from gradproof.gate.mcp_proxy import messages
from gradproof.gate.mcp_proxy.asking import ClientOffer, client_of_call, name_of, offer, offer_of_call, one_line
from gradproof.gate.mcp_proxy.doorkeeper import AskedBack, AskedTool, Doorkeeper, Passed, TurnedAway
from gradproof.gate.mcp_proxy.known_tools import KnownTools, ToolChange
from gradproof.gate.mcp_proxy.messages import CALL, LIST, JsonMessage, JsonRpcId, RefusedError

MOST_OPEN = 1000  # requests of a client at a time
MOST_PAGES = 100  # of a list of tools
LISTING = 30.0  # seconds that a server has to list its tools
FIRST_PROGRESS, PROGRESS = 1.0, 5.0  # seconds until a waiting client hears of it, and between two such notes
STEP = 1e-6  # by which such notes rise: the server's own figures come later, and must not be lower
CANCELLED, LIST_CHANGED = "notifications/cancelled", "notifications/tools/list_changed"

Tell = Callable[[str], None]


class McpSide(Protocol):
    """One side: the messages that come from it, until it ends, and how one is sent there, which is never cut short."""

    def received(self) -> AsyncIterator[JsonMessage | RefusedError]: ...
    async def send(self, message: JsonMessage) -> None: ...


class ServerEndedError(Exception):
    """The server is gone; the message says how."""


@dataclass
class OpenRequest:
    """A request of the client. A call that is being decided has `deciding`, and has not gone on to the server; one that
    passed has the id of its `decision`."""

    message: JsonMessage
    deciding: anyio.CancelScope | None = None
    decision: str = ""

    @property
    def method(self) -> str:
        return self.message["method"]


@dataclass
class OwnRequest:
    """A request of the proxy."""

    done: anyio.Event = field(default_factory=anyio.Event)
    answer: JsonMessage | None = None


class Proxy:
    """Between one client and one server."""

    def __init__(self, client: McpSide, server: McpSide, doorkeeper: Doorkeeper, tools: KnownTools, tell: Tell):
        self.client, self.server, self.doorkeeper, self.tools, self.tell = client, server, doorkeeper, tools, tell
        self.offer, self.client_name = ClientOffer(), ""
        self._open: dict[tuple[str, JsonRpcId], OpenRequest] = {}
        self._own: dict[str, OwnRequest] = {}  # to the server
        self._asked: dict[str, OwnRequest] = {}  # to the client
        self._listing = anyio.Lock()
        self._ended: str | None = None  # why the server has ended

    async def run(self) -> str | None:
        """Until the client ends; or until the server does: then, why. Every open request has been answered then."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._serve, group)
            async for message in self.client.received():
                await self._from_client(message, group)
            group.cancel_scope.cancel()
        if self._ended is not None:
            await self._fail_all(self._ended)
        return self._ended

    async def _serve(self, group: TaskGroup) -> None:
        try:
            async for message in self.server.received():
                if not isinstance(message, RefusedError):
                    await self._from_server(message, group)
            self._ended = "the MCP server has ended"
        except ServerEndedError as error:
            self._ended = str(error)
        group.cancel_scope.cancel()

    # from the client

    async def _from_client(self, message: JsonMessage | RefusedError, group: TaskGroup) -> None:
        if isinstance(message, RefusedError):
            self.tell(f"refused a message of the client: {message}")
            await self.client.send(message.reply())
        elif messages.is_response(message):
            own = self._asked.get(message["id"]) if isinstance(message["id"], str) else None
            if own is None:
                await self.server.send(message)
            elif not own.done.is_set():
                own.answer = message
                own.done.set()
        elif messages.is_request(message):
            await self._request(message, group)
        else:
            await self._notification(message)

    async def _request(self, message: JsonMessage, group: TaskGroup) -> None:
        id, key = message["id"], messages.key(message["id"])
        assert key is not None  # or the message would have been refused
        if key in self._open or len(self._open) >= MOST_OPEN:
            why = "is in use by a request that is still open" if key in self._open else "is one too many"
            return await self.client.send(messages.error(id, INVALID_REQUEST, f"the id {id!r:.60} {why}"))
        request = self._open[key] = OpenRequest(message)
        if message["method"] != CALL:
            return await self.server.send(message)
        request.deciding = anyio.CancelScope()
        group.start_soon(self._call, request, key, group)

    async def _notification(self, message: JsonMessage) -> None:
        if message["method"] == CALL:  # nobody could be told whether it may run, so it does not
            return self.tell(f"dropped a {CALL} without an id")
        if message["method"] == CANCELLED:
            params = message.get("params")
            key = messages.key(params.get("requestId")) if isinstance(params, dict) else None
            request = self._open.get(key) if key is not None else None
            if request is not None and request.deciding is not None:
                return request.deciding.cancel()
            if key is not None:
                self._open.pop(key, None)  # it gets no answer any more
        await self.server.send(message)

    async def _call(self, request: OpenRequest, key: tuple[str, JsonRpcId], group: TaskGroup) -> None:
        """Decides a call, and sends it on or answers it."""
        scope, reply = request.deciding, None
        assert scope is not None
        with scope:
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(self._progress, request.message)
                reply = await self._admitted(request)
                waiting.cancel_scope.cancel()
        request.deciding = None
        if scope.cancelled_caught:
            self._open.pop(key, None)
        elif reply is None:  # from here on the server gets the call first, and a cancellation after it
            await self.server.send(request.message)
        else:  # it stays open until it is answered, for the server may end meanwhile
            await self.client.send(reply)
            del self._open[key]

    async def _admitted(self, request: OpenRequest) -> JsonMessage | None:
        """The answer to a call that does not run; None where it runs."""
        message = request.message
        id, params = message["id"], message["params"]
        try:
            tool = await self._tool(message)
            if isinstance(tool, str):
                return messages.refusal(id, tool)
            now = offer_of_call(message) or self.offer
            person = f"{self.doorkeeper.visitor.person}/{client_of_call(message) or self.client_name or 'mcp'}"
            passage = await self.doorkeeper.admit(params, tool, now, self._ask_client, person)
        except Exception as error:  # whatever fails, no call runs because of it
            self.tell(f"deciding a call failed: {type(error).__name__}: {error}")
            return messages.refusal(id, f"The gate failed on this call, so it did not run: {type(error).__name__}.")
        if isinstance(passage, TurnedAway):
            return messages.refusal(id, passage.why)
        if isinstance(passage, AskedBack):
            return messages.result(id, passage.result)
        assert isinstance(passage, Passed)
        request.message = {**message, "params": dict(passage.params)}
        request.decision = passage.id
        return None

    async def _tool(self, call: JsonMessage) -> AskedTool | str:
        """The called tool as the server lists it; or why it cannot be called."""
        name, server = call["params"]["name"], self.doorkeeper.visitor.server
        if not self.tools.fresh:
            failure = await self._list_tools(call)
            if failure and self.tools.get(name) is None:
                return f"The server's tools could not be listed, so the call did not run: {failure}"
        if self.tools.get(name) is None:
            return f"The server lists no tool {name[:100]!r}, so the call did not run."
        if (other := self.tools.namesake(name)) is not None:
            return f"The gate cannot tell the tool {name[:100]!r} from {other[:100]!r}, so the call did not run."
        qualified = self.tools.qualified(server, name)
        return AskedTool(name, qualified, self.tools.annotations(name), self.tools.schema(name))

    async def _list_tools(self, call: JsonMessage) -> str:
        """Lists the server's tools for the gate; why that failed, or nothing."""
        async with self._listing:
            if self.tools.fresh:
                return ""
            listed: list[Any] = []
            meta = call["params"].get("_meta") if offer_of_call(call) is not None else None
            params: dict[str, Any] = {"_meta": {k: v for k, v in meta.items() if k != "progressToken"}} if meta else {}
            with anyio.move_on_after(LISTING):
                for _ in range(MOST_PAGES):
                    answer = await self._ask_server(LIST, params)
                    page = answer.get("result")
                    if not isinstance(page, dict) or not isinstance(page.get("tools"), list):
                        return one_line(str(answer.get("error", "no list came back")), 300)
                    listed += page["tools"]
                    if not isinstance(page.get("nextCursor"), str):
                        await self._look_at(listed, whole=True)
                        return ""
                    params = {**params, "cursor": page["nextCursor"]}
                return f"the list has more than {MOST_PAGES} pages"
            return f"no answer within {LISTING:g} s"

    async def _ask_server(self, method: str, params: Mapping[str, Any]) -> JsonMessage:
        id = f"gradproof-{secrets.token_hex(16)}"
        request = self._own[id] = OwnRequest()
        try:
            await self.server.send({"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params)})
            await request.done.wait()
            return request.answer or {}
        finally:
            del self._own[id]

    async def _ask_client(self, params: Mapping[str, Any]) -> Any:
        """What the client answers to an elicitation; None where it cannot ask."""
        id = f"gradproof-{secrets.token_hex(16)}"
        request = self._asked[id] = OwnRequest()
        try:
            asked = {"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": dict(params)}
            await self.client.send(asked)
            await request.done.wait()
        finally:
            del self._asked[id]
            if request.answer is None:
                with anyio.move_on_after(1, shield=True):
                    gone = {"requestId": id, "reason": "the question is answered elsewhere, or no longer open"}
                    await self.client.send(messages.notification(CANCELLED, gone))
        return (request.answer or {}).get("result")

    async def _progress(self, call: JsonMessage) -> None:
        """Keeps a client that asked for progress from giving up while a person is waited for."""
        meta = call["params"].get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if messages.key(token) is None:
            return
        await anyio.sleep(FIRST_PROGRESS)
        for count in range(1, 10_000):
            waiting = {"progressToken": token, "progress": count * STEP, "message": "waiting for the gate's decision"}
            await self.client.send(messages.notification("notifications/progress", waiting))
            await anyio.sleep(PROGRESS)

    # from the server

    async def _from_server(self, message: JsonMessage, group: TaskGroup) -> None:
        if messages.is_response(message):
            return await self._response(message, group)
        if "method" not in message:
            return self.tell("dropped a message of the server that is neither request nor response")
        if isinstance(message.get("id"), str) and message["id"] in self._asked:
            return self.tell("dropped a request of the server under an id of the proxy")
        if message["method"] == LIST_CHANGED:
            self.tools.fresh = False
        await self.client.send(message)

    async def _response(self, message: JsonMessage, group: TaskGroup) -> None:
        id = message.get("id")
        if id is None:  # the server could not read some message; the client shall know
            return await self.client.send(message)
        if isinstance(id, str) and id in self._own:
            self._own[id].answer = message
            return self._own[id].done.set()
        key = messages.key(id)
        request = self._open.get(key) if key is not None else None
        if request is None or request.deciding is not None:
            return self.tell("dropped an answer of the server to a request that it does not have")
        assert key is not None
        del self._open[key]
        await self._look_into(request, message.get("result"), group)
        await self.client.send(message)

    async def _look_into(self, request: OpenRequest, result: Any, group: TaskGroup) -> None:
        """What the proxy has to know of an answer on its way to the client."""
        if not isinstance(result, dict):
            return
        params = request.message.get("params")
        params = params if isinstance(params, dict) else {}
        if request.method == "initialize":
            self.offer = offer(result.get("protocolVersion"), params.get("capabilities"))
            self.client_name = name_of(params.get("clientInfo"))
        elif request.method == LIST and isinstance(result.get("tools"), list):
            whole = not params.get("cursor") and not result.get("nextCursor")
            await self._look_at(result["tools"], whole)
        elif request.method == CALL:
            self.doorkeeper.continued(params, result, request.decision)
            # A call that failed has run too; and isError is what the server says of itself.
            if request.decision and result.get("resultType") != "input_required":
                group.start_soon(self.doorkeeper.ran, request.decision)

    async def _look_at(self, tools: list[Any], whole: bool) -> None:
        for change in self.tools.listed(tools, whole):
            await self._report(change)

    async def _report(self, change: ToolChange) -> None:
        self.tell(str(change))
        await self.doorkeeper.changed(change.tool, change.parts)
        if not self.offer.stateless:  # there, notes come only to those who subscribed to them
            note = {"level": "warning", "logger": "gradproof", "data": str(change)}
            await self.client.send(messages.notification("notifications/message", note))

    async def _fail_all(self, why: str) -> None:
        """Every open request is answered."""
        for request in list(self._open.values()):
            await self.client.send(messages.error(request.message["id"], CONNECTION_CLOSED, why))
        self._open.clear()
