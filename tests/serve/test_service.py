"""The service, in process and once over a socket: right answers to good requests, a reason for every bad one."""

import asyncio
import gc
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from gradproof.data.schema import Quantity
from gradproof.http import answers as http_answers
from gradproof.http import limits
from gradproof.http.listening import listen
from gradproof.models.moe import MoE, MoEConfig
from gradproof.serve import service
from gradproof.serve.predict import as_records
from gradproof.serve.records import rows_of
from gradproof.serve.service import app
from gradproof.train.predictor import Predictor

LIMIT = 5000


def talk(made, conversation):
    """Runs `conversation(client)`, a coroutine function, against the app."""

    async def run():
        transport = httpx.ASGITransport(made, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await conversation(client)

    return asyncio.run(run())


def send(made, body, path="/predict", method="POST"):
    """One answer to one body."""
    return talk(made, lambda client: client.request(method, path, content=body))


def reason(answer, status):
    """The error's sentence; the answer holds nothing else."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]


@pytest.fixture(scope="module")
def made(predictor):
    return app(predictor, run="runs/a", step=7, body_limit=LIMIT)


def endpoint(made):
    return next(route.app for route in made.routes if route.path == "/predict")


def expected(predictor, records):
    return as_records(predictor(rows_of(records, predictor.schema)), predictor.schema)


def same(prediction, right):
    """Equal but for single precision's last bits, which depend on who else is in a batch."""
    assert prediction["decision"] == right["decision"] and list(prediction) == list(right)
    for key in ("probabilities", "metrics", "gates"):
        assert prediction[key] == pytest.approx(right[key], rel=1e-5, abs=1e-6)


def test_one_record(made, predictor, record):
    answer = send(made, json.dumps(record))
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    same(answer.json(), expected(predictor, [record])[0])


def test_a_number(record, schema):
    """mean, low and high in place of decision and probabilities; the meters have no classes to count."""
    quantity = replace(schema, classes=(), metrics=(), quantity=Quantity(50.0, 4.0))
    number = Predictor(MoE(MoEConfig(inputs=10, outputs=2, hidden=16, depth=1), seed=3), quantity)
    made = service.app(number)
    answer = send(made, json.dumps(record)).json()
    assert list(answer) == ["mean", "low", "high", "gates"] and answer["low"] < answer["mean"] < answer["high"]
    mean, _, low, high = number(rows_of([record], quantity)).number_TV[0]
    assert (answer["mean"], answer["low"], answer["high"]) == pytest.approx((mean, low, high))
    assert send(made, "", "/schema", "GET").json()["std"] == 4.0
    assert send(made, "", "/healthz", "GET").json()["task"] == "regression"


def test_many_records(made, predictor, record):
    records = [record | {"count": i, "colour": None} for i in range(9)]
    answer = send(made, json.dumps({"records": records})).json()
    assert list(answer) == ["predictions"]
    for prediction, right in zip(answer["predictions"], expected(predictor, records), strict=True):
        same(prediction, right)


@pytest.mark.parametrize("batching", [True, False])
def test_everyone_gets_their_own_answer(predictor, record, batching):
    """Many at once, of different sizes, good and bad among them."""
    bodies = [[record | {"count": i, "weight": j} for j in range(i % 5 + 1)] for i in range(60)]

    async def ask(client):
        bad = [client.post("/predict", content=b"{") for _ in range(5)]
        return await asyncio.gather(*(client.post("/predict", json={"records": body}) for body in bodies), *bad)

    made = app(predictor, batching=batching)
    answers = talk(made, ask)
    for answer, records in zip(answers[:60], bodies, strict=True):
        for prediction, right in zip(answer.json()["predictions"], expected(predictor, records), strict=True):
            same(prediction, right)
    assert {answer.status_code for answer in answers[60:]} == {400}
    forwards = float(re.search(r"gradproof_batch_rows_count (\S+)", send(made, b"", "/metrics", "GET").text)[1])
    assert forwards < 60 if batching else forwards == 60


def test_explanations(predictor, explainer, record):
    """As the explainer gives them, beside the same decisions; batches without them stay as they are."""
    made, records = app(predictor, explainer=explainer), [record, {**record, "count": -20}]
    answer = send(made, json.dumps({"records": records, "explain": True})).json()["predictions"]
    rows = rows_of(records, predictor.schema)
    right = [explanation.record() for explanation in explainer(rows, predictor(rows).decision_T)]
    assert [prediction.pop("explanation") for prediction in answer] == json.loads(json.dumps(right))
    assert answer == expected(predictor, records)
    for why, prediction in zip(right, answer, strict=True):
        total = why["others"] + sum(reason["contribution"] for reason in why["because"])
        assert why["decision"] == prediction["decision"] and len(why["because"]) == 4  # as many as there are columns
        assert total == pytest.approx(why["logit"] - why["baseline"], rel=0.01)
    plain = send(made, json.dumps({"records": records, "explain": False})).json()["predictions"]
    assert plain == expected(predictor, records)


def test_explanations_that_are_refused(predictor, explainer, record, monkeypatch):
    """One sentence each: too many, no such word, nobody to ask, too busy."""
    made, many = app(predictor, explainer=explainer), [record] * (service.EXPLAINED_LIMIT + 1)
    refused = {
        "has at most 100 records, not 101": {"records": many, "explain": True},
        "explain must be true or false": {"records": [record], "explain": "yes"},
        "with no other keys than": {"records": [record], "explan": True},
    }
    for sentence, body in refused.items():
        assert sentence in reason(send(made, json.dumps(body)), 422)
    body = json.dumps({"records": [record], "explain": True})
    assert "cannot explain decisions" in reason(send(app(predictor), body), 422)
    endpoint(made).reasons.waiting = service.EXPLAINED_WAITING
    assert "are waiting for explanations" in reason(send(made, body), 429)


def test_a_column_may_be_named_records(predictor, schema, record):
    from dataclasses import replace

    odd = replace(schema, left_out={"records": "constant"})
    made = app(service.Predictor(predictor.model, odd))
    assert "decision" in send(made, json.dumps(record | {"records": 3})).json()
    assert len(send(made, json.dumps({"records": [record] * 2})).json()["predictions"]) == 2


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"colour": "red"} x', "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"weight": NaN}', "NaN"),
        (b'{"weight": -Infinity}', "-Infinity"),
        (b"[" * 4000, "nested too deeply"),
        (b'{"a":' * 900, "not JSON|nested too deeply"),
        (b'{"weight": ' + b"9" * 4400 + b"}", "too many digits"),
    ],
    ids=range(10),
)
def test_malformed(made, body, sentence):
    assert re.search(sentence, reason(send(made, body), 400))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weight": [11]}, "record 1: 'weight' must be a number or null, not a list"),
        ({"weight": True}, "'weight' must be a number"),
        ({"colour": ["red"]}, "'colour' must be text"),
        ({"shape": 1}, "record 1 has 'shape', which the model does not know"),
        ({"\ud800": 1}, "which the model does not know"),
        ({"count": 10**400}, "an integer beyond the largest float"),
    ],
    ids=range(6),
)
def test_wrong_records(made, record, change, sentence):
    assert sentence in reason(send(made, json.dumps(record | change)), 422)


