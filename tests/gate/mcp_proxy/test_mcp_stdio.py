"""The command between a client and servers that are started by it: what comes through is what comes without it."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra `gate` is not installed")

from typer.testing import CliRunner
from wires import EXAMPLE, made_up_daemon, proxy_command, reads, wire

from gradproof.commands.gate import app


def by_name(call):
    """Blocks what deletes."""
    return "block" if "delete" in call["tool"] else "allow"


@pytest.fixture
def daemon(tmp_path):
    with made_up_daemon(tmp_path / "gate", by_name) as made:
        yield made


@pytest.fixture
def direct():
    """The example server without a proxy."""
    with wire(EXAMPLE) as made:
        yield made


@pytest.fixture
def proxied(daemon):
    """The example server behind the proxy."""
    with wire(proxy_command(daemon.store, *EXAMPLE, name="example")) as made:
        yield made


def call(name, **arguments):
    return {"name": name, "arguments": arguments, "_meta": {"progressToken": "t"}}


def test_everything_is_as_it_is_without_the_proxy(direct, proxied, daemon):
    """Tools, resources, prompts, errors, progress, a result of 10 MB: the raw JSON is the same, in the same order."""
    said = []
    for one in (direct, proxied):
        said.append([one.initialize(elicitation={})])
        asks = [("tools/list", {}), ("tools/call", call("get_sum", a=2, b=3)), ("tools/call", call("get_sum", a="x"))]
        asks += [("tools/call", call("get_slowly", steps=20)), ("tools/call", call("get_text", length=10_000_000))]
        asks += [
            ("resources/list", {}),
            ("resources/templates/list", {}),
            ("resources/read", {"uri": "example://text"}),
        ]
        asks += [
            ("resources/read", {"uri": "example://none"}),
            ("prompts/list", {}),
            ("made/up", {"x": 1}),
            ("ping", {}),
        ]
        asks += [
            ("prompts/get", {"name": "greet", "arguments": {"name": "Ann"}}),
            ("logging/setLevel", {"level": "info"}),
        ]
        for number, (method, params) in enumerate(asks):
            one.says({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            reply, before = one.reply(number)
            said[-1] += [*before, reply]
    assert said[0] == said[1]
    assert sum(message.get("method") == "notifications/progress" for message in said[1]) == 20
    assert max(len(json.dumps(message)) for message in said[1]) > 10_000_000
    assert [one["tool"] for one in daemon.calls][:1] == ["mcp__example__get_sum"]
    assert daemon.calls[0]["annotations"] == {"readOnlyHint": True} and "properties" in daemon.calls[0]["schema"]
    assert proxied.end()[0] == 0


@pytest.mark.slow
def test_a_refused_call_does_not_run(direct, proxied, tmp_path):
    left = tmp_path / "left"
    proxied.initialize()
    refused = proxied.ask("tools/call", call("delete_everything", file=str(left)))["result"]
    assert refused["isError"] and "Blocked by the gate" in refused["content"][0]["text"]
    assert not left.exists()
    direct.initialize()
    assert not direct.ask("tools/call", call("delete_everything", file=str(left)))["result"]["isError"]
    assert left.exists()


@pytest.mark.slow
def test_the_servers_own_question_reaches_the_person(direct, proxied):
    """Elicitation by the server, in the middle of an allowed call."""
    said = []
    for one in (direct, proxied):
        one.initialize(elicitation={})
        one.says({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("get_name")})
        question = one.got()
        answer = {"action": "accept", "content": {"name": "Ann"}}
        one.says({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        said.append((question, one.reply(1)[0]))
    assert said[0] == said[1] and "Ann" in json.dumps(said[1][1])


@pytest.mark.slow
def test_cancellation_reaches_the_server(proxied, tmp_path):
    left = tmp_path / "left"
    proxied.initialize()
    proxied.says({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("get_never", file=str(left))})
    assert proxied.ask("tools/call", call("get_sum", a=1, b=1), id=2)["result"]["structuredContent"] == {"result": 2}
    assert reads(left, "started")
    proxied.says({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    assert reads(left, "cancelled")
    assert "result" in proxied.ask("ping", id=3)


def test_a_crash_is_told_to_every_open_request(proxied, tmp_path):
    proxied.initialize()
    proxied.says(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("get_never", file=str(tmp_path / "x"))}
    )
    proxied.ask("ping", id=2)
    proxied.says({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call("get_crash")})
    replies = [proxied.got(), proxied.got()]
    assert {reply["id"] for reply in replies} == {1, 3}
    assert all("exit status 7" in reply["error"]["message"] for reply in replies)
    status, logged = proxied.end()
    assert status == 1 and "exit status 7" in logged


@pytest.mark.slow
def test_a_dead_daemon_refuses_and_everything_else_goes_on(proxied, daemon):
    proxied.initialize()
    daemon.close()
    refused = proxied.ask("tools/call", call("get_sum", a=1, b=1))["result"]
    assert refused["isError"] and "did not run" in refused["content"][0]["text"]
    assert "result" in proxied.ask("prompts/list")


@pytest.mark.slow
def test_a_message_that_is_too_long_is_refused_and_the_next_one_is_not(daemon):
    with wire(proxy_command(daemon.store, *EXAMPLE)) as proxied:
        proxied.says(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b"x" * (33 << 20) + b'"}}')
        assert "at most" in proxied.got()["error"]["message"]
        proxied.initialize()
        assert "result" in proxied.ask("ping")


def test_what_a_server_prints_beside_messages_is_left_out(daemon):
    code = """if True:
        import json, sys
        print("Server running"); print("[1]"); print()
        for line in sys.stdin:
            message = json.loads(line)
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"x": 1}}), flush=True)
    """
    with wire(proxy_command(daemon.store, sys.executable, "-c", code)) as proxied:
        assert proxied.ask("made/up")["result"] == {"x": 1}
        status, logged = proxied.end()
    assert status == 0 and logged.count("is not a message") == 2


def test_a_server_gets_the_environment_but_not_the_reviewers_token(daemon):
    """With it the server could answer for a person."""
    code = """if True:
        import json, os, sys
        message = json.loads(sys.stdin.readline())
        said = [os.environ.get("GRADPROOF_GATE_TOKEN"), os.environ.get("OTHER")]
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"said": said}}), flush=True)
        sys.stdin.read()
    """
    environment = {**os.environ, "GRADPROOF_GATE_TOKEN": "gp_x", "OTHER": "there"}
    with wire(proxy_command(daemon.store, sys.executable, "-c", code), env=environment) as proxied:
        assert proxied.ask("made/up")["result"]["said"] == [None, "there"]


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_proxy_that_is_told_to_end_ends_its_server(daemon, how):
    """A server that ignores the end of its input."""
    code = "import time; print(flush=True)\nwhile True: time.sleep(1)"
    with wire(proxy_command(daemon.store, sys.executable, "-c", code)) as proxied:
        until = time.monotonic() + 20
        while not (started := children(proxied.process.pid)) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        proxied.process.send_signal(how)
        proxied.process.wait(20)
        assert started and not any(os.path.exists(f"/proc/{pid}") for pid in started)


@pytest.mark.parametrize(
    "flags, said",
    [
        ([], "name a server"),
        (["--url", "http://127.0.0.1:1/", "--", "x"], "name a server"),
        (["--header", "a:b", "--", "x"], "name a server"),
        (["--name", "a__b", "--", "x"], "--name"),
        (["--name", "é", "--", "x"], "--name"),
        (["--cwd", "/no/such/folder", "--", "x"], "/no/such/folder is not a folder"),
    ],
)
def test_what_cannot_start_says_why(daemon, flags, said):
    result = CliRunner().invoke(app, ["mcp-proxy", "--store", str(daemon.store), *flags])
    assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_server_that_does_not_exist(daemon):
    with wire(proxy_command(daemon.store, "/no/such/program")) as proxied:
        status, logged = proxied.end()
    assert status == 2 and "/no/such/program" in logged and "Traceback" not in logged
