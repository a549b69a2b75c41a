"""Load on the prediction service, over a real socket: does batching pay, and does it survive what clients send?

    python benchmarks/serve_load.py [--json FILE]

The server runs in a process of its own, and so does the load; both share the machine. Two parts:

speed    single-record requests from keep-alive clients, on a server that batches and on one that does not, in turns;
         medians of the rounds
hostile  requests of which most are wrong in some way; every answer must be JSON with a 2xx or the 4xx that fits, and
         the server's memory must not grow
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

try:
    from uvloop import run as run_loop
except ImportError:
    run_loop = asyncio.run

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
GROWTH_ALLOWED = 8 << 20  # bytes between two readings that an allocator may move without a leak


class Client(asyncio.Protocol):
    """One keep-alive connection that asks again as soon as it is answered."""

    def __init__(self, requests: list[bytes], latencies: list[float]):
        self.requests, self.latencies = requests, latencies
        self.sent, self.asked, self.buffer, self.left = 0, 0.0, b"", 0
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.asked = time.perf_counter()
        self.transport.write(self.requests[self.sent % len(self.requests)])
        self.sent += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or len(self.buffer) < end + 4 + int(LENGTH.search(self.buffer)[1]):  # type: ignore[index]
            return
        if not self.buffer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(self.buffer.decode())
        self.buffer = b""
        self.latencies.append(time.perf_counter() - self.asked)
        self.ask()

    def connection_lost(self, exc) -> None:
        self.closed.set_result(None)


async def load(port: int, requests: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Requests a second, and latencies in milliseconds."""
    loop, latencies = asyncio.get_running_loop(), []
    connected = [Client(requests[i:] + requests[:i], latencies) for i in range(clients)]
    for client in connected:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    await asyncio.sleep(0.3)  # every client has been served by now
    latencies.clear()
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed, done = time.perf_counter() - start, sorted(latencies)
    for client in connected:
        client.transport.close()
    await asyncio.gather(*(client.closed for client in connected))
    at = {name: done[int(share * len(done))] * 1e3 for name, share in dict(p50=0.5, p99=0.99).items()}
    return dict(per_second=len(done) / elapsed, **at)


def post(body: bytes, path: str = "/predict", method: str = "POST", headers: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def records(count: int) -> list[dict]:
    """Rows of the synthetic quality set as JSON objects."""
    from gradproof.data.synthetic import synthetic

    made = synthetic(count, seed=1)
    names = [
        [c.values[slot] for c, slot in zip(made.schema.categories, row, strict=True)] for row in made.rows.codes_RC
    ]
    keys = [column.name for column in (*made.schema.categories, *made.schema.numbers)]
    values = [[*n, *row] for n, row in zip(names, made.rows.numbers_RN.tolist(), strict=True)]
    return [dict(zip(keys, row, strict=True)) for row in values]


def hostile(record: dict, draw: random.Random) -> tuple[bytes, int]:
    """A request, and the status that answers it rightly."""
    good = json.dumps(record).encode()

    def changed(**columns) -> bytes:
        return post(json.dumps({**record, **{key.replace("_", " "): value for key, value in columns.items()}}).encode())

    kinds: list[Callable[[], tuple[bytes, int]]] = [
        lambda: (post(good), 200),
        lambda: (post(json.dumps({"records": [record] * draw.randint(1, 40)}).encode()), 200),
        lambda: (changed(block_0="never seen", number_03=draw.choice([None, 1.7e308])), 200),
        lambda: (post(b"", draw.choice(["/metrics", "/schema", "/healthz"]), "GET"), 200),
        lambda: (post(b""), 400),
        lambda: (post(good[: draw.randrange(1, len(good))]), 400),
        lambda: (post(draw.randbytes(200) + b"\xff"), 400),
        lambda: (post(good.replace(b'"number 03": ', b'"number 03": NaN, "number 04": ')), 400),
        lambda: (post(b"[" * 100_000), 400),
        lambda: (post(b'{"a": ' + b"9" * 10_000 + b"}"), 400),
        lambda: (post(json.dumps(dict(list(record.items())[draw.randrange(1, 9) :])).encode()), 422),
        lambda: (changed(**{"x" * draw.randint(1, 999): 1}), 422),
        lambda: (changed(number_03=draw.choice(["3", True, [1], {}, 10**400])), 422),
        lambda: (changed(block_0=draw.choice([[], {}])), 422),
        lambda: (post(good.replace(b'"number 03": ', b'"number 03": 1e999, "number 04": ')), 422),
        lambda: (post(json.dumps({"records": [1] * draw.choice([0, 10_001])}).encode()), 422),
        lambda: (post(draw.choice([b"[]", b"1", b"null", b'"x"', b'{"records": {}}'])), 422),
        lambda: (post(good, f"/{draw.random()}"), 404),
        lambda: (post(good, method=draw.choice(["GET", "PUT", "DELETE", "PATCH"])), 405),
        lambda: (post(good, "/healthz"), 405),
        lambda: (post(b" " * (draw.randint(2, 6) << 20)), 413),
        lambda: (chunked([b" " * 65_536] * draw.randint(17, 64)), 413),
    ]
    return draw.choice(kinds)()


def chunked(chunks: list[bytes]) -> bytes:
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])


