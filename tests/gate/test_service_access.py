"""Who may do what: every route with no token, a wrong token, and each role; an agent sees nothing but its own."""

import re

import httpx
import pytest
from service_client import HOST, reason

from gradproof.gate.service import ADMIN, AGENT, REVIEWER, ROLES, app
from gradproof.http.door import EVERYBODY, HEADERS

PUSH = "git push origin x"
# By hand from docs/gate-service.md, so that a route whose roles change by mistake is noticed.
MAY = {
    AGENT: """POST /v1/decide, POST /v1/ran, GET /v1/decisions, GET /v1/decisions/{id}, GET /v1/asks/{id},
        GET /v1/me""",
    REVIEWER: """GET /v1/decisions, GET /v1/decisions/{id}, GET /v1/asks, GET /v1/asks/{id}, POST /v1/asks/{id},
        POST /v1/feedback, GET /v1/corrections, POST /v1/corrections/preview, DELETE /v1/corrections/{id},
        GET /v1/policy,
        POST /v1/policy/preview, GET /v1/rules, POST /v1/rules/preview, GET /v1/settings, GET /v1/versions,
        GET /v1/status, GET /v1/history, GET /v1/changes, GET /v1/audit, GET /v1/audit/check, GET /v1/me, GET /metrics,
        GET /openapi.json""",
    EVERYBODY: "GET /healthz, GET /, GET /console/{name}",
}
ON_SOCKET = {"POST /v1/decide", "POST /v1/ran", "GET /v1/decisions/{id}", "GET /v1/asks/{id}", "GET /healthz"}


def routes(client):
    """(method, path) of everything that the app answers."""
    return [(method, route.path) for route in app(client.service).routes for method in sorted(route.methods - {"HEAD"})]


def filled(path):
    return re.sub(r"\{\w+\}", "x", path)


def named(listed):
    return {route.strip() for route in listed.replace("\n", " ").split(",")}


@pytest.fixture(scope="module")
def expected(client):
    everything = {f"{method} {path}" for method, path in routes(client)}
    open_to_all = named(MAY[EVERYBODY])
    return {
        AGENT: named(MAY[AGENT]) | open_to_all,
        REVIEWER: named(MAY[REVIEWER]) | open_to_all,
        ADMIN: everything,
        EVERYBODY: open_to_all,
    }


def test_the_list_names_routes_that_exist(client, expected):
    assert len(expected[ADMIN]) > 30
    for role in (AGENT, REVIEWER, EVERYBODY):
        assert expected[role] <= expected[ADMIN]