def test_a_number_that_overflows_is_not_taken_for_infinity(made, record):
    body = json.dumps(record).replace("11.5", "1e999")
    assert "finite number or null, not Infinity" in reason(send(made, body), 422)


@pytest.mark.parametrize(
    "body",
    ["[]", "3", "null", '"x"', '{"records": {}}', '{"records": null}', '{"records": [], "x": 1}', '{"records": []}'],
)
def test_wrong_bodies(made, body):
    reason(send(made, body), 422)


def test_costs_of_a_request_are_its_own(predictor, schema, record):
    """Requests with and without costs share a forward; the decisions that are counted are those that are answered."""
    records = [record | {"count": i, "weight": i % 7} for i in range(-20, 20)]
    costs = [{}, {"good": 50}, {"bad": 4, "ugly": 0.5}]
    made = app(predictor)

    async def ask(client):
        bodies = [{"records": records}, *({"records": records, "costs": some} for some in costs)]
        return await asyncio.gather(*(client.post("/predict", json=body) for body in bodies))

    plain, *answers = (answer.json()["predictions"] for answer in talk(made, ask))
    for some, predictions in zip(costs, answers, strict=True):
        for before, after in zip(plain, predictions, strict=True):
            assert after["probabilities"] == before["probabilities"]
            weighed = {name: p * some.get(name, 1) for name, p in after["probabilities"].items()}
            assert after["decision"] == max(weighed, key=weighed.__getitem__)
            assert after["probability"] == after["probabilities"][after["decision"]]
    decided = [prediction["decision"] for predictions in (plain, *answers) for prediction in predictions]
    assert [p["decision"] for p in answers[1]] != [p["decision"] for p in plain]
    text = send(made, b"", "/metrics", "GET").text.splitlines()
    for name in schema.classes:
        assert f'gradproof_decisions_total{{decision="{name}"}} {float(decided.count(name))}' in text


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        ({"god": 2}, "costs: there is no class 'god'; the classes are 'good', 'bad', 'ugly'"),
        ({"good": -1}, "costs: the cost of class 'good' must be a finite number above 0"),
        ({"good": "2"}, "must be a finite number above 0"),
        ({"good": 10**400}, "must be a finite number above 0"),
        ([2, 1, 1], "costs must be {"),
        (None, "costs must be {"),
    ],
    ids=range(6),
)
def test_wrong_costs(made, record, costs, sentence):
    assert sentence in reason(send(made, json.dumps({"records": [record], "costs": costs})), 422)


