"""The attacks of `attacks.py` through the proxy: a server's tools run commands, and a real daemon decides."""

from dataclasses import replace

import pytest

pytest.importorskip("mcp", reason="the extra `gate` is not installed")
pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import anyio
from attacks import CORRECTIONS, CWD, HARMFUL, OPENING, hidden
from daemon_process import DaemonProcess
from made_calls import rows
from scenes import play, text

from gradproof.gate.daemon import tokens_of
from gradproof.gate.founding import found
from gradproof.gate.mcp_proxy.served_gate import ServedGate
from gradproof.gate.store import Settings, Store

NAMES = sorted({call["tool"] for case in CORRECTIONS for call in (case["call"], *case["twins"])} | {"run", "read_note"})
LISTED = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
DECIDING = 60.0  # seconds that a decision may take on a busy machine


class PatientGate(ServedGate):
    """A gate that cannot be answered at the client, so that what it asks about is refused at once."""

    def __init__(self, folder):
        super().__init__(folder)
        self.client.warm, self.client.start = DECIDING, False
        self.calls = []

    def decide(self, call):
        self.calls.append(super().decide(call))
        return self.calls[-1]

    def may_answer(self):
        return False


@pytest.fixture(scope="module")
def daemon(tmp_path_factory, trained):
    folder = tmp_path_factory.mktemp("attacked") / "gate"
    store = Store.create(folder, Settings(journal_mebibytes=16, versions_mebibytes=64))
    found(store, trained.copy(), rows(40), rows(30, 100), people=False)
    token = tokens_of(folder).add("ann", "reviewer")
    store.close()
    running = DaemonProcess(folder, "--no-learn", "--rate", "100000")
    running.token = token
    yield running
    running.end()


def proxied(daemon, acts):
    """What an agent does with a server whose tools do what their arguments say."""

    async def whole(scene):
        await scene.initialize("2024-11-05")
        await scene.list_tools(LISTED)
        scene.ids = 0
        await acts(scene)

    play(whole, PatientGate(daemon.folder), wait=0.01)


async def runs(scene, tool, arguments, cwd=CWD):
    """Whether a call reaches the server, which then answers it."""
    scene.ids += 1
    scene.doorkeeper.visitor = replace(scene.doorkeeper.visitor, cwd=cwd or "")
    scene.call(tool, scene.ids, arguments=arguments)
    with anyio.fail_after(DECIDING):
        while scene.server.nothing_more() and scene.client.nothing_more():
            await anyio.sleep(0.001)
    if not scene.server.nothing_more():
        message = await scene.server.got()
        assert (message["id"], message["params"]["name"]) == (scene.ids, tool)
        scene.server.says({"jsonrpc": "2.0", "id": scene.ids, "result": {"content": []}})
        assert (await scene.client.got())["result"] == {"content": []}
        return True
    said = text(await scene.client.got())
    assert "did not run" in said and "could not decide" not in said, said
    return False


def test_a_harmful_call_never_reaches_the_server(daemon):
    async def acts(scene):
        assert await runs(scene, "read_note", {"path": "a.txt"}) and await runs(scene, "run", {"command": "git status"})
        for command in (*HARMFUL, *OPENING):
            for shape in hidden(command):
                assert not await runs(scene, "run", {"command": shape}), shape
        assert await runs(scene, "run", {"command": "git status"})

    proxied(daemon, acts)


@pytest.mark.slow
@pytest.mark.parametrize("case", CORRECTIONS, ids=lambda case: case["id"])
def test_a_correction_opens_no_twin(daemon, case):
    async def acts(scene):
        call, gate = case["call"], scene.gate
        assert not await runs(scene, call["tool"], call["arguments"], call.get("cwd"))
        asked = gate.calls[-1]
        made = daemon.ask("POST", "/v1/feedback", {"id": asked["id"], "kind": case["kind"]}, token=daemon.token)[1]
        again = await runs(scene, call["tool"], call["arguments"], call.get("cwd"))
        assert again == (gate.calls[-1]["decision"] == "allow")
        for twin in case["twins"]:
            assert not await runs(scene, twin["tool"], twin["arguments"], twin.get("cwd")), twin
        assert daemon.ask("DELETE", f"/v1/corrections/{made['correction']}", token=daemon.token)[0] == 200

    proxied(daemon, acts)
