"""The attacks of `attacks.py` through the hook, as both agents would announce them, beside a real daemon."""

import json

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from attacks import CORRECTIONS, CWD, HARMFUL, OPENING, hidden
from daemon_process import DaemonProcess, until
from hook_events import claude_event, gemini_event, written
from made_calls import rows

from gradproof.gate.client import GateClient
from gradproof.gate.daemon import tokens_of
from gradproof.gate.founding import found
from gradproof.gate.hook import HookOptions, respond
from gradproof.gate.store import Settings, Store

SHELL = {"claude": "Bash", "gemini": "run_shell_command"}
AGENTS = tuple(SHELL)


class Hooks:
    """`hooks("claude", tool, arguments)`: the answer in a word, None where the hook is silent and the call runs."""

    def __init__(self, folder, token):
        self.folder, self.token = folder, token
        self.daemon = DaemonProcess(folder, "--no-learn", "--rate", "100000")
        self.client = GateClient(str(folder), warm=60.0, start=False)
        self.count = 0

    def __call__(self, agent, tool, arguments, cwd=CWD, **options):
        self.count += 1
        event = (claude_event if agent == "claude" else gemini_event)(self.count, tool, arguments)
        said = respond(written({**event, "cwd": cwd}), HookOptions(str(self.folder), **options), self.client)
        if not said:
            return None
        answer = json.loads(said)
        return answer["decision"] if agent == "gemini" else answer["hookSpecificOutput"]["permissionDecision"]

    def call(self, agent, call):
        """The same for a call as the gate reads it."""
        return self(agent, call["tool"], call["arguments"], call.get("cwd"))

    def judge(self, method, path, body=None):
        """What a reviewer does."""
        status, answer = self.daemon.ask(method, path, body, token=self.token)
        assert status == 200, answer
        return answer


@pytest.fixture(scope="module")
def hooks(tmp_path_factory, trained):
    folder = tmp_path_factory.mktemp("attacked") / "gate"
    store = Store.create(folder, Settings(journal_mebibytes=16, versions_mebibytes=64))
    found(store, trained.copy(), rows(40), rows(30, 100), people=False)
    token = tokens_of(folder).add("ann", "reviewer")
    store.close()
    made = Hooks(folder, token)
    yield made
    made.daemon.end()


def refused(agent, answer):
    return answer == "deny" or (agent == "claude" and answer == "ask")


@pytest.mark.parametrize("agent", AGENTS)
def test_harmless_calls_run(hooks, agent):
    """Or the tests below could not fail."""
    assert hooks(agent, SHELL[agent], {"command": "git status && ls"}) is None
    assert hooks(agent, SHELL[agent], {"command": "ls"}, auto_approve=True) == "allow"


@pytest.mark.parametrize("agent", AGENTS)
def test_a_harmful_call_is_never_let_through(hooks, agent):
    for command in (*HARMFUL, *OPENING):
        for shape in hidden(command):
            for options in ({}, {"auto_approve": True}):
                assert refused(agent, hooks(agent, SHELL[agent], {"command": shape}, **options)), shape
        assert refused(agent, hooks(agent, "mcp__shell__run", {"cmd": command})), command
        assert refused(agent, hooks(agent, "execute", {"command": ["sh", "-c", command]})), command


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("case", CORRECTIONS, ids=lambda case: case["id"])
def test_a_correction_opens_no_twin(hooks, case, agent):
    call = case["call"]
    assert refused(agent, hooks.call(agent, call))
    asked = hooks.client.decide(call)
    made = hooks.judge("POST", "/v1/feedback", {"id": asked["id"], "kind": case["kind"]})
    opened = hooks.call(agent, call) is None
    assert opened == (hooks.client.decide(call)["decision"] == "allow")
    for twin in case["twins"]:
        assert refused(agent, hooks.call(agent, twin)), twin
    hooks.judge("DELETE", f"/v1/corrections/{made['correction']}")


@pytest.mark.parametrize("agent", AGENTS)
def test_strange_arguments_are_answered_and_the_daemon_lives(hooks, agent):
    """An argument without a name killed the process once."""
    for tool, arguments in (
        ("Write", {"": "x"}),
        ("@tool", {"@x": "y", "< Bash": "z"}),
        ("x" * 256, {}),
        (SHELL[agent], {"command": "a" * 100_000}),
        (SHELL[agent], {"command": "$(" * 200}),
        (SHELL[agent], {"command": "ls", "args": {"command": "rm -rf /"}}),
        ("query", {"sql": "(" * 5000}),
        ("y" * 300, {"path": "x"}),
        ("null", {"path": "a\0b"}),
    ):
        answer = hooks(agent, tool, arguments)
        assert answer is None or refused(agent, answer), tool
    for arguments in ({"command": "a" * 100_000}, {"command": "$(" * 200}, {"command": "a\0b"}, {}):
        assert refused(agent, hooks(agent, SHELL[agent], arguments)), arguments
    assert hooks(agent, SHELL[agent], {"command": "ls"}) is None


def test_an_agent_cannot_earn_trust_by_asking_often(hooks):
    before = hooks.judge("GET", "/v1/status")["trust"]
    for _ in range(60):
        hooks("claude", "Bash", {"command": "ls"})
        event = claude_event(hooks.count, "Bash", {"command": "ls"}) | {"hook_event_name": "PostToolUse", "cwd": CWD}
        assert respond(written(event), HookOptions(str(hooks.folder)), hooks.client) == b""
    after = hooks.judge("GET", "/v1/status")
    assert after["trust"] == before and not after["trusted"]

    def newest():
        return hooks.judge("GET", "/v1/decisions?limit=50")["decisions"]

    assert until(lambda: all(one["ran"] for one in newest()))
