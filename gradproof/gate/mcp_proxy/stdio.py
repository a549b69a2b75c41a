"""The peers on pipes: the client on standard input and output, and a server that is started here.

A message is a line. The `mcp` package's own transports read lines into typed messages, which drop unknown fields of the
envelope, an id that is null and batches; so lines are read here.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from anyio import to_thread
from anyio.abc import Process
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp_types import INVALID_REQUEST

from gradproof.gate.mcp_proxy import messages
from gradproof.gate.mcp_proxy.messages import JsonMessage, RefusedError
from gradproof.gate.mcp_proxy.proxy import ServerEndedError, Tell

MOST_FROM_CLIENT, MOST_FROM_SERVER = 32 * 2**20, 256 * 2**20  # bytes of a message
CHUNK = 2**16
ATOMIC = 4096  # bytes that a pipe takes without blocking once it can be written to
QUEUE = 64  # messages that wait to be written
FLUSH, GRACE, KILL = 5.0, 2.0, 2.0  # seconds for the last messages; for a server to end by itself, and after SIGTERM
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


async def lines(receive: Callable[[], Awaitable[bytes]], most: int) -> AsyncIterator[bytes | None]:
    """Lines without their ends; None for one that is longer than `most`. An empty chunk is the end."""
    parts: list[bytes] = []
    size, skipping = 0, False
    while chunk := await receive():
        *ended, rest = chunk.split(b"\n")
        for end in ended:
            whole = b"".join((*parts, end))
            yield None if skipping or len(whole) > most else whole
            parts, size, skipping = [], 0, False
        parts.append(rest)
        size += len(rest)
        if size > most:
            parts, size, skipping = [], 0, True
    if skipping or size:
        yield None if skipping else b"".join(parts)


class LineWriter:
    """Writes whole lines, one after the other, whatever happens to those who send them."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]):
        self._write = write
        self._put, self._take = anyio.create_memory_object_stream[bytes](QUEUE)
        self._done = anyio.Event()

    async def send(self, message: JsonMessage) -> None:
        with suppress(*GONE):  # who is gone reads nothing; its end is seen where it is read from
            await self._put.send(messages.line(message))

    async def run(self) -> None:
        try:
            async with self._take:
                async for line in self._take:
                    await self._write(line)
        except (*GONE, OSError):
            return
        finally:
            self._done.set()

    async def finish(self, seconds: float) -> None:
        """Nothing more comes; what waits is written, if it can be by then."""
        self._put.close()
        with anyio.move_on_after(seconds, shield=True):
            await self._done.wait()


class StdioClient:
    """The client at the two ends of this process."""

    def __init__(self, source: int, sink: int):
        self.source, self.sink = source, sink
        self._writer = LineWriter(self._written)

    async def received(self) -> AsyncIterator[JsonMessage | RefusedError]:
        async for line in lines(self._read, MOST_FROM_CLIENT):
            if line is None:
                yield RefusedError(INVALID_REQUEST, f"a message has at most {MOST_FROM_CLIENT:,} bytes")
            elif line.strip():
                for message in messages.from_client(line):
                    yield message

    async def send(self, message: JsonMessage) -> None:
        await self._writer.send(message)

    async def _read(self) -> bytes:
        try:
            await anyio.wait_readable(self.source)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.EPERM:
                raise
            return await to_thread.run_sync(os.read, self.source, CHUNK)  # a file, which never keeps anybody waiting
        with suppress(ConnectionError):
            return os.read(self.source, CHUNK)
        return b""

    async def _written(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            try:
                await anyio.wait_writable(self.sink)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno != errno.EPERM:
                    raise
            view = view[os.write(self.sink, view[:ATOMIC]) :]


class ServerProcess:
    """A server that was started here; it belongs to a process group of its own, and ends with the proxy."""

    def __init__(self, process: Process, tell: Tell):
        self.process, self.tell = process, tell
        self._writer = LineWriter(self._written)

    async def received(self) -> AsyncIterator[JsonMessage | RefusedError]:
        async for line in lines(self._read, MOST_FROM_SERVER):
            if line is None:  # whose answer it was cannot be told, so everybody would wait for ever
                raise ServerEndedError(f"the MCP server sent a message of more than {MOST_FROM_SERVER:,} bytes")
            if not line.strip():
                continue
            try:
                for message in messages.from_server(line):
                    yield message
            except ValueError as error:
                self.tell(f"dropped a line of the server that is not a message: {error}")
        with anyio.move_on_after(GRACE):
            await self.process.wait()
        raise ServerEndedError(f"the MCP server has ended{_how(self.process.returncode)}")

    async def send(self, message: JsonMessage) -> None:
        await self._writer.send(message)

    async def _read(self) -> bytes:
        assert self.process.stdout is not None
        with suppress(*GONE, OSError):
            return await self.process.stdout.receive(CHUNK)
        return b""

    async def _written(self, line: bytes) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(line)

    async def stop(self) -> None:
        """As the protocol has it: its input ends, then it has a moment, then it is told to, then it is made to."""
        await self._writer.finish(GRACE)
        with suppress(*GONE, OSError):
            assert self.process.stdin is not None
            await self.process.stdin.aclose()
        with anyio.move_on_after(GRACE):
            await self.process.wait()
        await terminate_posix_process_tree(self.process, KILL)


@asynccontextmanager
async def stdio_client() -> AsyncIterator[StdioClient]:
    """The client of this process. Whatever else prints goes to standard error, for standard output is the client's."""
    sink = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    client = StdioClient(0, sink)
    async with anyio.create_task_group() as group:
        group.start_soon(client._writer.run)
        try:
            yield client
        finally:
            await client._writer.finish(FLUSH)
            group.cancel_scope.cancel()


@asynccontextmanager
async def server_process(command: Sequence[str], tell: Tell, but: Collection[str] = ()) -> AsyncIterator[ServerProcess]:
    """Starts a server, with this process's environment, `but` these variables, and its standard error."""
    pipe, own = subprocess.PIPE, {name: value for name, value in os.environ.items() if name not in but}
    process = await anyio.open_process(
        command, stdin=pipe, stdout=pipe, stderr=sys.stderr, env=own, start_new_session=True
    )
    server = ServerProcess(process, tell)
    async with anyio.create_task_group() as group:
        group.start_soon(server._writer.run)
        try:
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop()
            group.cancel_scope.cancel()


def _how(status: int | None) -> str:
    if status is None:
        return ""
    return f", killed by signal {-status}" if status < 0 else f" with exit status {status}"