def test_without_a_token_or_with_a_wrong_one_nobody_is_let_in(client, expected):
    """Before anything else is looked at, the body included."""
    name, secret = "admin", client.secrets["admin"]
    wrong = [{}, {"authorization": "Bearer"}, {"authorization": secret}, {"authorization": f"Basic {secret}"}]
    wrong += [{"authorization": f"Bearer {said}"} for said in (secret[:-1], f"gp_{name}_", f"gp_{name}", secret + "x")]
    wrong += [{"authorization": f"Bearer {secret.replace('gp_admin', 'gp_nobody')}"}, {"cookie": f"token={secret}"}]
    for method, path in routes(client):
        for headers in wrong:
            answer = client(method, filled(path), role="", headers=headers, body=b"{")
            if f"{method} {path}" in expected[EVERYBODY]:
                assert answer.status_code in (200, 404)
            else:
                assert answer.status_code == 401, (method, path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
    assert client("GET", f"/v1/me?token={secret}&access_token={secret}", role="").status_code == 401


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_what_the_documentation_says_and_nothing_else(client, expected, role):
    for method, path in routes(client):
        if path.startswith("/v1/changes"):
            continue
        answer = client(method, filled(path), role=role, body=b"")
        refused = answer.status_code == 403
        assert refused == (f"{method} {path}" not in expected[role]), (role, method, path, answer.text)
        assert answer.status_code < 500


def test_on_the_socket_there_are_the_agents_routes_only(client):
    for method, path in routes(client):
        answer = client(method, filled(path), role="socket", body=b"")
        there = f"{method} {path}" in ON_SOCKET
        assert there or answer.status_code in (404, 405), (method, path, answer.text)
    known = {f"{method} {path}" for method, path in routes(client)}
    assert known >= ON_SOCKET and client("POST", "/v1/decide", {"command": "ls"}, role="socket").status_code == 200


def test_a_token_on_the_socket_gives_no_more(client):
    headers = {"authorization": f"Bearer {client.secrets['admin']}"}
    assert client("GET", "/v1/status", role="socket", headers=headers).status_code == 404


def test_an_agent_can_neither_judge_nor_see_others(client):
    mine, others = client.decided(PUSH, "agent"), client.decided(PUSH, "socket")
    for path in ("/v1/decisions/", "/v1/asks/"):
        assert client("GET", path + mine["id"], role="agent").status_code == 200
        assert "you have no" in reason(client("GET", path + others["id"], role="agent"), 404)
        assert "you have no" in reason(client("GET", path + mine["id"], role="socket"), 404)
        assert client("GET", path + others["id"], role="reviewer").status_code == 200
        nobodys = "0" * 20
        said = reason(client("GET", path + nobodys, role="agent"), 404).replace(nobodys, others["id"])
        assert reason(client("GET", path + others["id"], role="agent"), 404) == said  # nor that there is one
    listed = client("GET", "/v1/decisions?limit=500", role="agent").json()["decisions"]
    assert listed and {row["actor"].split("/")[0] for row in listed} == {"agent"}
    judged = {"id": mine["id"], "kind": "false_block"}
    reason(client("POST", "/v1/feedback", judged, role="agent"), 403)
    reason(client("POST", f"/v1/asks/{mine['id']}", {"answer": "allow"}, role="agent"), 403)
    reason(client("POST", "/v1/ran", {"id": others["id"]}, role="agent"), 404)
    assert client("GET", f"/v1/decisions/{others['id']}").json()["ran"] is False
    assert client.store.journal.signals() == []


def test_no_name_is_taken_for_another(client):
    """What a call says of its actor stands behind the name of whoever sends it."""
    assert client.decided("ls", "agent", actor="admin")["id"]
    assert client.decided("ls", "agent", actor="user:root/x")["id"]
    listed = client("GET", "/v1/decisions?limit=2", role="agent").json()["decisions"]
    assert [row["actor"] for row in listed] == ["agent/user:root/x", "agent/admin"]
    client.tokens.add("agent.two", "agent")
    two = client.service.owns
    from gradproof.http.door import Visitor

    assert not two(Visitor("agent", "agent"), "agent.two") and not two(Visitor("agent", "agent"), "agent2/x")
    assert two(Visitor("agent", "agent"), "agent/two")


def test_a_revoked_token_is_refused_at_once(client):
    client.secrets["gone"] = client.tokens.add("gone", "reviewer")
    assert client("GET", "/v1/me", role="gone").json() == {"name": "gone", "role": "reviewer"}
    client.tokens.revoke("gone")
    assert client("GET", "/v1/me", role="gone").status_code == 401


def test_tokens_are_kept_as_hashes(client):
    kept = (client.store.folder / "tokens.json").read_text()
    assert client.secrets["admin"].split("_", 2)[2] not in kept and '"digest"' in kept
    assert (client.store.folder / "tokens.json").stat().st_mode & 0o077 == 0
    told = client("GET", "/v1/tokens").text
    assert "digest" not in told and '"admin"' in told


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8377", "127.0.0.1", "localhost:80", "", "127.0.0.1:8377.evil"]
)
def test_a_rebound_name_is_refused(client, host):
    for path in ("/healthz", "/v1/me", "/"):
        reason(client("GET", path, headers={"host": host}), 421)
    assert client("GET", "/v1/me", headers={"host": "LOCALHOST:8377"}).status_code == 200


def test_of_two_host_headers_none_counts(client):
    """Whatever stands between may go by the other one."""
    for first, second in (("evil.example", HOST), (HOST, "evil.example"), (HOST, HOST)):
        headers = [("host", first), ("host", second), ("authorization", f"Bearer {client.secrets['admin']}")]

        async def ask(http, headers=headers):
            return await http.send(httpx.Request("GET", f"http://{HOST}/v1/me", headers=headers))

        reason(client.talk(ask), 421)


def test_every_answer_has_the_strict_headers(client):
    for path, role in (("/healthz", ""), ("/v1/me", ""), ("/v1/status", "admin"), ("/nowhere", "admin"), ("/", "")):
        answer = client("GET", path, role=role)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert "access-control-allow-origin" not in client("OPTIONS", "/v1/me", headers={"origin": "http://evil"}).headers


@pytest.mark.parametrize(
    "name", ["..%2fservice.py", "%2e%2e%2f..%2fstore.json", "%2e%2e", "x%00.html", "__init__.py", "C:%5Cx"]
)
def test_the_page_reaches_no_other_files(client, name):
    answer = client("GET", f"/console/{name}", role="")
    assert answer.status_code in (401, 404) and "import" not in answer.text


def test_strangers_are_slowed_down(trained, store):
    from service_client import ServiceClient

    own = ServiceClient(store, strangers=20)

    async def ask(http):
        return [(await own.send(http, "GET", "/v1/me", role="")).status_code for _ in range(130)]

    statuses = own.talk(ask)
    assert statuses[:100] == [401] * 100 and 429 in statuses[100:]
    assert own("GET", "/v1/me").json()["name"] == "admin"
    assert own.service.address == HOST
    own.close()
