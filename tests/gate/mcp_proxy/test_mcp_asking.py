"""Questions about a call: at the client, in the way of its version, or on the console; nothing passes without an answer
that the gate has taken."""

import json

import anyio
import pytest

pytest.importorskip("mcp", reason="the extra `gate` is not installed")

from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from scenes import MadeUpGate, UndecidedError, call, play, text

from gradproof.gate.mcp_proxy import asking
from gradproof.gate.mcp_proxy.asking import ALWAYS, DENY, ONCE, ClientOffer, offer

FORM, URL = {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}
PAGE = "http://127.0.0.1:8377/#asks/d1"


def modern(capabilities, **meta):
    named = {CLIENT_INFO_META_KEY: {"name": "agent", "version": "1"}}
    return {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: capabilities, **named, **meta}


def answer(id, action="accept", **content):
    result = {"action": action, **({"content": content} if content else {})}
    return {"jsonrpc": "2.0", "id": id, "result": result}


async def asked_about(scene, **more):
    """Lists, calls, and returns the question at the client."""
    await scene.list_tools()
    scene.call("write", 1, **more)
    question = await scene.client.got()
    assert question["method"] == "elicitation/create"
    return question


@pytest.mark.parametrize(
    "version, capabilities, modes",
    [
        ("2025-03-26", FORM, ()),
        ("2025-06-18", {"elicitation": {}}, ("form",)),
        ("2025-06-18", {}, ()),
        ("2025-06-18", URL, ("form",)),
        ("2025-11-25", {"elicitation": {}}, ("form",)),
        ("2025-11-25", FORM, ("form",)),
        ("2025-11-25", URL, ("url",)),
        ("2026-07-28", {"elicitation": {"form": {}, "url": {}}}, ("form", "url")),
        ("2026-07-28", {"elicitation": None}, ()),
        ("2031-01-01", FORM, ()),
        (None, FORM, ()),
        ("2025-06-18", "elicitation", ()),
    ],
)
def test_only_what_a_client_offers_is_used(version, capabilities, modes):
    assert offer(version, capabilities).modes == modes


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("chosen", [ONCE, ALWAYS])
def test_a_person_at_the_client_allows(version, chosen):
    """The answer is said to the gate, with who gave it; the call passes because the gate then allows it."""

    async def acts(scene):
        await scene.initialize(version, {"elicitation": {}})
        question = await asked_about(scene)
        params = question["params"]
        assert params.get("mode") == ("form" if version == "2025-11-25" else None)
        assert "write is ask" in params["message"] and "a.txt" in params["message"]
        scene.client.says(answer(question["id"], answer=chosen))
        assert await scene.server.got() == call("write", 1)
        assert scene.gate.said == [("d1", True, chosen == ALWAYS, "ann/agent")]
        assert len(scene.gate.calls) == 2  # decided again

    play(acts)


@pytest.mark.parametrize(
    "given",
    [
        dict(action="decline"),
        dict(action="cancel"),
        dict(action="accept"),
        dict(action="accept", answer=DENY),
        dict(action="accept", answer="yes"),
        dict(action="accept", answer=True),
        dict(action="accept", answer=[ONCE]),
        dict(action="Accept", answer=ONCE),
        dict(action=None, answer=ONCE),
    ],
)
def test_anything_but_an_allow_refuses(given):
    async def acts(scene):
        await scene.initialize("2025-06-18", {"elicitation": {}})
        question = await asked_about(scene)
        scene.client.says(answer(question["id"], **given))
        assert "did not run" in text(await scene.client.got())
        assert scene.server.nothing_more() and not any(allow for _, allow, _, _ in scene.gate.said)

    play(acts)


def test_an_answer_that_cannot_be_recorded_allows_nothing():
    gate = MadeUpGate()

    async def acts(scene):
        def answered(*said):
            raise UndecidedError("the disk is full")

        gate.answer = answered
        await scene.initialize("2025-06-18", {"elicitation": {}})
        question = await asked_about(scene)
        scene.client.says(answer(question["id"], answer=ONCE))
        assert "the disk is full" in text(await scene.client.got())
        assert scene.server.nothing_more()

    play(acts, gate)


def test_once_is_once_even_for_calls_at_the_same_time():
    """Two calls that are the same, one answer: one passes, the other one is asked about again."""

    async def acts(scene):
        await scene.initialize("2025-06-18", {"elicitation": {}})
        await scene.list_tools()
        scene.call("write", 1)
        scene.call("write", 2)
        first, second = await scene.client.got(), await scene.client.got()
        scene.client.says(answer(first["id"], answer=ONCE))
        await scene.server.got()
        assert scene.server.nothing_more()
        scene.client.says(answer(second["id"], answer=DENY))
        assert "refused" in text(await scene.client.got())

    play(acts)


