"""What a review by attack found of an earlier gate, tried through the service: none of it is allowed there."""

import json

import pytest
from attacks import CORRECTIONS, EVERYDAY, HARMFUL, OPENING, hidden
from service_client import reason


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/dev")


def decision(client, call, role="agent"):
    answer = client("POST", "/v1/decide", call, role=role)
    assert answer.status_code == 200, answer.text
    return answer.json()


def bash(command, **more):
    return {"tool": "Bash", "arguments": {"command": command}, "cwd": "/home/dev/work/app", **more}


@pytest.mark.parametrize("command", [*HARMFUL, *OPENING])
def test_a_harmful_call_is_never_allowed(client, command):
    """Alone, behind everyday commands, in a tool of another name, and with a harmless history."""
    shapes = [
        *map(bash, hidden(command)),
        bash(command, history=[{"command": line} for line in EVERYDAY[:3]]),
        {"tool": "mcp__shell__run", "arguments": {"cmd": command}, "cwd": "/home/dev/work/app"},
        {"tool_name": "Bash", "tool_input": {"command": command}, "cwd": "/home/dev/work/app", "session_id": "s"},
    ]
    for shape in shapes:
        assert decision(client, shape)["decision"] != "allow", shape


@pytest.mark.parametrize("case", CORRECTIONS, ids=lambda case: case["id"])
def test_a_correction_opens_no_twin(client, case):
    """Given through the service, always and without a scope."""
    asked = decision(client, case["call"])
    client.decider.flush()
    made = client("POST", "/v1/feedback", {"id": asked["id"], "kind": case["kind"]}).json()
    for twin in case["twins"]:
        assert decision(client, twin)["decision"] != "allow", twin
    assert client("DELETE", f"/v1/corrections/{made['correction']}").status_code == 200


def test_the_agents_settings_and_the_store_stay(client):
    for call in (
        {"tool": "Write", "arguments": {"file_path": "/home/dev/work/app/.git/hooks/pre-commit", "content": "x"}},
        {"tool": "Write", "arguments": {"file_path": "/home/dev/.claude/settings.json", "content": "x"}},
        {"tool": "Write", "arguments": {"file_path": str(client.store.rules), "content": "x"}},
        bash(f"cp x {client.store.folder}/tokens.json"),
        bash(f"sqlite3 {client.store.folder}/journal/data.mdb"),
    ):
        assert decision(client, {"cwd": "/home/dev/work/app", **call})["decision"] != "allow", call


def test_decisions_are_no_judgements(client):
    """However often an agent asks, and says that calls ran, the model is not trusted."""
    before = client("GET", "/v1/status").json()["trust"]
    for _ in range(60):
        answer = decision(client, bash("ls"))
        client("POST", "/v1/ran", {"id": answer["id"]}, role="agent")
    client.decider.flush()
    after = client("GET", "/v1/status").json()
    assert after["trust"] == before and not after["trusted"]


def test_an_agent_cannot_approve_itself_by_any_name(client):
    asked = decision(client, bash("git push origin x", actor="admin", session="reviewer"), role="socket")
    client.decider.flush()
    for role in ("agent", "socket", ""):
        for path, body in (
            (f"/v1/asks/{asked['id']}", {"answer": "allow"}),
            ("/v1/feedback", {"id": asked["id"], "kind": "override_allow"}),
            ("/v1/rules", {"text": '[[allow]]\ntool = "*"'}),
        ):
            method = "PUT" if path.endswith("rules") else "POST"
            assert client(method, path, body, role=role).status_code in (401, 403, 404, 405), (role, path)
    assert client("GET", f"/v1/asks/{asked['id']}").json()["state"] == "waiting"


@pytest.mark.parametrize(
    "call",
    [
        {"tool": "Write", "arguments": {"": "x"}},
        {"tool": "@tool", "arguments": {"@x": "y", "< Bash": "z"}},
        {"tool": "x" * 256, "arguments": {}},
        {"tool": "Bash", "arguments": {"command": ["rm", "-rf", "/"]}},
        {"tool": "Bash", "arguments": {"command": "a" * 100_000}},
        {"tool": "Bash", "arguments": {"command": "$(" * 200}},
        {"tool": "query", "arguments": {"sql": "(" * 5000}},
    ],
    ids=range(7),
)
def test_strange_calls_are_answered(client, call):
    """An argument without a name killed the process once."""
    answer = decision(client, call)
    assert answer["decision"] in ("ask", "block") or call["tool"] in ("Write", "@tool", "x" * 256)
    assert decision(client, bash("ls"))["decision"] == "allow"


def test_unknown_keys_are_told_and_not_dropped(client):
    said = reason(client("POST", "/v1/decide", {"tool": "Bash", "args": {"command": "rm -rf /"}}, role="agent"), 422)
    assert "did you mean 'arguments'" in said


def test_secrets_are_neither_kept_nor_told(client):
    secret = "AKIAIOSFODNN7EXAMPLQ"
    call = bash(f"AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY aws --key {secret} s3 ls", actor=secret)
    answer = decision(client, call)
    client.decider.flush()
    told = client("GET", f"/v1/decisions/{answer['id']}?explain=true").text + json.dumps(answer)
    assert secret not in told and "wJalrXUtnFEMI" not in told
    client.store.journal.env.sync(True)
    kept = b"".join(path.read_bytes() for path in client.store.folder.rglob("*") if path.is_file())
    assert secret.encode() not in kept and b"wJalrXUtnFEMI" not in kept
