"""What one client can make the service do: rates, saturation, bodies; and whatever comes, never a 5xx."""

import asyncio
import time
from contextlib import suppress

import pytest
from service_client import ServiceClient, reason

from gradproof.gate import service as gate_service
from gradproof.gate.database import new_id
from gradproof.gate.reach import Reach
from gradproof.http import limits


@pytest.fixture
def own(store):
    made = ServiceClient(store, rate=5)
    yield made
    made.close()


def test_a_visitor_has_a_rate_and_others_are_not_held_up(own):
    statuses = [own("GET", "/v1/me", role="agent").status_code for _ in range(8)]
    assert statuses[:5] == [200] * 5 and 429 in statuses
    answer = own("GET", "/v1/me", role="agent")
    if answer.status_code == 429:
        assert answer.headers["retry-after"] == "1"
    assert own("GET", "/v1/me", role="reviewer").status_code == 200


def test_past_saturation_calls_are_refused_and_the_rest_answered(client, monkeypatch):
    """Where deciding takes long, what may wait is bounded: the others hear 429, and no call is lost."""
    decided = client.decider.decided

    def slow(call, home=""):
        time.sleep(0.003)
        return decided(call, home)

    monkeypatch.setattr(client.decider, "decided", slow)
    many = 3 * gate_service.WAITING

    async def all_at_once(http):
        call = {"command": "git push origin saturated", "session": "saturated"}
        return await asyncio.gather(*(client.send(http, "POST", "/v1/decide", call, role="agent") for _ in range(many)))

    answers = client.talk(all_at_once)
    by_status = {status: [a for a in answers if a.status_code == status] for status in (200, 429)}
    assert len(by_status[200]) + len(by_status[429]) == many
    assert gate_service.WAITING <= len(by_status[200]) < many
    assert "waiting; try again" in reason(by_status[429][0], 429)
    assert len({a.json()["id"] for a in by_status[200]}) == len(by_status[200])
    client.decider.flush()
    listed = client("GET", "/v1/decisions?session=saturated&limit=500").json()["decisions"]
    assert len(listed) == len(by_status[200])
    assert client.decided("ls")["decision"] == "allow"


def test_who_waits_for_news_is_bounded(client, monkeypatch):
    monkeypatch.setattr(gate_service, "MOST_WAITERS", 3)
    stamp = client("GET", "/v1/changes").json()["stamp"]

    async def all_at_once(http):
        path = f"/v1/changes?stamp={stamp}&wait=0.5"
        return [a.status_code for a in await asyncio.gather(*(client.send(http, "GET", path) for _ in range(6)))]

    assert sorted(client.talk(all_at_once)) == [200] * 3 + [429] * 3


def test_a_body_that_never_ends_is_given_up(client, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.2)
    monkeypatch.setattr("gradproof.http.answers.LINGER_SECONDS", 0.1)

    async def slowly():
        yield b'{"command":'
        await asyncio.sleep(5)

    async def ask(http):
        headers = {"authorization": f"Bearer {client.secrets['agent']}"}
        return await http.request("POST", "/v1/decide", content=slowly(), headers=headers)

    assert "not complete" in reason(client.talk(ask), 408)


def test_a_preview_lets_decisions_through(client, monkeypatch):
    """While many decisions are looked at, calls that come are decided: this preview ends after three of them."""
    client.decided("rm -rf ../many")
    decided, steps, step = [], 0, Reach.step

    def long(self, seconds):
        nonlocal steps
        steps += 1
        return (len(decided) < 3 and steps < 100_000) or step(self, seconds)

    monkeypatch.setattr(Reach, "step", long)

    async def both(http):
        text = {"text": '[[deny]]\neffect = "delete"'}
        preview = asyncio.create_task(client.send(http, "POST", "/v1/rules/preview", text))
        for _ in range(3):
            answer = await client.send(http, "POST", "/v1/decide", {"command": "ls"}, role="agent")
            decided.append(answer.json()["decision"])
        return (await preview).json()

    assert client.talk(both)["changed"] >= 1
    assert decided == ["allow"] * 3 and steps < 100_000


def test_ids_that_nobody_made_hold_nobody_up(client, monkeypatch):
    """An agent may ask for any id. Only one that was answered a moment ago is waited for."""
    waited, sleep = [], asyncio.sleep

    async def noted(seconds, *rest):
        waited.append(seconds)
        await sleep(0, *rest)

    monkeypatch.setattr(gate_service.asyncio, "sleep", noted)
    monkeypatch.setattr("gradproof.gate.journal.time.sleep", waited.append)
    for role in ("agent", "socket"):
        assert "no decision" in reason(client("GET", f"/v1/decisions/{new_id(client.store.clock())}", role=role), 404)
    assert gate_service.SOON not in waited and not [seconds for seconds in waited if seconds]
    answer = client("POST", "/v1/decide", {"command": "git push origin fresh"}, role="agent").json()
    monkeypatch.setattr(gate_service.asyncio, "sleep", sleep)
    assert client("GET", f"/v1/asks/{answer['id']}", role="agent").json()["state"] == "waiting"