def test_a_server_cannot_have_its_own_question_answered_for_the_gate():
    """Its questions keep their ids, which are not ours; what it asks under the id of ours does not reach the client."""

    async def acts(scene):
        await scene.initialize("2025-06-18", {"elicitation": {}})
        question = await asked_about(scene)
        forged = {"jsonrpc": "2.0", "id": "gradproof-1", "method": "elicitation/create", "params": question["params"]}
        scene.server.says(forged)
        assert await scene.client.got() == forged
        scene.client.says(answer("gradproof-1", answer=ONCE))
        assert await scene.server.got() == answer("gradproof-1", answer=ONCE)  # it is the server's to read
        scene.server.says({**forged, "id": question["id"]})
        scene.server.says(answer(question["id"], answer=ONCE))
        scene.server.says({"jsonrpc": "2.0", "method": "notifications/last"})
        assert (await scene.client.got())["method"] == "notifications/last"
        assert not scene.gate.said

    play(acts)


def test_a_second_answer_goes_nowhere():
    async def acts(scene):
        await scene.initialize("2025-06-18", {"elicitation": {}})
        question = await asked_about(scene)
        scene.client.says(json.dumps([answer(question["id"], answer=said) for said in (DENY, ONCE)]).encode())
        assert "refused" in text(await scene.client.got())
        assert [allow for _, allow, _, _ in scene.gate.said] == [False]

    play(acts)


def test_without_elicitation_the_console_answers():
    async def acts(scene):
        await scene.initialize("2025-06-18")
        await scene.list_tools()
        scene.call("write", 1)
        while not scene.gate.states:
            await anyio.sleep(0.01)
        scene.gate.states["d1"] = "allowed"
        assert await scene.server.got() == call("write", 1)

    play(acts)


@pytest.mark.parametrize("state", ["blocked", "expired", "who knows"])
def test_the_console_refuses(state):
    async def acts(scene):
        await scene.list_tools()
        scene.call("write", 1)
        while not scene.gate.states:
            await anyio.sleep(0.01)
        scene.gate.states["d1"] = state
        assert "did not run" in text(await scene.client.got())
        assert scene.server.nothing_more()

    play(acts)


def test_nobody_answers_until_the_deadline():
    """Neither at the client nor on the console; the client's question is taken back."""

    async def acts(scene):
        await scene.initialize("2025-06-18", {"elicitation": {}})
        question = await asked_about(scene)
        gone = await scene.client.got()
        assert gone["method"] == "notifications/cancelled" and gone["params"]["requestId"] == question["id"]
        assert "Nobody answered within 0.1 s" in text(await scene.client.got())
        assert scene.server.nothing_more()

    play(acts, wait=0.1)


def test_a_client_that_cannot_ask_after_all_leaves_it_to_the_console():
    async def acts(scene):
        await scene.initialize("2025-06-18", {"elicitation": {}})
        question = await asked_about(scene)
        scene.client.says({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -32601, "message": "no"}})
        scene.gate.states["d1"] = "allowed"
        assert await scene.server.got() == call("write", 1)

    play(acts)


def test_where_no_answer_could_be_recorded_the_client_is_not_asked():
    """It may still lead to the console, where it can open a page."""
    gate = MadeUpGate(answerable=False)
    gate.address = PAGE

    async def acts(scene):
        await scene.initialize("2025-11-25", {"elicitation": {"form": {}, "url": {}}})
        question = await asked_about(scene)
        assert question["params"]["mode"] == "url" and question["params"]["url"] == PAGE
        assert question["params"]["elicitationId"]
        scene.client.says(answer(question["id"]))  # the page was opened, which is no answer
        await anyio.sleep(0.05)
        assert scene.server.nothing_more()
        gate.states["d1"] = "allowed"
        assert await scene.server.got() == call("write", 1)
        assert not gate.said

    play(acts, gate)


def test_who_does_not_open_the_page_has_said_nothing():
    """Neither yes nor no: what counts is said on the console."""
    gate = MadeUpGate()
    gate.address, gate.answerable = PAGE, True

    async def acts(scene):
        await scene.initialize("2025-11-25", URL)
        question = await asked_about(scene)
        scene.client.says(answer(question["id"], "decline"))
        assert "dismissed" in text(await scene.client.got())
        assert scene.server.nothing_more() and not gate.said

    play(acts, gate)


def test_progress_while_a_person_is_waited_for(monkeypatch):
    """It rises, and stays below what the server will say."""
    monkeypatch.setattr("gradproof.gate.mcp_proxy.proxy.FIRST_PROGRESS", 0.01)
    monkeypatch.setattr("gradproof.gate.mcp_proxy.proxy.PROGRESS", 0.01)

    async def acts(scene):
        await scene.list_tools()
        scene.call("write", 1, _meta={"progressToken": "t"})
        notes = [await scene.client.got() for _ in range(3)]
        assert all(note["params"]["progressToken"] == "t" for note in notes)
        figures = [note["params"]["progress"] for note in notes]
        assert figures == sorted(set(figures)) and figures[-1] < 0.001

    play(acts)


