"""A client of the `mcp` package, through the proxy, with servers that nobody has changed: as without the proxy.

The npm package @modelcontextprotocol/server-filesystem is looked for in the folder that GRADPROOF_MCP_SERVERS names, in
node_modules of the working directory and above, and where `npm install -g` puts it.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("mcp", reason="the extra `gate` is not installed")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from wires import EXAMPLE, made_up_daemon, proxy_command, reads, wire

PACKAGE = "@modelcontextprotocol/server-filesystem/dist/index.js"


def filesystem_server():
    """The command of the npm package's server, or None."""
    node = shutil.which("node")
    if node is None:
        return None
    named = os.environ.get("GRADPROOF_MCP_SERVERS")
    folders = [Path(named), Path(named) / "node_modules"] if named else []
    folders += [parent / "node_modules" for parent in (Path.cwd(), *Path.cwd().parents)]
    folders += [Path(node).resolve().parent.parent / "lib/node_modules", Path("/usr/local/lib/node_modules")]
    return next(([node, str(folder / PACKAGE)] for folder in folders if (folder / PACKAGE).exists()), None)


needs_filesystem = pytest.mark.skipif(
    filesystem_server() is None,
    reason="npm's @modelcontextprotocol/server-filesystem is not there: npm install it, and name the folder in"
    " GRADPROOF_MCP_SERVERS",
)


def by_name(call):
    return "block" if "delete" in call["tool"] or "move" in call["tool"] else "allow"


