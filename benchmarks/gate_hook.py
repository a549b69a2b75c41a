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

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE / "tests" / "gate")]

from hook_events import events, written  # noqa: E402

from gradproof.gate.client import GateClient  # noqa: E402
from gradproof.gate.exchange import NoAnswer  # noqa: E402

# As the console script: isolated, with the package of this checkout.
PROGRAM = f"import sys; sys.path.insert(0, {str(HERE)!r}); from gradproof.gate.hook import main; main()"
WARM_LIMIT, COLD_LIMIT = 80.0, 5000.0  # milliseconds


def run(argv: list[str], event: bytes) -> tuple[float, bytes]:
    """Milliseconds from start to end, and what was said."""
    begun = time.perf_counter()
    done = subprocess.run(argv, input=event, capture_output=True)
    taken = (time.perf_counter() - begun) * 1000
    if done.returncode != 0:
        sys.exit(f"the hook ended with {done.returncode}: {done.stderr.decode()}")
    return taken, done.stdout


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


def figures(taken: list[float]) -> dict[str, float]:
    taken = sorted(taken)
    last = taken[min(len(taken) - 1, int(0.99 * len(taken)))]
    return {"runs": len(taken), "median_ms": round(statistics.median(taken), 1), "p99_ms": round(last, 1)}


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

    cold, missed = [], {"cold": 0, "warm": 0}
    for event in made[: given.cold]:
        end_daemon(store)
        taken, said = run(hook, event)
        cold.append(taken)
        missed["cold"] += undecided(said)
    client = GateClient(str(store), warm=60.0, cold=120.0)
    with suppress(NoAnswer):
        client.request("GET", "/healthz")
    warm, nothing = [], []
    for event in made:
        taken, said = run(hook, event)
        warm.append(taken)
        missed["warm"] += undecided(said)
        nothing.append(run(empty, b"")[0])
    record = {"warm": figures(warm), "cold": figures(cold), "empty": figures(nothing), "undecided": missed}
    record["load"] = round(os.getloadavg()[0], 1)
    for name in ("warm", "cold", "empty"):
        row = record[name]
        print(
            f"{name:6} {row['runs']:4} runs: median {row['median_ms']:7.1f} ms, 99th percentile {row['p99_ms']:7.1f} ms"
        )
    print(f"without a decision in time: {missed['warm']} warm, {missed['cold']} cold; load {record['load']}")
    good = record["warm"]["median_ms"] < WARM_LIMIT and max(cold) < COLD_LIMIT and not any(missed.values())
    print("within" if good else "beyond", f"the limits: {WARM_LIMIT:.0f} ms warm, {COLD_LIMIT:.0f} ms cold")
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