def test_agents_that_wait_do_not_keep_people_out(client, monkeypatch):
    monkeypatch.setattr(gate_service, "MOST_WAITERS", 2)
    asked = client.decided("git push origin waiting")
    stamp = client("GET", "/v1/changes").json()["stamp"]

    async def all_at_once(http):
        agents = [client.send(http, "GET", f"/v1/asks/{asked['id']}?wait=1", role="agent") for _ in range(4)]
        people = [client.send(http, "GET", f"/v1/changes?stamp={stamp}&wait=0.5") for _ in range(2)]
        return [answer.status_code for answer in await asyncio.gather(*agents, *people)]

    statuses = client.talk(all_at_once)
    assert sorted(statuses[:4]) == [200, 200, 429, 429] and statuses[4:] == [200, 200]


def test_long_searches_of_agents_are_few_at_a_time(client, monkeypatch):
    """However many an agent starts: beyond some they are refused, and what people look for goes on beside them."""
    monkeypatch.setattr(gate_service, "MOST_LONG", 4)
    most = 0
    ended = asyncio.Event()

    def endless(self, seconds):
        nonlocal most
        most = max(most, client.service._long_waiters[True])
        return self.visitor.role == "agent" and not ended.is_set()

    monkeypatch.setattr("gradproof.gate.service_calls._Search.step", endless)

    async def both(http):
        searches = [
            asyncio.create_task(client.send(http, "GET", "/v1/decisions?session=none", role="agent")) for _ in range(9)
        ]
        people = await client.send(http, "GET", "/v1/decisions?session=none", role="reviewer")
        decided = await client.send(http, "POST", "/v1/decide", {"command": "ls"}, role="agent")
        ended.set()
        return [answer.status_code for answer in (people, decided, *await asyncio.gather(*searches))]

    people, decided, *searches = client.talk(both)
    assert (people, decided) == (200, 200) and sorted(searches) == [200] * 4 + [429] * 5
    assert most == 4


def test_what_nobody_foresaw_is_a_500_and_its_log_quotes_nothing(client, monkeypatch, capfd):
    def failing(call, home=""):
        raise KeyError("privatename")

    monkeypatch.setattr(client.decider, "decided", failing)
    answer = client("POST", "/v1/decide", {"command": "ls"}, role="agent")
    assert "failed on this request" in reason(answer, 500)
    said = capfd.readouterr().err
    assert "KeyError at " in said and "test_service_limits.py" in said and "privatename" not in said


def test_a_disk_that_cannot_be_written_is_told(client, monkeypatch):
    asked = client.decided("git push origin full")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(client.store.audit, "append", full)
    said = reason(client("POST", "/v1/feedback", {"id": asked["id"], "kind": "override_allow"}), 503)
    assert "No space left" in said


def requests_of(operation, examples):
    """Valid and invalid ones, as schemathesis makes them."""
    import hypothesis
    from schemathesis import GenerationMode

    made = []
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @hypothesis.settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def collect(case):
            made.append((case.method, case.formatted_path, case.as_transport_kwargs(base_url="http://gate")))

        with suppress(hypothesis.errors.Unsatisfiable):  # nothing about it can be wrong
            collect()
    return made


@pytest.mark.slow
def test_no_request_makes_the_service_fail(client):
    """From the OpenAPI document: never a 5xx, and always JSON."""
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_dict(client("GET", "/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    seen = set()
    for operation in operations:
        if operation.label == "DELETE /v1/tokens/{name}":
            continue  # it could revoke the token that asks
        for method, path, request in requests_of(operation, 50):
            headers = {"authorization": f"Bearer {client.secrets['admin']}"}
            own = {name: value for name, value in request.items() if name in ("params", "json", "data", "content")}
            own["params"] = {k: v for k, v in (own.get("params") or {}).items() if k != "wait"}

            async def ask(http, method=method, path=path, own=own, headers=headers):
                return await http.request(method, path, headers=headers, **own)

            answer = client.talk(ask)
            assert answer.status_code < 500, (operation.label, path, own, answer.text)
            assert answer.headers["content-type"].startswith("application/json") or path == "/metrics", operation.label
            seen.add((operation.label, answer.status_code))
    assert len({label for label, _ in seen}) == len(operations) - 1 >= 32
    assert {status for _, status in seen} >= {200, 400, 404, 422}
    assert client("GET", "/v1/audit/check").json()["whole"]