def test_costs_beside_a_single_record_are_a_column(made, record):
    """A record's keys are its columns, and this one is unknown."""
    assert "'costs', which the model does not know" in reason(send(made, json.dumps(record | {"costs": {}})), 422)


def test_text_that_does_not_fit_is_named_and_counted(made, record):
    """The row is decided as if the value were missing."""
    odd, gone = record | {"weight": "heavy"}, record | {"weight": None}
    answers = send(made, json.dumps({"records": [record, odd, gone]})).json()["predictions"]
    assert "unread" not in answers[0] and answers[1].pop("unread") == ["weight"]
    assert answers[1]["decision"] == answers[2]["decision"] and "unread" not in answers[2]
    assert send(made, json.dumps(odd)).json()["unread"] == ["weight"]
    assert 'gradproof_unread_values_total{column="weight"} 2.0' in send(made, b"", "/metrics", "GET").text


def test_the_wrong_record_of_a_batch_is_named(made, record, overflowing):
    for wrong in ([], overflowing):
        answer = send(made, json.dumps({"records": [record, record, record | {"count": wrong}]}))
        assert reason(answer, 422).startswith("record 3: ")


def test_the_largest_number_is_answered(made, record):
    assert send(made, json.dumps(record | {"count": -1.7e308})).status_code == 200


def test_too_many_records(predictor):
    sentence = reason(send(app(predictor), json.dumps({"records": [0] * 10_001})), 422)
    assert sentence == "a batch must have 1 to 10,000 records, not 10,001"


def test_limits_hold_to_the_byte(made, record):
    body = json.dumps(record).encode()
    assert send(made, body.ljust(LIMIT)).status_code == 200
    assert "5,000 bytes" in reason(send(made, body.ljust(LIMIT + 1)), 413)


def chunks(count, size=1000):
    async def stream():
        for _ in range(count):
            yield b" " * size

    return stream()


def test_a_chunked_body_that_is_too_long(made):
    """It has no length to refuse it by; nor is a lying one believed."""
    answer = talk(made, lambda client: client.post("/predict", content=chunks(6)))
    assert "5,000 bytes" in reason(answer, 413) and answer.headers["connection"] == "close"
    lying = talk(made, lambda client: client.post("/predict", content=chunks(600), headers={"content-length": "10"}))
    reason(lying, 413)
    assert reason(talk(made, lambda client: client.post("/predict", content=chunks(5))), 400)


def test_a_chunked_body_is_never_held_beyond_the_limit(predictor):
    """The endpoint lets go of what it has read as soon as it is too much."""
    held = []

    async def receive():
        held.append(predict.body.held)
        return {"type": "http.request", "body": b" " * 1000, "more_body": len(held) < 500}

    async def ignore(message):
        pass

    predict = endpoint(app(predictor, body_limit=LIMIT))
    asyncio.run(predict({"headers": []}, receive, ignore))
    assert max(held) <= LIMIT and held[6:] == [0] * len(held[6:]) and len(held) == 500


def test_too_many_bodies_at_once(predictor, monkeypatch):
    monkeypatch.setattr(limits, "BODIES_LIMIT", 2)
    made = app(predictor, body_limit=LIMIT)

    async def slowly():
        for _ in range(4):
            yield b" " * 1000
            await asyncio.sleep(0.001)

    async def ask(client):
        return await asyncio.gather(*(client.post("/predict", content=slowly()) for _ in range(8)))

    answers = talk(made, ask)
    assert {answer.status_code for answer in answers} == {400, 429}
    assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 429} == {"1"}
    assert send(made, b"{").status_code == 400


