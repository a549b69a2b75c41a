"""The suite `gate`: the latency of a decision while the learner trains, and what is lost to kill -9.

latency  calls of all kinds in turn (shell, scripts, edits, SQL, HTTP, clouds, mail, payments), warm, one core: alone,
         and while a learner in another process trains, promotes versions and writes signals without a pause
kills    a process that decides and gives feedback, and a learner, killed with SIGKILL at random moments; after each
         the store is opened, every acknowledged signal looked up, and the serving version loaded and run
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from gradproof.gate.calls import Call, text
from gradproof.gate.database import new_id
from gradproof.gate.decider import Decider
from gradproof.gate.founding import found, split, starter_rows
from gradproof.gate.learner import Learner
from gradproof.gate.made import made
from gradproof.gate.network import GateModel
from gradproof.gate.serving import load_serving
from gradproof.gate.signals import MISTAKES
from gradproof.gate.store import Settings, Store

CALLS = 400  # different ones
DECISIONS, QUICK_DECISIONS = 2000, 300
KILLS, QUICK_KILLS = 50, 5


def suite(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Both parts, on a gate of the usual size with untrained weights: neither time nor loss depends on them."""
    from gradproof.proof.verdict import environment

    record: dict[str, Any] = {"suite": "gate", "environment": environment("cpu"), "calls": CALLS}
    with tempfile.TemporaryDirectory(prefix="gradproof-bench-") as folder:
        make(Path(folder) / "gate", GateModel.fresh())
        decisions = QUICK_DECISIONS if quick else DECISIONS
        say("decisions, alone")
        record["alone"] = latency(Path(folder) / "gate", decisions)
        say("decisions, while the learner trains")
        record["learning"] = latency(Path(folder) / "gate", decisions, learning=True)
        kills = QUICK_KILLS if quick else KILLS
        record["kills"] = killed(Path(folder) / "gate", kills, 3.0, say=say)
    return record


def make(folder: Path, model: GateModel) -> None:
    """A gate that has converged, so that the model decides."""
    store = Store.create(folder, Settings())
    found(store, model, *split(starter_rows()), people=False)
    store.journal.judge_held([(i % 2 == 0, True) for i in range(1200)])
    store.close()


def latency(folder: Path, decisions: int, *, learning: bool = False) -> dict[str, Any]:
    """Milliseconds of `Decider.decide`, from a parsed call to the answer; `cpu` is what the thread itself worked, which
    others on the same core do not lengthen."""
    store = Store(folder)
    decider = Decider(store)
    turn = cycle([one.call for one in made(1, CALLS)])
    with _beside(_learn_without_pause, folder, when=learning), pinned(0):  # what starts pinned would stay on one core
        for _ in range(50):
            decider.decide(next(turn))
        before, times, own = decider.serving.number, [], []
        while len(times) < decisions:
            call = next(turn)
            started, working = time.perf_counter(), time.thread_time()
            decider.decide(call)
            own.append(1e3 * (time.thread_time() - working))
            times.append(1e3 * (time.perf_counter() - started))
            time.sleep(0.001)  # calls come one by one; the recorder's thread has its turn
    swapped = decider.serving.number - before
    decider.close()
    store.close()
    p50, p90, p99 = (float(np.percentile(times, q)) for q in (50, 90, 99))
    wall = {"decisions": len(times), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": max(times)}
    cpu = {"cpu_p50_ms": float(np.percentile(own, 50)), "cpu_p99_ms": float(np.percentile(own, 99))}
    return wall | cpu | {"swaps": swapped}


def killed(
    folder: Path, kills: int, longest: float, *, seed: int = 0, start: str = "spawn", say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Kills a decider, a learner or both at random moments; `longest` seconds after they are at work at the latest."""
    draws, lost, acknowledged, versions = random.Random(seed), 0, 0, set()
    for done in range(kills):
        say(f"kill {done + 1} of {kills}")
        acks = _until_killed(folder, draws, longest, start)
        acknowledged += len(acks)
        store = Store(folder)
        known = {entry["decision"] for entry in store.journal.signals()}
        lost += sum(id not in known for id in acks)
        serving = load_serving(store)
        assert all(0.0 <= p <= 1.0 for p in serving.probabilities(["Bash\ncommand: ls"]))
        versions.add(serving.number)
        store.close()
    return {"kills": kills, "acknowledged": acknowledged, "lost": lost, "versions": len(versions)}


def _until_killed(folder: Path, draws: random.Random, longest: float, start: str) -> list[str]:
    """The ids whose feedback was acknowledged before the processes died."""
    context: Any = get_context(start)
    receiver, sender = context.Pipe(duplex=False)
    workers = [
        context.Process(target=_feed, args=(folder, sender, draws.random()), daemon=True),
        context.Process(target=_learn_without_pause, args=(folder, False), daemon=True),
    ]
    for worker in workers:
        worker.start()
    sender.close()
    acks = [receiver.recv()]  # at work
    deadline = time.monotonic() + draws.uniform(0, longest)
    while (left := deadline - time.monotonic()) > 0:
        if receiver.poll(left):
            acks.append(receiver.recv())
    for worker in draws.sample(workers, 2):
        os.kill(worker.pid or 0, signal.SIGKILL)
        time.sleep(draws.choice((0.0, draws.uniform(0, 0.05))))
    for worker in workers:
        worker.join()
    try:
        while True:
            acks.append(receiver.recv())
    except EOFError:
        return acks


def _feed(folder: Path, acks: Any, seed: float) -> None:
    """Decides and gives feedback without a pause; sends each decision's id when its feedback was acknowledged."""
    store, draws = Store(folder), random.Random(seed)
    decider = Decider(store)
    while True:
        answer = decider.decide(Call("Bash", {"command": f"make target{draws.randrange(10**6)}"}))
        store.journal.remark(answer.id, draws.choice((*MISTAKES, "override_allow", "override_block")))
        acks.send(answer.id)


def _learn_without_pause(folder: Path, feeds: bool = True) -> None:
    """A learner that never rests: each round it finds new signals, its own where `feeds`."""
    if feeds:
        pin(1)
    store = Store(folder)
    learner, round = Learner(store), 0
    while True:
        round += 1
        if feeds:
            _signals(store, round)
        if learner.round() is None:
            time.sleep(0.01)
        if feeds:  # whatever the round came to, a version is written and taken in
            version = store.versions.get(store.versions.serving())
            optimizer = store.versions.optimizer(version.number)
            store.versions.add(store.versions.weights(version.number), version.record, optimizer)


def _signals(store: Store, round: int) -> None:
    """A few answers of people."""
    for i in range(4):
        id = new_id(store.clock())
        own = dict(decision="ask", model=0.5, lean=False, by="policy", version=0, probability=0.5, reason="")
        text = _text(f"make round{round}-{i}")
        act = dict(effect="execute", program="make", scope="outside")
        said = dict(text=text, texts=[text], acts=[act], worst=0, digest=text)
        store.journal.record([{"id": id, **said, **own}])
        store.journal.remark(id, "override_allow")


@contextmanager
def _beside(work: Callable[[Path], None], folder: Path, *, when: bool) -> Iterator[None]:
    """Another process at work, killed at the end."""
    if not when:
        yield
        return
    process = get_context("spawn").Process(target=work, args=(folder,), daemon=True)
    process.start()
    try:
        time.sleep(8)  # it imports, loads, and begins
        yield
    finally:
        process.kill()
        process.join()


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """This process on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    pin(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def _text(command: str) -> str:
    return text(Call("Bash", {"command": command}))
