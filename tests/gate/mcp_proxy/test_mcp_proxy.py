"""What passes between client and server, and what does not; every message is as it would be without the proxy."""

import json

import pytest

pytest.importorskip("mcp", reason="the extra `gate` is not installed")

import anyio
from scenes import TOOLS, MadeUpGate, call, play, text

ODD = {"x-unknown": [1, {"deep": None}], "big": 2**70, "small": 1e-300, "ü": "\u2028"}


def test_everything_but_calls_passes_as_it_is():
    """Fields that no version of the protocol knows survive in both directions, on every level."""

    async def acts(scene):
        request = {"jsonrpc": "2.0", "id": 7, "method": "made/up", "params": ODD, "x": 1}
        scene.client.says(request)
        assert await scene.server.got() == request
        reply = {"jsonrpc": "2.0", "id": 7, "error": {"code": 5, "message": "no", "data": ODD, "x": 2}, "y": 3}
        scene.server.says(reply)
        assert await scene.client.got() == reply
        for note in ({"jsonrpc": "2.0", "method": "notifications/x", "params": ODD},):
            scene.server.says(note)
            assert await scene.client.got() == note
            scene.client.says(note)
            assert await scene.server.got() == note

    play(acts)


def test_an_allowed_call_reaches_the_server_and_its_result_the_client():
    async def acts(scene):
        await scene.list_tools()
        sent = call("read", "a", {"path": "a.txt", **ODD}, _meta={"progressToken": 3, **ODD}, future=ODD)
        scene.client.says(sent)
        assert await scene.server.got() == sent
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 3, "progress": 1}}
        scene.server.says(progress)
        assert await scene.client.got() == progress
        reply = {"jsonrpc": "2.0", "id": "a", "result": {"content": [{"type": "new", **ODD}], "x": 1}}
        scene.server.says(reply)
        assert await scene.client.got() == reply
        (asked,) = scene.gate.calls
        assert asked["tool"] == "mcp__server__read" and asked["arguments"] == {"path": "a.txt", **ODD}
        assert asked["schema"] == {"type": "object"} and (asked["session"], asked["cwd"]) == ("s1", "/home/ann/app")
        while not scene.gate.ran_ids:
            await anyio.sleep(0.01)
        assert scene.gate.ran_ids == ["d1"]

    play(acts)


def test_a_server_that_says_its_call_failed_has_run_it():
    async def acts(scene):
        await scene.list_tools()
        for id, result in ((1, {"content": [], "isError": True}), (2, {"resultType": "input_required"}), (3, {})):
            scene.call("read", id)
            await scene.server.got()
            scene.server.says({"jsonrpc": "2.0", "id": id, "result": result})
            assert (await scene.client.got())["result"] == result
        with anyio.fail_after(5):
            while len(scene.gate.ran_ids) < 2:
                await anyio.sleep(0.01)
        assert sorted(scene.gate.ran_ids) == ["d1", "d3"]

    play(acts)


def test_a_blocked_call_is_a_result_that_says_why_and_the_server_never_sees_it():
    async def acts(scene):
        await scene.list_tools()
        scene.call("delete", 5)
        reply = await scene.client.got()
        assert reply["id"] == 5 and "error" not in reply
        assert "delete is block" in text(reply) and "did not run" in text(reply)
        assert scene.server.nothing_more()

    play(acts)


@pytest.mark.parametrize("answer", ["nonsense", {}, {"id": "d", "decision": "perhaps"}, {"decision": "allow"}, None])
def test_without_a_decision_no_call_runs(answer):
    gate = MadeUpGate()
    gate.decide = lambda call: answer

    async def acts(scene):
        await scene.list_tools()
        scene.call("read")
        assert "did not run" in text(await scene.client.got())
        assert scene.server.nothing_more()

    play(acts, gate)


def test_a_gate_that_fails_refuses():
    """A daemon that is dead, and a fault that nobody has foreseen."""

    async def acts(scene):
        await scene.list_tools()
        scene.gate.broken = "no daemon listens"
        scene.call("read")
        assert "no daemon listens" in text(await scene.client.got())
        scene.gate.broken, scene.gate.decide = "", lambda call: 1 // 0
        scene.call("read")
        assert "ZeroDivisionError" in text(await scene.client.got())
        assert scene.server.nothing_more()

    play(acts)


def test_tools_are_listed_for_the_gate_where_the_client_has_not():
    """Page by page, under an id that the client cannot guess; the client sees nothing of it."""

    async def acts(scene):
        scene.call("read")
        asked = await scene.server.got()
        assert asked["method"] == "tools/list" and len(asked["id"]) > 30
        scene.server.says({"jsonrpc": "2.0", "id": asked["id"], "result": {"tools": TOOLS[1:], "nextCursor": "2"}})
        second = await scene.server.got()
        assert second["params"] == {"cursor": "2"} and second["id"] != asked["id"]
        scene.server.says({"jsonrpc": "2.0", "id": second["id"], "result": {"tools": TOOLS[:1]}})
        assert await scene.server.got() == call("read")
        assert scene.client.nothing_more()

    play(acts)


@pytest.mark.parametrize("name", ["hidden", "read ", "READ", "read\u200b", "", "read\n", "mcp__server__read"])
def test_a_tool_that_the_server_does_not_list_is_not_called(name):
    """A server that is careless with names would run another tool than the one that was judged."""

    async def acts(scene):
        await scene.list_tools()
        scene.call(name)
        assert "lists no tool" in text(await scene.client.got())
        assert scene.server.nothing_more() and not scene.gate.calls

    play(acts)