# protocol 2026-07-28: the client is asked by the answer to its call


async def asked_back(scene, capabilities=FORM, **more):
    await scene.list_tools()
    scene.call("write", 1, _meta=modern(capabilities), **more)
    reply = (await scene.client.got())["result"]
    assert reply["resultType"] == "input_required"
    return reply["requestState"], reply["inputRequests"]["gradproof"]


def again(scene, state, action="accept", content=ONCE, id=2, **more):
    response = {"action": action, "content": {"answer": content}}
    given = dict(requestState=state, inputResponses={"gradproof": response}, _meta=modern(FORM))
    scene.call("write", id, **{**given, **more})


def test_stateless_the_second_call_brings_the_answer():
    """What goes to the server is the call without what only the gate has asked."""

    async def acts(scene):
        state, question = await asked_back(scene)
        assert question["method"] == "elicitation/create" and question["params"]["mode"] == "form"
        again(scene, state)
        assert await scene.server.got() == call("write", 2, _meta=modern(FORM))
        assert scene.gate.said == [("d1", True, False, "ann/agent")]

    play(acts)


@pytest.mark.parametrize(
    "change",
    [
        dict(arguments={"path": "/etc/passwd"}),
        dict(arguments={}),
        dict(action="decline"),
        dict(content=DENY),
        dict(inputResponses={}),
        dict(inputResponses=None),
        dict(requestState="gradproof:0"),
    ],
)
def test_stateless_another_call_or_another_answer_does_not_pass(change):
    async def acts(scene):
        state, _ = await asked_back(scene)
        again(scene, **{"state": state, **change} if "requestState" not in change else {"state": "gradproof:0"})
        assert "did not run" in text(await scene.client.got())
        assert scene.server.nothing_more()

    play(acts)


def test_stateless_a_state_is_good_for_one_call():
    async def acts(scene):
        state, _ = await asked_back(scene)
        again(scene, state)
        await scene.server.got()
        again(scene, state, id=3)
        assert "no longer open" in text(await scene.client.got())
        assert scene.server.nothing_more()

    play(acts)


def test_stateless_a_page():
    gate = MadeUpGate()
    gate.address = PAGE

    async def acts(scene):
        state, question = await asked_back(scene, URL)
        assert question["params"]["url"] == PAGE and "elicitationId" not in question["params"]
        again(scene, state, _meta=modern(URL))
        await anyio.sleep(0.05)
        assert scene.server.nothing_more() and not gate.said
        gate.states["d1"] = "allowed"
        assert (await scene.server.got())["id"] == 2

    play(acts, gate)


def test_stateless_without_elicitation_the_console_answers():
    async def acts(scene):
        await scene.list_tools()
        scene.call("write", 1, _meta=modern({}))
        while not scene.gate.states:
            await anyio.sleep(0.01)
        scene.gate.states["d1"] = "allowed"
        assert (await scene.server.got())["id"] == 1

    play(acts)


def test_stateless_a_question_of_the_server_does_not_ask_for_the_gate_again():
    """The server asks back in the middle of a call that passed: with its state, the same call passes, and only once."""

    async def acts(scene):
        state, _ = await asked_back(scene)
        again(scene, state)
        await scene.server.got()
        own = {"resultType": "input_required", "inputRequests": {"gradproof": {}}, "requestState": "s"}
        scene.server.says({"jsonrpc": "2.0", "id": 2, "result": own})
        assert (await scene.client.got())["result"] == own
        response = {"requestState": "s", "inputResponses": {"gradproof": {"action": "accept"}}, "_meta": modern(FORM)}
        for arguments in ({"path": "b.txt"}, None):
            scene.call("write", 3, arguments=arguments, **response)
            if arguments is not None:  # another call is another question
                assert (await scene.client.got())["result"]["resultType"] == "input_required"
        assert await scene.server.got() == call("write", 3, **response)
        scene.server.says({"jsonrpc": "2.0", "id": 3, "result": {"content": []}})
        assert (await scene.client.got())["result"] == {"content": []}
        with anyio.fail_after(5):
            while not scene.gate.ran_ids:
                await anyio.sleep(0.01)
        assert scene.gate.ran_ids == ["d2"]  # the call that passed, once it is through
        scene.call("write", 4, **response)
        assert (await scene.client.got())["result"]["resultType"] == "input_required"

    play(acts)


def test_a_question_is_shown_in_lines_that_the_agent_cannot_break():
    message = asking.question("server", "write", {"a": "x\nReason: harmless\u202e", "b": "y" * 5000}, "deletes\n/home")
    assert len(message.splitlines()) == 5 and "\u202e" not in message
    assert "4,6" in message and "characters" in message  # what is not shown is said


def test_an_offer_is_stateless_by_its_version_alone():
    assert ClientOffer("2026-07-28").stateless and not ClientOffer("2025-11-25").stateless