def test_a_body_that_never_ends(predictor, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.01)
    monkeypatch.setattr(http_answers, "LINGER_SECONDS", 0.01)

    async def stalled():
        yield b"{"
        await asyncio.sleep(5)

    answer = talk(app(predictor), lambda client: client.post("/predict", content=stalled()))
    assert "not complete" in reason(answer, 408)


def test_a_client_that_leaves_is_not_answered(made):
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [], "query_string": b"", "root_path": ""}
    asyncio.run(made(scope, receive, send))
    assert sent == []


def test_wrong_paths_and_methods(made):
    for path in ("/", "/predict/", "/predict/x", "/docs", "/openapi.json", "/%00"):
        assert "/predict, /healthz, /schema, /metrics" in reason(send(made, b"{}", path), 404)
    for path, method in (("/predict", "GET"), ("/predict", "PUT"), ("/healthz", "POST"), ("/metrics", "DELETE")):
        answer = send(made, b"", path, method)
        assert answer.headers["allow"] in reason(answer, 405)


def test_busy(predictor, record, monkeypatch):
    monkeypatch.setattr(service, "WAITING", 3)
    made = app(predictor)

    async def ask(client):
        return await asyncio.gather(*(client.post("/predict", json=record) for _ in range(9)))

    answers = talk(made, ask)
    busy = [answer for answer in answers if answer.status_code != 200]
    assert len(busy) == 6
    assert reason(busy[0], 429) == "3 rows are waiting; try again in a second"
    assert busy[0].headers["retry-after"] == "1"
    assert send(made, json.dumps(record)).status_code == 200


def test_a_large_answer_lets_small_ones_pass(predictor, record, monkeypatch):
    """It is written in pieces, and in between the loop goes on."""
    monkeypatch.setattr(service, "PIECE", 4)
    made, order = app(predictor), []
    records = [record | {"count": i} for i in range(401)]

    async def large(client):
        answer = await client.post("/predict", json={"records": records})
        order.append("large")
        return answer.json()["predictions"]

    async def small(client):
        while not endpoint(made).rows:
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await client.post("/predict", json=record)).status_code == 200
        order.append("small")

    async def ask(client):
        return (await asyncio.gather(large(client), small(client)))[0]

    for prediction, right in zip(talk(made, ask), expected(predictor, records), strict=True):
        same(prediction, right)
    assert order == ["small", "large"]


def test_a_failure_of_the_model_is_a_500_and_the_service_goes_on(predictor, record, monkeypatch):
    made = app(predictor)
    with monkeypatch.context() as patch:
        patch.setattr(predictor.model, "apply", lambda *_: 1 / 0)
        assert "log" in reason(send(made, json.dumps(record)), 500)
    assert send(made, json.dumps(record)).status_code == 200
    assert 'gradproof_requests_total{path="/predict",status="500"} 1.0' in send(made, b"", "/metrics", "GET").text


def test_health_and_schema(made, schema):
    classes = list(schema.classes)
    right = {"status": "ok", "run": "runs/a", "step": 7, "inputs": 10, "classes": classes}
    assert send(made, b"", "/healthz", "GET").json() == right
    told = send(made, b"", "/schema", "GET").json()
    assert [(column["name"], column["kind"]) for column in told["columns"]] == [
        ("colour", "category"),
        ("flag", "category"),
        ("weight", "number"),
        ("count", "number"),
    ]
    assert told["columns"][0]["values"] == ["red", "green", "blue"] and told["classes"] == classes
    assert told["ignored"] == ["outcome", "cost", "risk", "id"]


