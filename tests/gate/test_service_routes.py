"""What each route does: the answers of docs/gate-service.md, and one sentence for whatever is wrong."""

import asyncio
import json
import threading
from contextlib import suppress
from urllib.parse import quote

import pytest
from service_client import reason

from gradproof.gate import changes
from gradproof.gate.calls import MOST_BYTES, parse
from gradproof.gate.daemon import tidy

PUSH = "git push origin {}"


def test_a_decision_is_that_of_the_decider(client):
    call = {"tool": "Bash", "arguments": {"command": "rm -rf ../shared"}, "cwd": "/work/app"}
    answer = client("POST", "/v1/decide", call, role="agent").json()
    peeked = client.decider.peek(parse(call)).plain()
    extra = {"id", "expires", "answer_at"}
    assert {k: v for k, v in answer.items() if k not in extra} == {k: v for k, v in peeked.items() if k != "id"}
    assert answer["answer_at"] == f"http://127.0.0.1:8377/#asks/{answer['id']}"
    client.decider.flush()
    told = client("GET", f"/v1/decisions/{answer['id']}").json()
    assert (told["reason"], told["because"], told["acts"]) == (answer["reason"], answer["because"], answer["acts"])
    assert told["ask"]["expires"] == pytest.approx(answer["expires"]) and told["said"] is None and not told["ran"]


def test_all_shapes_of_a_call_are_read(client):
    shapes = [
        {"name": "Bash", "arguments": {"command": "ls"}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "Bash", "arguments": {"command": "ls"}}},
        {"tool_name": "Bash", "tool_input": {"command": "ls"}, "session_id": "s1", "hook_event_name": "PreToolUse"},
        {"command": "ls"},
    ]
    for shape in shapes:
        assert client("POST", "/v1/decide", shape, role="agent").json()["decision"] == "allow", shape


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"\xff", 400, "UTF-8"),
        (b"[" * 100_000, 400, "values"),
        (b"[" * 9_000, 400, "nested"),
        (b'{"tool": "Bash", "args": {}}', 422, "did you mean 'arguments'"),
        (b'{"tool": "Bash", "tool": "x"}', 400, "twice"),
        (b'{"tool": 1}', 422, "name"),
        (b'{"command": "a\\u0000b"}', 422, "null byte"),
        (b'{"command": "\\ud800"}', 422, "surrogate"),
        (b'{"tool": "x", "arguments": {"a": NaN}}', 400, "NaN"),
        (b'{"tool": "x", "arguments": ' + b'{"a":' * 40 + b"1" + b"}" * 41, 422, "nested"),
    ],
)
def test_what_is_no_call_is_told_in_a_sentence(client, body, status, said):
    assert said in reason(client("POST", "/v1/decide", role="agent", body=body), status)


def test_a_body_that_is_too_long(client):
    assert "bytes" in reason(client("POST", "/v1/decide", role="agent", body=b" " * (MOST_BYTES + 1)), 413)
    assert "bytes" in reason(client("POST", "/v1/feedback", body=b" " * 300_000), 413)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/feedback", {}),
        ("/v1/feedback", []),
        ("/v1/feedback", {"id": "x", "kind": "praise"}),
        ("/v1/feedback", {"id": "x", "kind": "allow", "more": 1}),
        ("/v1/corrections/preview", {"id": "x"}),
        ("/v1/corrections/preview", {"retract": "c1", "days": 0}),
        ("/v1/policy/preview", {"text": "[read]\nmaybe = 'project'"}),
        ("/v1/rules/preview", {"text": "[[deny]]\nregex = '('"}),
        ("/v1/tokens", {"name": "../x", "role": "agent"}),
        ("/v1/tokens", {"name": "x", "role": "god"}),
        ("/v1/versions/rollback", {"version": 10**30}),
    ],
)
def test_what_a_route_does_not_read(client, path, body):
    assert reason(client("POST", path, body), 422)


def test_a_path_or_method_that_is_not_there(client):
    assert "no such path" in reason(client("GET", "/v2"), 404)
    answer = client("PATCH", "/v1/status")
    assert "GET" in reason(answer, 405) and answer.headers["allow"] == "GET"