@contextmanager
def example_over_http():
    """The example server at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*EXAMPLE, str(port)], stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        for _ in range(600):
            with socket.socket() as knocking:
                if knocking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def heard(transport, said):
    """A transport that notes every message that comes out of it."""
    async with transport as (read, write):
        put, take = anyio.create_memory_object_stream(1000)

        async def note():
            async with put:
                async for message in read:
                    said.append(message.message.model_dump(mode="json", by_alias=True, exclude_unset=True))
                    await put.send(message)

        async with anyio.create_task_group() as group:
            group.start_soon(note)
            yield take, write
            group.cancel_scope.cancel()


def stdio(command):
    return stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))


def told(transport, acts, mode):
    """What a server says to a client that does this with it, in order."""
    said = []

    async def run():
        async with Client(heard(transport, said), mode=mode) as client:
            with anyio.fail_after(120):
                await acts(client)

    anyio.run(run)
    return said


async def everything(client):
    """Lists, reads, calls with progress and with a long result, cancels."""
    await client.list_tools()
    assert (await client.call_tool("get_sum", {"a": 2, "b": 3})).structured_content == {"result": 5}
    await client.call_tool("get_sum", {"a": "x"})
    steps = []

    async def on_progress(progress, total, message):
        steps.append(progress)

    await client.call_tool("get_slowly", {"steps": 12}, progress_callback=on_progress)
    assert steps == list(range(12))
    long = await client.call_tool("get_text", {"length": 10_000_000})
    assert len(long.content[0].text) == 10_000_000
    await client.list_resources()
    await client.list_resource_templates()
    assert (await client.read_resource("example://text")).contents[0].text == "a resource\n" * 3
    await client.list_prompts()
    assert "Greet Ann." in str(await client.get_prompt("greet", {"name": "Ann"}))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_the_example_server_over_pipes(tmp_path, mode):
    with made_up_daemon(tmp_path / "gate", by_name) as daemon:
        proxied = told(stdio(proxy_command(daemon.store, *EXAMPLE)), everything, mode)
    assert proxied == told(stdio(EXAMPLE), everything, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_the_example_server_over_http(tmp_path, mode):
    """The notes and answers of different requests travel on different streams: they are compared as a whole, and not by
    their order."""
    with example_over_http() as (url, _), made_up_daemon(tmp_path / "gate", by_name) as daemon:
        direct = told(streamable_http_client(url, max_sse_event_size=None), everything, mode)
        proxied = told(stdio(proxy_command(daemon.store, url=url)), everything, mode)
    by_text = dict(key=lambda message: json.dumps(message, sort_keys=True))
    assert sorted(direct, **by_text) == sorted(proxied, **by_text)


def started(proxied, left):
    """Makes the call that never ends until it runs; its id. On a busy machine a decision may come after the proxy's
    deadline: the call is refused then, and made again."""
    left.unlink(missing_ok=True)
    for _ in range(20):
        id = f"never-{time.monotonic_ns()}"
        never = {"name": "get_never", "arguments": {"file": str(left)}}
        proxied.says({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": never})
        while proxied.is_silent():
            if left.exists() and left.read_text() == "started":
                return id
            assert proxied.process.poll() is None
        reply = proxied.got()
        assert reply["id"] == id and "could not decide" in reply["result"]["content"][0]["text"], reply
    raise AssertionError("the gate never decided")


@pytest.mark.parametrize("version", ["2025-06-18"])
def test_a_server_over_http_in_short(tmp_path, version):
    """Allowed, refused, cancelled, and gone: the whole way over a URL."""
    left = tmp_path / "left"
    with example_over_http() as (url, server), made_up_daemon(tmp_path / "gate", by_name) as daemon:
        command = proxy_command(daemon.store, url=url, name="example")
        with wire(command) as proxied:
            proxied.initialize(version)
            sums = proxied.ask("tools/call", {"name": "get_sum", "arguments": {"a": 1, "b": 1}})
            assert sums["result"]["structuredContent"] == {"result": 2}
            refused = proxied.ask("tools/call", {"name": "delete_everything", "arguments": {"file": str(left)}})
            assert refused["result"]["isError"] and not left.exists()
            first = started(proxied, left)  # before that, a cancelled call is not passed on at all
            proxied.says({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": first}})
            assert reads(left, "cancelled")
            second = started(proxied, left)
            server.kill()
            proxied.says({"jsonrpc": "2.0", "id": "ping", "method": "ping"})
            gone = [proxied.got(), proxied.got()]
            assert {reply["id"] for reply in gone} == {second, "ping"} and all("error" in reply for reply in gone)
            status, logged = proxied.end()
    assert status == 1 and "connection to the MCP server failed" in logged


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "files"
    (made / "sub").mkdir(parents=True)
    (made / "a.txt").write_text("one\ntwo\nthree\n")
    (made / "big.txt").write_text("0123456789\n" * 1_000_000)
    return made


def use_files(folder):
    async def acts(client):
        await client.list_tools()
        for name, arguments in (
            ("list_allowed_directories", {}),
            ("read_text_file", {"path": str(folder / "a.txt"), "head": 2}),
            ("read_text_file", {"path": str(folder / "none.txt")}),
            ("read_text_file", {"path": "/etc/passwd"}),
            ("read_text_file", {"path": str(folder / "big.txt")}),
            ("list_directory", {"path": str(folder)}),
            ("directory_tree", {"path": str(folder)}),
            ("search_files", {"path": str(folder), "pattern": "*.txt"}),
            ("write_file", {"path": str(folder / "b.txt"), "content": "ü\n"}),
            ("edit_file", {"path": str(folder / "b.txt"), "edits": [{"oldText": "ü", "newText": "u"}]}),
            ("create_directory", {"path": str(folder / "new")}),
        ):
            await client.call_tool(name, arguments)

    return acts


@pytest.mark.slow
@needs_filesystem
def test_the_filesystem_server_of_npm(tmp_path, folder):
    command = [*filesystem_server(), str(folder)]
    with made_up_daemon(tmp_path / "gate", by_name) as daemon:
        proxied = told(stdio(proxy_command(daemon.store, *command, name="filesystem")), use_files(folder), "legacy")
        assert len(daemon.calls) == 11
    (folder / "b.txt").unlink()
    (folder / "new").rmdir()
    assert proxied == told(stdio(command), use_files(folder), "legacy")
    assert max(len(json.dumps(message)) for message in proxied) > 10_000_000


@pytest.mark.slow
@needs_filesystem
def test_the_filesystem_server_of_npm_does_not_do_what_is_refused(tmp_path, folder):
    async def acts(client):
        moved = {"source": str(folder / "a.txt"), "destination": str(folder / "sub" / "a.txt")}
        refused = await client.call_tool("move_file", moved)
        assert refused.is_error and "Blocked by the gate" in refused.content[0].text

    with made_up_daemon(tmp_path / "gate", by_name) as daemon:
        told(stdio(proxy_command(daemon.store, *filesystem_server(), str(folder))), acts, "legacy")
    assert (folder / "a.txt").exists()


# the real daemon


@pytest.fixture
def project(tmp_path):
    made = tmp_path / "work" / "project"
    (made / ".git").mkdir(parents=True)
    return made


@pytest.fixture
def served(store):
    """The small gate, served by a daemon of its own, which the proxy starts; it ends with the test."""
    yield store
    pid = _pid(store.folder)
    if pid:
        os.kill(pid, 15)


def _pid(folder):
    """Of the daemon that serves a store."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and str(folder).encode() in words:
            return int(entry.parent.name)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, server", [pytest.param("legacy", "npm", marks=needs_filesystem), ("2026-07-28", "example")]
)
def test_a_person_at_the_client_answers_a_real_gate(tmp_path, project, served, mode, server):
    """Reading is allowed; a payment, and what its server calls destructive, is asked about: allowed once, then denied,
    and nothing of it remembered; a system file is blocked. The answers are in the audit log."""
    questions, answers = [], ["allow this call", "deny"]
    left, system = project / "left.txt", {"path": "/etc/passwd", "content": ""}
    if server == "npm":
        command = [*(filesystem_server() or ()), str(project)]
        harmless = ("list_directory", {"path": str(project)})
        serious = ("write_file", {"path": str(left), "content": "done"})
    else:
        command, harmless = EXAMPLE, ("get_text", {"length": 1000})
        serious = ("pay_invoice", {"amount": 10, "file": str(left)})

    async def asked(context, params):
        questions.append(params.message)
        return ElicitResult(action="accept", content={"answer": answers[len(questions) - 1]})

    async def run():
        proxy = proxy_command(served.folder, *command, name="filesystem", cwd=project, session="s9")
        async with Client(stdio(proxy), mode=mode, elicitation_callback=asked) as client:
            with anyio.fail_after(120):
                assert not (await client.call_tool(*harmless)).is_error and not questions
                assert not (await client.call_tool(*serious)).is_error
                assert left.read_text() == "done"
                left.unlink()
                refused = await client.call_tool(*serious)
                assert refused.is_error and "refused this call" in refused.content[0].text
                blocked = await client.call_tool("write_file", system)
                assert blocked.is_error and "Blocked by the gate" in blocked.content[0].text

    anyio.run(run)
    assert len(questions) == 2 and "left.txt" in questions[0] and not left.exists()
    logged = [line for line in served.audit.lines(most=1000) if line["kind"] == "answer"]
    assert [(line["signal"], line["once"]) for line in logged] == [("override_allow", True), ("override_block", True)]
    assert all("/" in line["actor"] for line in logged)