def test_metrics(predictor, record):
    made, other = app(predictor), app(predictor)

    async def ask(client):
        for body in (record, {"records": [record] * 5}, {}, []):
            await client.post("/predict", json=body)
        for path in ("/nowhere", "/elsewhere", "/healthz"):
            await client.get(path)
        return (await client.get("/metrics")).text

    text = talk(made, ask)
    decision = expected(predictor, [record])[0]["decision"]
    for line in (
        'gradproof_requests_total{path="/predict",status="200"} 2.0',
        'gradproof_requests_total{path="/predict",status="422"} 2.0',
        'gradproof_requests_total{path="other",status="404"} 2.0',
        'gradproof_request_seconds_count{path="/predict"} 4.0',
        "gradproof_rows_total 6.0",
        "gradproof_batch_rows_count 2.0",
        "gradproof_waiting_rows 0.0",
        f'gradproof_decisions_total{{decision="{decision}"}} 6.0',
    ):
        assert line in text.splitlines(), line
    assert "gradproof_rows_total 0.0" in send(other, b"", "/metrics", "GET").text


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_six_hundred_hostile_requests(predictor, record):
    """Each is answered with JSON and the right class of status, and what they held is let go."""
    made, dice = app(predictor, body_limit=1 << 20), random.Random(0)
    good = json.dumps(record).encode()
    kinds = [
        lambda: (good, 200),
        lambda: (json.dumps({"records": [record] * dice.randint(1, 60)}), 200),
        lambda: (json.dumps(record | {"colour": str(dice.random())}), 200),
        lambda: (good[: dice.randrange(len(good))], 400),
        lambda: (dice.randbytes(300) + b"\xff", 400),
        lambda: (b"[" * 10**6, 400),
        lambda: (good.replace(b"11.5", b"NaN"), 400),
        lambda: (json.dumps(dict(list(record.items())[1:])), 422),
        lambda: (json.dumps(record | {str(dice.random()) * 1000: 1}), 422),
        lambda: (json.dumps({"records": [[]] * 20_000}), 422),
        lambda: (b" " * (3 << 20), 413),
        lambda: (chunks(30, 1 << 16), 413),
    ]

    async def ask(client):
        readings = []
        for share in (150, 450):
            for start in range(0, share, 15):
                wanted = [dice.choice(kinds)() for _ in range(start, start + 15)]
                asked = (client.post("/predict", content=body) for body, _ in wanted)
                for answer, (_, status) in zip(await asyncio.gather(*asked), wanted, strict=True):
                    assert answer.status_code == status, answer.text[:200]
                    assert ("error" in answer.json()) == (status != 200)
                assert (await client.get(f"/{dice.random()}")).status_code == 404
            gc.collect()
            readings.append(resident())
        return readings

    before, after = talk(made, ask)
    assert (endpoint(made).body.held, endpoint(made).rows, endpoint(made).batcher.waiting) == (0, 0, 0)
    assert after - before < 24 << 20, f"memory grew by {(after - before) >> 20} MiB"
    text = send(made, b"", "/metrics", "GET").text
    assert len(re.findall("^gradproof_requests_total", text, re.MULTILINE)) == 5


SERVER = """
import numpy as np
from gradproof.data.schema import Number, Schema
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train.predictor import Predictor
from gradproof.serve.service import serve
schema = Schema("y", ("a", "b"), (), (Number("v", 0.0, 1.0),))
serve(Predictor(MoE(MoEConfig(inputs=1, outputs=2, hidden=4)), schema), port=0, run="runs/b")
print("done")
"""


def test_over_a_socket():
    """What only a real connection shows: refusals in the middle of a body, clients that leave, Ctrl-C."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        port = int(re.fullmatch(r"serving runs/b at http://127\.0\.0\.1:(\d+) \(Ctrl-C stops it\)\n", line)[1])
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1:{port}: .*; choose another"):
            listen("127.0.0.1", port)
        for part in (b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{", b"POST /pre", b""):
            with socket.create_connection(("127.0.0.1", port)) as leaver:
                leaver.sendall(part)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            # The whole body is sent before the answer is read: a reset would lose the reason.
            assert "bytes" in reason(client.post("/predict", content=b" " * (8 << 20)), 413)
            assert "bytes" in reason(client.post("/predict", content=(b" " * 65_536 for _ in range(128))), 413)
            assert client.post("/predict", content=b'{"v": 1}').json()["decision"] in ("a", "b")
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=20)[0] == "done\n" and server.returncode == 0
    finally:
        server.kill()
        server.wait()


def test_a_missing_extra_is_one_sentence(predictor, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ValueError, match=r"^serving needs FastAPI: pip install 'gradproof\[serve\]'$"):
        app(predictor)


def test_ports_that_are_none():
    for port in (-1, 70_000):
        with pytest.raises(ValueError, match="cannot listen on"):
            listen("127.0.0.1", port)
    with pytest.raises(ValueError, match="cannot listen on"):
        listen("no.such.host.invalid", 80)


def test_batches_of_requests_do_not_change_decisions(predictor, schema, record):
    """The same record alone and among others: equal to single precision."""
    records = [record | {"count": i} for i in range(40)]
    alone = np.concatenate([predictor(rows_of([single], schema)).probability_TC for single in records])
    np.testing.assert_allclose(predictor(rows_of(records, schema)).probability_TC, alone, rtol=1e-5)