def test_a_call_that_ran_is_found_by_id_by_its_use_or_by_itself(client):
    pre = {"tool_name": "Bash", "tool_input": {"command": "make a"}, "session_id": "s", "tool_use_id": "toolu_1"}
    pre |= {"hook_event_name": "PreToolUse", "cwd": "/work/app"}
    first = client("POST", "/v1/decide", pre, role="agent").json()["id"]
    post = {**pre, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "x"}, "cwd": "/work"}
    assert client("POST", "/v1/ran", post, role="agent").json() == {"id": first, "ran": True}
    second = client.decided("make b", session="s")["id"]
    again = {"command": "make b", "cwd": "/work/app", "session": "s"}
    assert client("POST", "/v1/ran", again, role="agent").json()["id"] == second
    third = client.decided("make c")["id"]
    assert client("POST", "/v1/ran", {"id": third}, role="agent").json()["ran"]
    reason(client("POST", "/v1/ran", {**again, "session": "another"}, role="agent"), 404)
    reason(client("POST", "/v1/ran", {"id": "0" * 20}, role="agent"), 404)
    client.decider.flush()
    for id in (first, second, third):
        assert client("GET", f"/v1/decisions/{id}").json()["ran"]


def test_decisions_by_filters_and_pages(client):
    for i in range(7):
        client.decided(f"rm -rf ../page/{i}", session="paged", actor="x")
    client.decided("ls", session="paged")
    path = "/v1/decisions?session=paged"
    every = client("GET", path).json()
    assert len(every["decisions"]) == 8 and every["next"] is None
    ids = [row["id"] for row in every["decisions"]]
    assert ids == sorted(ids, reverse=True)
    paged, before = [], ""
    while before is not None:
        page = client("GET", f"{path}&limit=3&before={before}").json()
        paged += [row["id"] for row in page["decisions"]]
        before = page["next"]
    assert paged == ids
    assert len(client("GET", f"{path}&effect=delete&decision=ask&by=policy&tool=Bash").json()["decisions"]) == 7
    assert [row["id"] for row in client("GET", f"{path}&after={ids[2]}").json()["decisions"]] == ids[:2]
    assert client("GET", f"{path}&remarked=true").json()["decisions"] == []
    assert client("GET", f"{path}&actor=agent/x").json()["decisions"]
    assert client("GET", f"{path}&since=1h").json()["decisions"]
    for wrong in ("decision=maybe", "since=soon", "effect=magic", "limit=0", "limit=501", "remarked=maybe"):
        reason(client("GET", f"{path}&{wrong}"), 422)


def test_a_question_waits_is_answered_and_lets_one_call_pass(client):
    asked = client.decided(PUSH.format("once"))
    waiting = client("GET", "/v1/asks?state=waiting").json()["asks"]
    assert waiting[0]["id"] == asked["id"] and waiting[0]["decision"]["reason"] == asked["reason"]
    own = client("GET", f"/v1/asks/{asked['id']}", role="agent").json()
    assert own["state"] == "waiting" and 0 < own["remaining"] <= 900
    answer = client("POST", f"/v1/asks/{asked['id']}", {"answer": "allow"}, role="reviewer").json()
    assert (answer["state"], answer["once"], answer["correction"]) == ("allowed", True, None)
    own = client("GET", f"/v1/asks/{asked['id']}?wait=5", role="agent").json()
    assert (own["state"], own["by"]) == ("allowed", "reviewer")
    assert [client.decided(PUSH.format("once"))["decision"] for _ in range(2)] == ["allow", "ask"]
    assert "answered by reviewer" in reason(client("POST", f"/v1/asks/{asked['id']}", {"answer": "block"}), 409)
    reason(client("POST", "/v1/asks/nothing", {"answer": "block"}), 404)
    signal = client.store.journal.signals()[-1]
    assert (signal["actor"], signal["role"], signal["kind"]) == ("reviewer", "reviewer", "override_allow")