async def ask(port: int, requests: Iterable[tuple[bytes, int]], answers: list[tuple[int, bool]]) -> None:
    """Asks one after the other, on one connection as long as the server keeps it; (status, as it should be) each."""
    stream = None
    for request, right in requests:
        reader, writer = stream = stream or await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(LENGTH.search(head)[1]))  # type: ignore[index]
        status = int(head.split(b" ", 2)[1])
        answers.append((status, status == right and (b"# HELP" in body or _reasoned(status, body))))
        if b"connection: close" in head.lower():
            writer.close()
            stream = None
    if stream:
        stream[1].close()


def _reasoned(status: int, body: bytes) -> bool:
    return (list(json.loads(body)) == ["error"]) == (status >= 400)


async def deserters(port: int, requests: list[bytes], draw: random.Random) -> None:
    """Clients that leave in the middle of a request, or before they are answered."""
    for request in requests:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request[: draw.randint(1, len(request))])
        await writer.drain()
        writer.transport.abort()


async def abuse(port: int, pid: int, count: int) -> dict:
    """Memory is read after a third of the requests, when every kind has been seen, and after the last."""
    draw, good = random.Random(0), records(64)
    readings, answers = [], []
    for share in (count // 3, count - count // 3):
        requests = (hostile(draw.choice(good), draw) for _ in range(share))
        left = [post(json.dumps(record).encode()) for record in good] * (share // 1000)
        await asyncio.gather(*(ask(port, requests, answers) for _ in range(16)), deserters(port, left, draw))
        readings.append(resident(pid))
    statuses = sorted({status for status, _ in answers})
    return dict(
        requests=len(answers),
        statuses={status: sum(s == status for s, _ in answers) for status in statuses},
        wrong=sum(not right for _, right in answers),
        resident_mib=[round(reading / 2**20, 1) for reading in readings],
        grew=readings[1] - readings[0] > GROWTH_ALLOWED,
    )


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contextmanager
def server(mode: str):
    """A server of a nano MoE in its own process; yields its port and process id."""
    process = subprocess.Popen([sys.executable, __file__, "--server", mode], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        yield int(line.split("http://127.0.0.1:")[1].split()[0]), process.pid
    finally:
        process.terminate()
        process.wait()


def run_server(mode: str) -> None:
    from gradproof.data import synthetic
    from gradproof.models.moe import MoE
    from gradproof.serve.service import serve
    from gradproof.train.predictor import Predictor

    serve(Predictor(MoE.sized("nano"), synthetic.schema()), port=0, run=mode, batching=mode == "batching")


def speed(clients: int, seconds: float, rounds: int) -> dict:
    requests = [post(json.dumps(record).encode()) for record in records(clients)]
    by_mode: dict[str, list[dict[str, float]]] = {"batching": [], "none": []}
    with server("batching") as (batching, _), server("none") as (none, _):
        for _ in range(rounds):
            for mode, port in (("batching", batching), ("none", none)):
                by_mode[mode].append(run_loop(load(port, requests, clients, seconds)))
                print(f"  {mode:9s} {by_mode[mode][-1]['per_second']:8.0f}/s", file=sys.stderr)
    medians = {m: {key: median(r[key] for r in rs) for key in rs[0]} for m, rs in by_mode.items()}
    ratios = [b["per_second"] / n["per_second"] for b, n in zip(*by_mode.values(), strict=True)]
    return dict(clients=clients, seconds=seconds, rounds=by_mode, **medians, ratio=median(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load, each round and mode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hostile", type=int, default=10_000, help="requests of the hostile part")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--server", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        return run_server(options.server)
    fast = [name for name in ("httptools", "uvloop") if find_spec(name)]
    record: dict = dict(machine=dict(cores=os.cpu_count(), python=platform.python_version(), uvicorn_with=fast))
    if options.rounds:
        record["speed"] = speeds = speed(options.clients, options.seconds, options.rounds)
        print(f"{'':9s} requests/s    p50 ms    p99 ms")
        for mode in ("batching", "none"):
            figures = speeds[mode]
            print(f"{mode:9s} {figures['per_second']:10.0f} {figures['p50']:9.1f} {figures['p99']:9.1f}")
        about = f"{options.clients} clients, uvicorn with {' and '.join(fast) or 'neither httptools nor uvloop'}"
        print(f"batching gives {speeds['ratio']:.1f}× the requests ({about})")
    if options.hostile:
        with server("batching") as (port, pid):
            record["hostile"] = abused = run_loop(abuse(port, pid, options.hostile))
        print(f"{abused['requests']:,} hostile requests: {abused['statuses']}, {abused['wrong']} answered wrongly")
        print(f"memory {abused['resident_mib'][0]} MiB after a third, {abused['resident_mib'][1]} MiB after all")
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(options.hostile) and (record["hostile"]["wrong"] > 0 or record["hostile"]["grew"]))


if __name__ == "__main__":
    main()