def test_two_tools_that_the_gate_would_take_for_one_are_not_called():
    async def acts(scene):
        await scene.list_tools([{"name": "a.b"}, {"name": "a/b"}, {"name": "c.think"}])
        scene.call("a.b")
        assert "cannot tell" in text(await scene.client.got())
        scene.call("c.think")
        await scene.client.got()
        assert [call["tool"] for call in scene.gate.calls] == ["mcp__server__c_think"]

    play(acts)


def test_a_call_without_an_id_is_dropped():
    async def acts(scene):
        await scene.list_tools()
        note = call("read")
        del note["id"]
        scene.client.says(note)
        scene.client.says({"jsonrpc": "2.0", "id": 9, "method": "ping"})
        assert (await scene.server.got())["method"] == "ping"
        assert not scene.gate.calls and "without an id" in scene.told[0]

    play(acts)


def test_an_id_in_use_is_refused():
    """Otherwise the answer to a harmless request could be taken for that of a call, or the other way round."""

    async def acts(scene):
        await scene.list_tools()
        scene.call("read", 1)
        await scene.server.got()
        scene.call("delete", 1)
        assert (await scene.client.got())["error"]["code"] == -32600
        scene.client.says({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert (await scene.client.got())["error"]["code"] == -32600
        scene.call("read", "1")  # is another one
        assert (await scene.server.got())["id"] == "1"

    play(acts)


def test_refused_lines_are_answered_and_go_nowhere():
    async def acts(scene):
        scene.client.says(json.dumps(call("read")).replace("tools/call", "tools/call ").encode())
        assert (await scene.client.got())["error"]["code"] == -32601
        scene.client.says(b"{]")
        assert (await scene.client.got())["id"] is None
        assert scene.server.nothing_more()

    play(acts)


def test_a_batch_is_decided_call_by_call():
    async def acts(scene):
        await scene.list_tools()
        scene.client.says(json.dumps([call("read", 1), call("delete", 2)]).encode())
        assert (await scene.server.got())["id"] == 1
        assert "delete is block" in text(await scene.client.got())

    play(acts)


def test_answers_that_nothing_asked_for_are_dropped():
    """A server that answers before it was asked, a call that is still being decided above all."""

    async def acts(scene):
        await scene.list_tools()
        scene.call("write", 3)
        for id in (3, "3", 4, True, [3]):
            scene.server.says({"jsonrpc": "2.0", "id": id, "result": {"content": []}})
        scene.server.says({"jsonrpc": "2.0", "method": "notifications/last"})
        assert (await scene.client.got())["method"] == "notifications/last"
        assert len(scene.told) == 5

    play(acts)


def test_requests_of_the_server_pass_to_the_client_and_back():
    """Sampling and elicitation of the server's own, even a call: they are the client's to answer."""

    async def acts(scene):
        for id, method in ((1, "sampling/createMessage"), ("e", "elicitation/create"), (2, "tools/call")):
            asked = {"jsonrpc": "2.0", "id": id, "method": method, "params": {"name": "delete", **ODD}}
            scene.server.says(asked)
            assert await scene.client.got() == asked
            answer = {"jsonrpc": "2.0", "id": id, "result": ODD}
            scene.client.says(answer)
            assert await scene.server.got() == answer
        assert not scene.gate.calls

    play(acts)


def test_cancelling_a_call_that_runs_passes_and_a_late_answer_does_not():
    async def acts(scene):
        await scene.list_tools()
        scene.call("read", 1)
        await scene.server.got()
        gone = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}}
        scene.client.says(gone)
        assert await scene.server.got() == gone
        scene.server.says({"jsonrpc": "2.0", "id": 1, "result": {}})
        scene.call("read", 1)  # the id is free again
        assert (await scene.server.got())["id"] == 1
        assert scene.client.nothing_more()

    play(acts)


def test_cancelling_a_call_that_waits_ends_the_wait():
    async def acts(scene):
        await scene.list_tools()
        scene.call("write", 1)
        while not scene.gate.states:
            await anyio.sleep(0.01)
        scene.client.says({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        scene.call("read", 2)
        assert (await scene.server.got())["id"] == 2  # the cancellation of what it never saw is not told to the server
        assert scene.client.nothing_more()

    play(acts)


def test_a_server_that_ends_is_an_error_for_every_open_request():
    async def acts(scene):
        await scene.list_tools()
        scene.call("read", 1)
        await scene.server.got()
        scene.call("write", 2)
        scene.client.says({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        await scene.server.got()
        while not scene.gate.states:
            await anyio.sleep(0.01)
        scene.server.ends()
        replies = [await scene.client.got() for _ in range(3)]
        assert {reply["id"] for reply in replies} == {1, 2, "p"}
        assert all(reply["error"]["code"] == -32000 and "ended" in reply["error"]["message"] for reply in replies)
        assert scene.end == "the MCP server has ended"

    play(acts)


def test_a_client_that_ends_ends_the_proxy():
    async def acts(scene):
        scene.client.ends()
        while scene.end == "not yet":
            await anyio.sleep(0.01)
        assert scene.end is None

    play(acts)


def test_the_gate_is_told_of_the_calls_before():
    """So that reading a secret and then sending is seen as one thing."""

    async def acts(scene):
        await scene.list_tools()
        for number in range(5):
            scene.call("read", number, arguments={"path": str(number)})
            await scene.server.got()
            scene.server.says({"jsonrpc": "2.0", "id": number, "result": {"content": []}})
            await scene.client.got()
        past = scene.gate.calls[-1]["history"]
        assert [call["arguments"]["path"] for call in past] == ["1", "2", "3"]

    play(acts)