def test_who_waits_for_an_answer_is_told_at_once(client):
    asked = client.decided(PUSH.format("waited"))

    async def both(http):
        waiting = asyncio.create_task(client.send(http, "GET", f"/v1/asks/{asked['id']}?wait=60", role="agent"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await client.send(http, "POST", f"/v1/asks/{asked['id']}", {"answer": "block", "for": "always"})
        async with asyncio.timeout(10):
            return (await waiting).json()

    assert client.talk(both)["state"] == "blocked"


def test_feedback_also_answers_the_question(client):
    asked = client.decided(PUSH.format("judged"))
    body = {"id": asked["id"], "kind": "override_block"}
    assert client("POST", "/v1/feedback", body).json()["correction"].startswith("c")
    assert client("GET", f"/v1/asks/{asked['id']}", role="agent").json()["state"] == "blocked"


def test_a_correction_is_previewed_made_listed_and_retracted(client):
    asked = [client.decided(f"rm -rf ../drafts/{name}") for name in ("", "a", "b")]
    client.decided("rm -rf ../drafts2")
    body = {"id": asked[0]["id"], "kind": "override_allow"}
    preview = client("POST", "/v1/corrections/preview", body).json()
    assert preview["changed"] == 2 and preview["to"] == {"allow": 2, "ask": 0, "block": 0}
    assert {row["id"] for row in preview["decisions"]} == {one["id"] for one in asked[1:]}
    assert preview["summary"] == "would also allow 2 calls of the last 7 days"
    assert client.decided("rm -rf ../drafts/a")["decision"] == "ask"  # nothing was changed
    made = client("POST", "/v1/feedback", body, role="reviewer").json()
    assert (made["weight"], made["target"], made["before"]) == (2.0, 1.0, None)
    assert client.decided("rm -rf ../drafts/a")["decision"] == "allow"
    first = client("GET", "/v1/corrections").json()["corrections"][0]
    assert first["id"] == made["correction"] and first["actor"] == "reviewer"
    assert first["does"] == ["deletes /work/drafts/, outside the project"]
    said = client("GET", f"/v1/decisions/{asked[0]['id']}").json()["said"]
    assert said == {"kind": "override_allow", "actor": "reviewer", "correction": made["correction"]}
    back = client("POST", "/v1/corrections/preview", {"retract": made["correction"]}).json()
    assert back["to"]["ask"] == back["changed"] >= 3
    assert client("DELETE", f"/v1/corrections/{made['correction']}").json()["retracted"]
    assert client.decided("rm -rf ../drafts/a")["decision"] == "ask"
    reason(client("DELETE", f"/v1/corrections/{made['correction']}"), 404)
    reason(client("POST", "/v1/corrections/preview", {"retract": made["correction"]}), 404)


def test_rules_are_previewed_replaced_and_hold_at_once(client):
    asked = client.decided("npm publish", session="rules")
    text = '[[deny]]\neffect = "publish"\nprogram = "npm"\nreason = "people release"\n'
    preview = client("POST", "/v1/rules/preview", {"text": text}).json()
    assert asked["id"] in {row["id"] for row in preview["decisions"]} and preview["to"]["block"] >= 1
    before = client("GET", "/v1/rules").json()
    assert before["default"] and before["rules"] == []
    after = client("PUT", "/v1/rules", {"text": text, "stamp": before["stamp"]}).json()
    assert after["rules"][0]["reason"] == "people release" and not after["default"]
    blocked = client.decided("npm publish", session="rules")
    assert (blocked["decision"], blocked["by"]) == ("block", "rule") and "people release" in blocked["reason"]
    assert "somebody else has changed the rules" in reason(
        client("PUT", "/v1/rules", {"text": "", "stamp": before["stamp"]}), 409
    )
    assert "must be deny or allow" in reason(client("PUT", "/v1/rules", {"text": "[[den]]\ntool='x'"}), 422)
    assert client("GET", "/v1/rules").json()["text"] == text
    client("PUT", "/v1/rules", {"text": before["text"]})
    assert client.decided("npm publish", session="rules")["decision"] == "ask"


def test_a_rule_on_an_argument_is_previewed_by_what_is_kept(client):
    client("POST", "/v1/decide", {"tool": "Fetch", "arguments": {"url": "http://a.example/x"}}, role="agent")
    client.decider.flush()
    text = '[[deny]]\ntool = "Fetch"\nargument = "url"\nprefix = "http://a.example"\n'
    assert client("POST", "/v1/rules/preview", {"text": text}).json()["to"]["block"] == 1
    assert client("POST", "/v1/rules/preview", {"text": text.replace("a.example", "b.example")}).json()["changed"] == 0


def test_the_policy_is_previewed_replaced_and_the_default_again(client):
    asked = client.decided("rm -rf ../policy")
    before = client("GET", "/v1/policy").json()
    assert before["default"] and before["table"]["delete"]["outside"] == "ask"
    text = '[delete]\nblock = "outside"\n'
    preview = client("POST", "/v1/policy/preview", {"text": text}).json()
    assert asked["id"] in {row["id"] for row in preview["decisions"] if row["after"] == "block"}
    put = client("PUT", "/v1/policy", {"text": text, "stamp": before["stamp"]}).json()
    assert not put["default"] and put["table"]["delete"]["outside"] == "block"
    assert client.decided("rm -rf ../policy")["decision"] == "block"
    reason(client("PUT", "/v1/policy", {"text": "[fly]\nallow = 'project'"}), 422)
    assert client("DELETE", "/v1/policy").json()["default"]
    assert client.decided("rm -rf ../policy")["decision"] == "ask"


def test_a_preview_never_calls_the_floor_off(client):
    client.decided(f"rm -rf {client.store.folder}")
    client.decided("rm -rf ../not-the-floor")
    allow = '[[allow]]\ntool = "*"\n'
    rows = client("POST", "/v1/rules/preview", {"text": allow, "limit": 500}).json()["decisions"]
    assert rows and all(str(client.store.folder) not in row["text"] for row in rows)


def test_settings(client):
    assert client("GET", "/v1/settings").json()["shadow"] is False
    assert client("PUT", "/v1/settings", {"shadow": True}).json()["shadow"] is True
    assert client("GET", "/v1/status").json()["shadow"] is True and client("GET", "/healthz").json()["shadow"] is True
    answer = client.decided("rm -rf /")
    assert (answer["decision"], answer["shadow"], answer["would_block"]) == ("allow", "block", True)
    asked = client.decided(PUSH.format("shadow"))
    assert (asked["decision"], asked["shadow"], asked["would_block"]) == ("allow", "ask", False)
    assert "expires" not in asked
    reason(client("GET", f"/v1/asks/{asked['id']}"), 404)
    assert client("PUT", "/v1/settings", {"shadow": False}).json()["shadow"] is False
    assert client("GET", "/v1/status").json()["shadow"] is False
    assert client.decided("rm -rf /")["decision"] == "block"
    for wrong in ({"ask_minutes": 0}, {"false_allow": 1}, {"schema": 2}, {"keep_days": -1}, {"audit_head": "/x"}):
        reason(client("PUT", "/v1/settings", wrong), 422)


def test_changes_at_the_same_time(client, monkeypatch):
    """Of two new texts for the same rules one is refused, and two changes to different settings both hold."""
    before, checking = client("GET", "/v1/rules").json(), threading.Barrier(2)
    checked, read = changes._check_stamp, changes.read_settings

    def together(there):
        with suppress(threading.BrokenBarrierError):  # the other one waits for its turn
            checking.wait(0.5)
        return there

    monkeypatch.setattr(changes, "_check_stamp", lambda *said: together(checked(*said)))
    monkeypatch.setattr(changes, "read_settings", lambda folder: together(read(folder)))

    async def both(http, path, *bodies):
        answers = await asyncio.gather(*(client.send(http, "PUT", path, body) for body in bodies))
        return sorted(answer.status_code for answer in answers)

    texts = [{"text": f"# {name}\n", "stamp": before["stamp"]} for name in ("one", "other")]
    assert client.talk(lambda http: both(http, "/v1/rules", *texts)) == [200, 409]
    checking.reset()
    assert client.talk(lambda http: both(http, "/v1/settings", {"ask_minutes": 20}, {"keep_days": 30})) == [200, 200]
    checking.reset()
    told = client("GET", "/v1/settings").json()
    assert (told["ask_minutes"], told["keep_days"]) == (20, 30)
    client("PUT", "/v1/settings", {"ask_minutes": 15, "keep_days": 90})
    client("PUT", "/v1/rules", {"text": before["text"]})


def test_a_gate_that_people_look_at_is_not_idle(client):
    """What asks whether it is up, and who is not let in, does not count as use."""
    service = client.service
    for method, path, role, used in (
        ("GET", "/v1/asks", "reviewer", True),
        ("GET", "/v1/me", "agent", True),
        ("GET", "/healthz", "admin", False),
        ("GET", "/healthz", "socket", False),
        ("GET", "/metrics", "admin", False),
        ("GET", "/v1/asks", "", False),
    ):
        service.last_request -= 1000
        client(method, path, role=role)
        assert (service.idle_seconds() < 500) is used, path


@pytest.mark.parametrize("id", ["c", "c²", "c١", "c+1", "c 1", "c1_0", "c-1", "C1", "1", "c" + "9" * 60])
def test_what_is_no_name_of_a_correction(client, id):
    reason(client("DELETE", f"/v1/corrections/{quote(id)}"), 404)
    reason(client("POST", "/v1/corrections/preview", {"retract": id[:32]}), 404)


def test_versions_and_rollback(client):
    store, first = client.store, client.store.versions.serving()
    record = store.versions.get(first).record
    second = store.versions.add(store.versions.weights(first), {**record, "came_from": first})
    assert client.decided("ls")["version"] == second
    listed = client("GET", "/v1/versions").json()
    assert listed["serving"] == second and {first, second} <= {v["version"] for v in listed["versions"]}
    assert f"version {second} is serving now, not {first}" in reason(
        client("POST", "/v1/versions/rollback", {"serving": first}), 409
    )
    done = client("POST", "/v1/versions/rollback", {"serving": second}).json()
    assert done == {"serving": first, "before": second}
    assert client.decided("ls")["version"] == first
    reason(client("POST", "/v1/versions/rollback", {"version": 77}), 404)
    client("POST", "/v1/versions/rollback", {"version": 1})
    reason(client("POST", "/v1/versions/rollback", {}), 404)  # there is none before the first


def test_tokens_are_made_told_once_and_revoked(client):
    made = client("POST", "/v1/tokens", {"name": "ci", "role": "agent"}).json()
    client.secrets["ci"] = made["token"]
    assert client("GET", "/v1/me", role="ci").json() == {"name": "ci", "role": "agent"}
    assert made["token"] not in client("GET", "/v1/tokens").text
    reason(client("POST", "/v1/tokens", {"name": "ci", "role": "admin"}), 422)
    assert client("DELETE", "/v1/tokens/ci").json()["revoked"]
    reason(client("DELETE", "/v1/tokens/ci"), 404)
    reason(client("GET", "/v1/me", role="ci"), 401)


def test_news_are_waited_for(client):
    first = client("GET", "/v1/changes").json()

    async def both(http):
        waiting = asyncio.create_task(client.send(http, "GET", f"/v1/changes?stamp={first['stamp']}&wait=60"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await client.send(http, "POST", "/v1/decide", {"command": "ls"}, role="agent")
        async with asyncio.timeout(10):
            return (await waiting).json()

    news = client.talk(both)
    assert news["decisions"] > first["decisions"] and news["stamp"] != first["stamp"]
    assert client("GET", f"/v1/changes?stamp={news['stamp']}&wait=0.3").json() == news
    before = client("GET", "/v1/rules").json()["text"]
    assert client("PUT", "/v1/rules", {"text": "# other\n"}).status_code == 200
    assert client("GET", "/v1/changes").json()["files"] != news["files"]
    client("PUT", "/v1/rules", {"text": before})


def test_status_history_and_metrics(client):
    told = client("GET", "/v1/status").json()
    assert told["daemon"]["address"] == "127.0.0.1:8377" and told["daemon"]["learner"]["running"] is False
    assert told["daemon"]["audit"]["count"] == client.store.audit.head().count
    before = len(client("GET", "/v1/history").json()["points"])
    asked = client.decided(PUSH.format("counted"))
    client("GET", f"/v1/decisions/{asked['id']}")
    tidy(client.service)
    tidy(client.service)  # a point an hour
    points = client("GET", "/v1/history").json()["points"]
    assert len(points) == before + 1 and points[-2]["decisions"]["ask"] > 0 == points[-1]["decisions"]["ask"]
    assert points[-1]["judged"] == told["judged"]["allow"] + told["judged"]["block"]
    client.decided("ls")
    text = client("GET", "/metrics").text
    assert 'gradproof_gate_requests_total{path="/v1/decisions/{id}",status="200"}' in text
    assert 'gradproof_gate_decisions_total{by="policy",decision="ask"}' in text and "agent" not in text


def test_the_audit_log_tells_everything_and_no_argument(client):
    client.decided("rm -rf ../topsecretname")
    asked = [client.decided(PUSH.format(f"logged{i}")) for i in range(2)]
    for one, role in zip(asked, ("reviewer", "admin"), strict=True):
        client("POST", f"/v1/asks/{one['id']}", {"answer": "allow"}, role=role)
    made = client("POST", "/v1/feedback", {"id": asked[0]["id"], "kind": "override_allow"}).json()
    client("DELETE", f"/v1/corrections/{made['correction']}")
    rules = client("GET", "/v1/rules").json()["text"]
    client("PUT", "/v1/rules", {"text": '[[deny]]\nprogram = "npm"\nreason = "people release"\n'})
    client("PUT", "/v1/rules", {"text": rules})
    client("DELETE", "/v1/policy")
    client("PUT", "/v1/settings", {"shadow": False})
    serving = client.store.versions.serving()
    client.store.versions.add(client.store.versions.weights(serving), client.store.versions.get(serving).record)
    client("POST", "/v1/versions/rollback", {"version": serving})
    client("POST", "/v1/tokens", {"name": "logged", "role": "agent"})
    client("DELETE", "/v1/tokens/logged")
    report = client("GET", "/v1/audit/check").json()
    assert report["whole"] and report["lines"] == report["count"]
    lines, after = [], 0
    while page := client("GET", f"/v1/audit?after={after}&limit=50").json()["lines"]:
        lines += page
        after = page[-1]["seq"]
    assert [line["seq"] for line in lines] == list(range(1, report["count"] + 1))
    kinds = {line["kind"] for line in lines}
    assert kinds >= {"decision", "feedback", "answer", "retraction", "rules", "policy", "settings", "rollback", "token"}
    assert {line["actor"] for line in lines if line["kind"] == "answer"} == {"reviewer", "admin"}
    said = json.dumps(lines)
    assert "topsecretname" not in said and "git push" not in said and "people release" not in said


def test_the_openapi_document_has_every_route_with_examples(client):
    document = client("GET", "/openapi.json").json()
    paths = {f"{method.upper()} {path}" for path, operations in document["paths"].items() for method in operations}
    assert {"POST /v1/decide", "DELETE /v1/tokens/{name}", "GET /v1/changes"} <= paths and len(paths) >= 33
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path != "/metrics":
                assert operation["responses"]["200"]["content"]["application/json"]["example"], (method, path)
            assert operation["summary"] and ("requestBody" in operation) == (method in ("post", "put")), (method, path)


def test_names_cannot_write_lines_of_their_own(client, capfd):
    """Neither into the audit log nor into what is printed."""
    evil = 'x"}\n{"seq": 1, "kind": "decision"}\r\n\x1b[31m'
    for call in (
        {"tool": "Bash", "arguments": {"command": "ls"}, "session": evil, "actor": evil},
        {"tool": f"Fetch{evil}", "arguments": {evil: evil}},
    ):
        assert client("POST", "/v1/decide", call, role="agent").status_code == 200
    assert client("GET", f"/v1/decisions/{evil!r}").status_code in (404, 422)
    report = client("GET", "/v1/audit/check").json()
    assert report["whole"] and report["lines"] == report["count"]
    assert "\x1b" not in capfd.readouterr().err
