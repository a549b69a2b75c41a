"""How long the gate's hook takes, from the start of its process to its end, as an agent runs it.

    python benchmarks/gate_hook.py --store DIR [--runs 200] [--cold 5] [--out FILE.json]

Warm: a daemon is at work. Cold: there is none, and the hook starts it; the one that it started is ended before the next
run. Beside them, in turns: an empty program in the same interpreter, which no hook in Python can be faster than. The
store's gate decides calls of several kinds, made from the tests' events.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE / "tests" / "gate")]

from hook_events import events, written  # noqa: E402

from gradproof.gate.client import GateClient  # noqa: E402
from gradproof.gate.exchange import NoAnswer  # noqa: E402

# As the console script: isolated, with the package of this checkout.
PROGRAM = f"import sys; sys.path.insert(0, {str(HERE)!r}); from gradproof.gate.hook import main; main()"
WARM_LIMIT, COLD_LIMIT = 80.0, 5000.0  # milliseconds


class Run(NamedTuple):
    """One run of a process: milliseconds from start to end, those of processor time, and what it said."""

    taken: float
    used: float
    said: bytes


def run(argv: list[str], event: bytes) -> Run:
    begun, before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    done = subprocess.run(argv, input=event, capture_output=True)
    taken, after = (time.perf_counter() - begun) * 1000, getrusage(RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000
    if done.returncode != 0:
        sys.exit(f"the hook ended with {done.returncode}: {done.stderr.decode()}")
    return Run(taken, used, done.stdout)


def undecided(said: bytes) -> bool:
    return b"could not decide" in said


def end_daemon(store: Path) -> None:
    """Ends the store's daemon, and waits until it is gone."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"serve" in words and os.fsencode(store) in words:
                os.kill(int(folder.name), signal.SIGTERM)
                for _ in range(600):
                    os.kill(int(folder.name), 0)
                    time.sleep(0.1)


def figures(runs: list[Run]) -> dict[str, float]:
    taken = sorted(run.taken for run in runs)
    used = statistics.median(run.used for run in runs)
    last = taken[min(len(taken) - 1, int(0.99 * len(taken)))]
    return {
        "runs": len(taken),
        "median_ms": round(statistics.median(taken), 1),
        "p99_ms": round(last, 1),
        "cpu_ms": round(used, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--cold", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    store = given.store.absolute()
    hook = [sys.executable, "-I", "-c", PROGRAM, "--store", str(store)]
    empty = [sys.executable, "-I", "-c", "pass"]
    made = [written(event) for event in events(given.runs)]

    cold: list[Run] = []
    for event in made[: given.cold]:
        end_daemon(store)
        cold.append(run(hook, event))
    with suppress(NoAnswer):
        GateClient(str(store), warm=60.0, cold=120.0).request("GET", "/healthz")
    warm, nothing = [], []
    for event in made:
        warm.append(run(hook, event))
        nothing.append(run(empty, b""))
    end_daemon(store)
    missed = {name: sum(undecided(run.said) for run in runs) for name, runs in (("warm", warm), ("cold", cold))}
    record = {"warm": figures(warm), "cold": figures(cold), "empty": figures(nothing), "undecided": missed}
    record["load"] = round(os.getloadavg()[0], 1)
    for name in ("warm", "cold", "empty"):
        row = record[name]
        times = f"median {row['median_ms']:.1f} ms, 99th percentile {row['p99_ms']:.1f} ms"
        print(f"{name:5} {row['runs']:4} runs: {times}; processor time {row['cpu_ms']:.1f} ms")
    print(f"without a decision in time: {missed['warm']} warm, {missed['cold']} cold; load {record['load']}")
    good = (
        record["warm"]["median_ms"] < WARM_LIMIT
        and max(run.taken for run in cold) < COLD_LIMIT
        and not any(missed.values())
    )
    print("within" if good else "beyond", f"the limits: {WARM_LIMIT:.0f} ms warm, {COLD_LIMIT:.0f} ms cold")
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
