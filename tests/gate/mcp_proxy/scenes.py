"""A proxy between a client and a server that the test plays itself, in front of a gate that the test makes up."""

from contextlib import asynccontextmanager

import anyio

from gradproof.gate.mcp_proxy import doorkeeper
from gradproof.gate.mcp_proxy.doorkeeper import Doorkeeper, ProxiedClient, UndecidedError
from gradproof.gate.mcp_proxy.known_tools import KnownTools
from gradproof.gate.mcp_proxy.messages import from_client
from gradproof.gate.mcp_proxy.proxy import Proxy

PATIENCE = 5  # seconds that a test waits for what must come
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write", "delete")]


class MadeUpGate:
    """Allows what reads, asks about what writes, blocks the rest; remembers what it was asked."""

    def __init__(self, answerable=True):
        self.calls, self.said, self.ran_ids, self.changes = [], [], [], []
        self.states, self.passes = {}, 0
        self.answerable, self.broken, self.address = answerable, "", None

    def decide(self, call):
        if self.broken:
            raise UndecidedError(self.broken)
        self.calls.append(call)
        id, name = f"d{len(self.calls)}", call["tool"].rsplit("__", 1)[-1]
        if name == "write" and self.passes:
            self.passes -= 1
            return {"id": id, "decision": "allow", "reason": "a person allowed it"}
        decision = {"read": "allow", "write": "ask"}.get(name, "block")
        if decision == "ask":
            self.states[id] = "waiting"
        at = {"answer_at": self.address} if self.address else {}
        return {"id": id, "decision": decision, "reason": f"{name} is {decision}", **at}

    def state(self, id):
        if self.states[id] == "allowed":
            self.passes = max(self.passes, 1)
        return self.states[id]

    def ran(self, id):
        self.ran_ids.append(id)

    def changed(self, *what):
        self.changes.append(what)

    def may_answer(self):
        return self.answerable

    def answer(self, id, allow, always, who):
        if self.states[id] != "waiting":
            raise UndecidedError("it was answered before")
        self.said.append((id, allow, always, who))
        self.states[id] = "allowed" if allow else "blocked"
        self.passes += allow


class PlayedPeer:
    """One end; the test puts in what comes from it, and takes out what went there."""

    def __init__(self):
        self._put, self._come = anyio.create_memory_object_stream(1000)
        self._gone, self._take = anyio.create_memory_object_stream(1000)

    async def received(self):
        async for read in self._come:
            for message in read:
                yield message

    async def send(self, message):
        self._gone.send_nowait(message)

    def says(self, message):
        """A message as plain data, or a line as a client would write it."""
        self._put.send_nowait(from_client(message) if isinstance(message, bytes) else [message])

    def ends(self):
        self._put.close()

    async def got(self):
        with anyio.fail_after(PATIENCE):
            return await self._take.receive()

    def nothing_more(self):
        return self._take.statistics().current_buffer_used == 0


class Scene:
    def __init__(self, gate, wait, file):
        self.gate, self.client, self.server = gate, PlayedPeer(), PlayedPeer()
        self.tools, self.told = KnownTools(file, "server"), []
        visitor = ProxiedClient("server", "/home/ann/app", "s1", "mcp", "ann", wait)
        self.doorkeeper = Doorkeeper(gate, visitor)
        self.proxy = Proxy(self.client, self.server, self.doorkeeper, self.tools, self.told.append)
        self.end = "not yet"

    async def initialize(self, version="2025-06-18", capabilities=None):
        params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": {"name": "agent"}}
        self.client.says({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        await self.server.got()
        self.server.says({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": version, "capabilities": {}}})
        await self.client.got()

    async def list_tools(self, tools=TOOLS):
        self.client.says({"jsonrpc": "2.0", "id": "list", "method": "tools/list"})
        await self.server.got()
        self.server.says({"jsonrpc": "2.0", "id": "list", "result": {"tools": tools}})
        return await self.client.got()

    def call(self, name, id=1, **more):
        self.client.says(call(name, id, **more))


def call(name, id=1, arguments=None, **more):
    params = {"name": name, "arguments": arguments if arguments is not None else {"path": "a.txt"}, **more}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


@asynccontextmanager
async def scene(gate=None, wait=PATIENCE, file=None):
    made = Scene(gate or MadeUpGate(), wait, file)

    async def run():
        made.end = await made.proxy.run()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        yield made
        group.cancel_scope.cancel()


def play(acts, *args, **kwargs):
    """Runs an asynchronous function that takes a scene; the console is looked at often."""

    async def run():
        doorkeeper.POLL = 0.02
        async with scene(*args, **kwargs) as made:
            await acts(made)

    anyio.run(run)


def text(message):
    """What a refused call says to the agent."""
    assert message["result"]["isError"] is True, message
    return message["result"]["content"][0]["text"]


__all__ = ["TOOLS", "MadeUpGate", "UndecidedError", "call", "play", "scene", "text"]
