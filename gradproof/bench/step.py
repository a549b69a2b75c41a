"""The suite `step`: our whole training step compared with the peers', in one process, in turns.

Ours is built once for each size and number of rows. Each peer is built beside it, its memory is measured, the two take
turns, and it is gone again: large models do not all fit at once, and ratios come from turns taken together. A peer
takes a few turns first; only where it is close to the best of its kind does it take all of them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

from gradproof.bench.case import SIZES, StepBatches, StepCase, useful_flops
from gradproof.bench.memory import allocated, forget_peers, forget_workspaces, free
from gradproof.bench.origin import code, machine, now, origin, under_load
from gradproof.bench.ours import MEASURED, Ours
from gradproof.bench.peers import NAMES, Peer, Way, peers_of
from gradproof.bench.row import OURS, UNFINISHED, Row, StepEntry, close, completed, kept, key, missing, whole
from gradproof.bench.timing import Timing, interleaved, product_peaks, wait
from gradproof.bench.transformer import Eager, Unpadded

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts bytes on a CPU, would announce itself

PRECISIONS = {"cpu": "fp32", "cuda": "bf16"}
ROUNDS, SECONDS = 31, 10.0
QUICK_ROUNDS, QUICK_SECONDS = 5, 1.0
SAME_MACHINE = ("device", "torch", "threads")  # of the environment: figures of another one do not belong beside these

# The rows of the README's table, the ones that matter most first.
DEFAULTS = {
    "cpu": (
        *(StepCase("nano", 32), StepCase("nano", 256), StepCase("nano", 4096), StepCase("tiny", 64)),
        *(StepCase("transformer-causal", 8), StepCase("transformer-seq2seq", 8)),
        *(StepCase("transformer-gate-unpadded", 32), StepCase("transformer-gate", 32)),
    ),
    "cuda": (
        *(StepCase("nano", 256), StepCase("nano", 8192), StepCase("tiny", 8192)),
        *(StepCase("medium", 32768), StepCase("full", 16384), StepCase("dense-0.7b", 8192)),
        *(StepCase("transformer-causal", 64), StepCase("transformer-seq2seq", 64)),
        *(StepCase("transformer-gate-unpadded", 256), StepCase("transformer-gate", 256)),
    ),
}
OTHERWISE_ROWS = {"cpu": 64, "cuda": 8192}


class DeviceLost(RuntimeError):
    """A peer has left the GPU in a state in which nothing runs until the process ends."""


@dataclass(frozen=True)
class Setting:
    """How a run measures: the same for all of its rows."""

    device: str
    precision: str
    quick: bool = False
    retry: bool = False  # what failed before
    deadline: float = math.inf  # of time.monotonic(): after it no further contestant is begun
    say: Callable[[str], object] = lambda what: None

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.deadline


def cases(device: str, size: str | None, rows: int | None) -> list[StepCase]:
    """The defaults of a device, those of one size, or one size at one number of rows."""
    if size is None:
        if rows is not None:
            raise ValueError(f"--rows {rows} needs a --size in the suite step; the sizes are {', '.join(SIZES)}")
        return list(DEFAULTS[device])
    if size not in SIZES:
        raise ValueError(f"there is no size {size!r}; the sizes are {', '.join(SIZES)}")
    if rows is not None:
        return [StepCase(size, rows)]
    usual = [case for case in DEFAULTS[device] if case.size == size]
    return usual or [StepCase(size, OTHERWISE_ROWS[device])]


def chosen_peers(names: Sequence[str] | None, case: StepCase, device: str) -> dict[str, Way]:
    """All peers of a case, or those named. Where nothing is padded they do without a mask."""
    chosen = {name: way for name, way in peers_of(case.family, device).items() if names is None or name in names}
    if case.padded:
        return chosen
    return {name: way._replace(module=Unpadded) if way.module is Eager else way for name, way in chosen.items()}


def check_peers(names: Sequence[str], listed: Sequence[StepCase], device: str) -> None:
    """Refuses a name that no case of this run knows."""
    for name in names:
        if name not in NAMES:
            raise ValueError(f"there is no peer {name!r}; the peers are {', '.join(NAMES)}")
        if not any(name in peers_of(case.family, device) for case in listed):
            on_a_gpu = any(name in peers_of(case.family, "cuda") for case in listed)
            reason = "CUDA graphs need --device cuda" if on_a_gpu else "no size of this run has it"
            raise ValueError(f"peer {name!r} cannot be run here: {reason}")


def check_same_machine(record: Mapping[str, Any], device: str, file: str) -> None:
    """Refuses to go on with a record that was begun elsewhere."""
    from gradproof.proof.verdict import environment

    if record.get("suite") != "step" or "environment" not in record:
        raise ValueError(f"{file} is not a record of the suite step; name another file, or omit --resume")
    here, there = environment(device), record["environment"]
    for name in SAME_MACHINE:
        if here[name] != there.get(name):
            raise ValueError(
                f"{file} was measured with {name} {there.get(name)}, here it is {here[name]}; name another file, or "
                "omit --resume to measure everything again"
            )


def left(
    record: Mapping[str, Any], listed: Sequence[StepCase], setting: Setting, peers: Sequence[str] | None = None
) -> dict[StepCase, list[str]]:
    """The contestants that a record still lacks, by case. A whole case is left out."""
    known = {key(row): row for row in record["rows"]}
    lacking: dict[StepCase, list[str]] = {}
    for case in listed:
        names = chosen_peers(peers, case, setting.device)
        entries = kept(known.get((case.size, case.rows, setting.precision)), code())
        if not whole(entries, names, setting.retry, setting.quick):
            lacking[case] = missing(entries, names, setting.retry, setting.quick) or [OURS]
    return lacking


def suite(
    listed: Sequence[StepCase],
    setting: Setting,
    peers: Sequence[str] | None = None,
    before: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], object] = lambda record: None,
) -> Iterator[Row]:
    """Each row when it is done, or as far as it got. `keep` is given the whole record before and after every
    contestant; what `before`, an earlier record, has by the same code is not measured again."""
    from gradproof.proof.verdict import environment

    device, before = setting.device, {"rows": [], **(before or {})}
    if not left(before, listed, setting, peers):
        return
    setting.say("a large product, the peak")
    cold, hot = product_peaks(device)
    peaks = {"peak_tflops": hot, "peak_tflops_cold": cold, "peak_tflops_hot": hot}
    head = {"suite": "step", "device": device, "environment": environment(device), **origin()}
    record = {**head, "machine": machine(device), **peaks}
    rows = {key(row): row for row in before["rows"]}

    def put(row: Row) -> None:
        rows[key(row)] = row
        keep({**record, "date": row["date"], "rows": in_order(rows.values(), device)})

    for case in left(before, listed, setting, peers):
        if setting.late:
            return
        earlier = rows.get((case.size, case.rows, setting.precision))
        yield measure(case, chosen_peers(peers, case, device), setting, peaks, earlier, put)


def in_order(rows: Any, device: str) -> list[Row]:
    """As in the defaults; other rows follow as they came."""
    usual = {(case.size, case.rows): i for i, case in enumerate(DEFAULTS[device])}
    return sorted(rows, key=lambda row: usual.get((row["size"], row["rows"]), len(usual)))


def measure(
    case: StepCase,
    peers: Mapping[str, Way],
    setting: Setting,
    peaks: Mapping[str, float] | None = None,
    earlier: Row | None = None,
    put: Callable[[Row], object] = lambda row: None,
) -> Row:
    """One case: ours and every peer. Whoever fails is recorded with the reason, and the others go on."""
    device, stamp = setting.device, origin()
    known = kept(earlier, code())
    lacking = missing(known, peers, setting.retry, setting.quick)
    known.pop(OURS, None)  # is made anew
    family = chosen_peers(None, case, device)  # a row that was measured against a few of them says so
    names = list(dict.fromkeys([*family, *peers, *known]))
    row: Row = {"size": case.size, "rows": case.rows, "precision": setting.precision, "padded": case.padded}
    row |= {**stamp, "peers": names}
    free(device)
    forget_workspaces(device)
    setting.say(f"{case}: {OURS}")
    try:
        ours = Ours(case, device, setting.precision)
    except Exception as error:
        row["contestants"] = [{"name": OURS, "error": first_line(error), **stamp}]
        put(row)
        check_alive(device, OURS)
        return row
    row |= {"kernels": ours.kernels} if ours.kernels else {}
    row["useful_flops"] = useful_flops(case)
    own: StepEntry = {"peak_bytes": ours.peak_bytes, **stamp}

    def so_far() -> Row:
        ordered = {name: known[name] for name in names if name in known}
        return completed({**row, "date": now()}, ordered, own, peaks or {})

    for name in lacking:
        if setting.late:
            return so_far()
        setting.say(f"{case}: {name}")
        was = known.get(name, {})
        known[name] = {"name": name, "error": UNFINISHED, "tries": was.get("tries", 0) + 1, **stamp}
        put(so_far())
        try:
            entry = _against(name, peers[name], ours, setting, known)
        except KeyboardInterrupt:  # says nothing about the peer
            known.pop(name)
            known |= {name: was} if was else {}
            put(so_far())
            raise
        except Exception as error:
            entry = {"error": first_line(error)}
        known[name] = {"name": name, **entry, **stamp, "date": now()}
        put(so_far())
        check_alive(device, name)
        free(device)
    if not any("ms" in entry for entry in known.values()):  # no peer, or none that ran
        timing = _turns({OURS: ours.run}, device, setting.quick)[OURS]
        own |= {**_figures(timing), "ratio": 1.0, "rough": setting.quick, **under_load(device, ours.run)}
        put(so_far())
    return so_far()


def _against(name: str, way: Way, ours: Ours, setting: Setting, known: Mapping[str, StepEntry]) -> StepEntry:
    """One peer beside ours, with our own figures from the turns that they took together."""
    device = setting.device
    forget_peers(device, way)
    before = allocated(device)
    peer = Peer(way, ours.model, device, setting.precision)
    most = _peak(peer, ours.batches, before, device)
    turn = cycle(ours.batches)
    contestants = {OURS: ours.run, name: lambda: peer(*next(turn))}
    entry: StepEntry = {"name": name, "graphs": peer.graphs, "peak_bytes": most, "rough": True}
    entry |= _compared(name, _turns(contestants, device, quick=True))
    if not setting.quick and close(entry, known.values()):
        entry |= {**_compared(name, _turns(contestants, device, quick=False)), "rough": False}
        entry |= under_load(device, contestants[name])
    return entry


def _compared(name: str, timings: Mapping[str, Timing]) -> StepEntry:
    theirs, ours = timings[name], timings[OURS]
    beside = {"ours_ms": ours.ms, "ours_quartiles": list(ours.quartiles)}
    return {**_figures(theirs), "ratio": theirs.ms / ours.ms, **beside}


def _peak(peer: Peer, rows: StepBatches, before: int, device: str) -> int:
    """The most that a peer holds in a step, all by itself: parameters, gradients, moments, activations, graphs."""
    from gradproof.train.peak import peak_bytes

    turn = cycle(rows)
    for _ in range(peer.settling):
        peer(*next(turn))
    wait(device)
    held = peer.held_bytes()  # so that no gradient from before is freed in the steps: on a CPU that goes unseen
    if device == "cuda":
        held = allocated(device) - before

    def steps() -> None:
        for _ in range(MEASURED):
            peer(*next(turn))

    return held + peak_bytes(steps, device)


def _turns(contestants: Mapping[str, Callable[[], object]], device: str, quick: bool) -> dict[str, Timing]:
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    return interleaved(contestants, device, rounds, seconds)


def _figures(timing: Timing) -> StepEntry:
    return {"ms": timing.ms, "quartiles": list(timing.quartiles), "rounds": len(timing.blocks)}


def check_alive(device: str, name: str) -> None:
    """Ends the run where a contestant has broken the GPU for all that come after it in this process."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except Exception as error:
            raise DeviceLost(
                f"{name} left the GPU unusable for this process ({first_line(error)}); run again with --resume"
            ) from None


def first_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}"[:300]
