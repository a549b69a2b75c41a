"""What a mesh of ranks gains, and what it sends and holds beside what `gradproof sizes --mesh` says.

    python benchmarks/ranks.py [--cases nano:4096,tiny:1024] [--mesh data=2] [--shard-optimizer] [--json FILE]
    python -m torch.distributed.run --nproc-per-node 1 benchmarks/ranks.py --device cuda [--json FILE]

On a CPU each rank is a process with one thread, over gloo. Rows are those of each rank: a mesh of two takes twice as
many in a step as one process does. The two take turns, `--pairs` times, while the other ranks sleep; `gain` is the
median over the pairs of rows a second by all ranks over those by one. `cpu_gain` is the same by processor time, of all
threads of the busiest rank: what two cores give that nobody else uses. `sent` is what a rank sends in a step, as the
mesh counts it and as the kernel counts it on the connections; `peak` is the most bytes of tensors a rank holds.

On a GPU, a mesh of one rank against no mesh: the same bits after some steps, and the cost. `mesh` is what `gradproof
train` does on one rank, `sending` goes through NCCL all the same. Each takes turns with `no mesh` alone: after one that
leaves the GPU idle, it is cooler and faster. `no mesh again` is a second step like the first: what its cost differs
from 1 by is what these figures are worth.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts bytes on a CPU, would announce itself
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

import torch
import torch.distributed as dist

from gradproof.bench.case import StepCase, batches
from gradproof.heap import give_back
from gradproof.models.expert_ranks import ExpertRanks
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ranks.mesh import Mesh, join, leave
from gradproof.ranks.mesh_shape import MeshShape
from gradproof.ranks.pool import Pool
from gradproof.ranks.traffic import wire_bytes
from gradproof.train.adamw import AdamW
from gradproof.train.load import BALANCE
from gradproof.train.mesh_plan import plan_of
from gradproof.train.mesh_rates import measured_rates
from gradproof.train.peak import peak_bytes
from gradproof.train.step import TrainStep

CASES = {"cpu": "nano:4096,tiny:1024", "cuda": "nano:8192,tiny:8192"}
CLIP = 1.0  # as `gradproof train` clips
BLOCK = 1.0  # seconds of a turn, or one step
SETTLING, COUNTED = 3, 4  # steps before anything is measured, and those whose bytes are counted
SAME_BITS = 20  # steps
ALONE, AGAIN = "no mesh", "no mesh again"


def build(size: str, device: str, mesh: Mesh | None, shard: bool = False, dtype: str = "fp32") -> TrainStep:
    """A step as `gradproof train` makes it."""
    config = MoEConfig.sized(size, balance=BALANCE)
    ranks = ExpertRanks(mesh, config.experts) if mesh is not None and mesh.shape.experts > 1 else None
    model = MoE(config, seed=0, device=device, ranks=ranks)
    how: Any = dict(clip=CLIP, mesh=mesh, shard_optimizer=shard)
    return TrainStep(model, "cross_entropy", AdamW(1e-4), dtype, **how)  # type: ignore[arg-type]


def on_cpu(size: str, rows: int, text: str, shard: bool, pairs: int) -> dict[str, Any]:
    """On each rank: what it sent, what it held, and the seconds of its turns."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    mesh = Mesh(MeshShape.parse(text))
    given = batches(StepCase(size, rows), "cpu")

    def steps() -> TrainStep:
        step = build(size, "cpu", mesh, shard)
        for batch in given[:2]:
            step(*batch)
        return step

    steps()  # proves the kernels, which is done once for all
    mesh.meet()
    peak = peak_bytes(steps, "cpu")
    give_back()
    together, alone = build(size, "cpu", mesh, shard), build(size, "cpu", None) if mesh.first else None
    turn = cycle(given)
    count = [_timed(lambda: together(*next(turn)), SETTLING, mesh)[0] / SETTLING for _ in range(2)][-1]
    sent = _sent(mesh, lambda: together(*next(turn)))
    if alone is not None:
        for _ in range(SETTLING):
            alone(*next(turn))
    block = max(1, round(BLOCK / mesh.largest(count)))
    turns = []
    for _ in range(pairs):
        own = (0.0, 0.0) if alone is None else _timed(lambda: alone(*next(turn)), block, None)  # type: ignore[misc]
        turns.append([n / block for n in (*own, *_timed(lambda: together(*next(turn)), block, mesh))])
    mesh.close()
    return {"peak": peak, **sent, "turns": turns, "steps": block}


def _timed(take: Any, steps: int, mesh: Mesh | None) -> tuple[float, float]:
    """Seconds on the clock and of this process's threads."""
    if mesh is not None:
        dist.barrier()
    clock, own = time.perf_counter(), time.process_time()
    for _ in range(steps):
        take()
    return time.perf_counter() - clock, time.process_time() - own


def _sent(mesh: Mesh, take: Any) -> dict[str, Any]:
    """Bytes that this rank sent in a step."""
    dist.barrier()
    mesh.traffic.clear()
    before = wire_bytes()
    for _ in range(COUNTED):
        take()
    counted = {kind: sent / COUNTED for kind, sent in mesh.traffic.sent.items()}
    dist.barrier()
    wire = None if before is None else (wire_bytes() or 0) - before
    return {"counted": counted, "wire": None if wire is None else wire / COUNTED}


def cpu(cases: list[tuple[str, int]], text: str, shard: bool, pairs: int) -> list[dict[str, Any]]:
    shape, records = MeshShape.parse(text), []
    rates = measured_rates(shape.ranks)
    for size, rows in cases:
        plan = plan_of(MoEConfig.sized(size, balance=BALANCE), rows * shape.ranks, shape, shard)
        seconds = plan.seconds(rates)
        with Pool(shape.ranks, timeout=600) as pool:
            answers = pool.run(on_cpu, size, rows, text, shard, pairs)
        turns = list(zip(*(answer["turns"] for answer in answers), strict=True))
        gains = [shape.ranks * own[0][0] / max(turn[2] for turn in own) for own in turns]
        cpu_gains = [shape.ranks * own[0][1] / max(turn[3] for turn in own) for own in turns]
        record = {
            "size": size,
            "rows": rows,
            "mesh": text,
            "shard_optimizer": shard,
            "one_ms": 1e3 * median(own[0][0] for own in turns),
            "mesh_ms": 1e3 * median(max(turn[2] for turn in own) for own in turns),
            "gain": median(gains),
            "gains": gains,
            "cpu_gain": median(cpu_gains),
            "planned_gain": [shape.ranks * seconds.alone / taken for taken in (seconds.open, seconds.hidden)],
            "ranks": [
                {
                    "sent": answer["counted"],
                    "wire": answer["wire"],
                    "planned_sent": own.sent,
                    "peak": answer["peak"],
                    "planned_peak": own.total,
                }
                for answer, own in zip(answers, plan.ranks, strict=True)
            ],
        }
        records.append(record)
        _show_cpu(record)
    return records


def _show_cpu(record: dict[str, Any]) -> None:
    print(
        f"{record['size']}, {record['rows']:,} rows a rank, {record['mesh']}: one process {record['one_ms']:.1f} ms, "
        f"mesh {record['mesh_ms']:.1f} ms a step: gain {record['gain']:.2f} "
        f"({min(record['gains']):.2f} to {max(record['gains']):.2f}), by processor time {record['cpu_gain']:.2f}, "
        f"planned {record['planned_gain'][0]:.2f} to {record['planned_gain'][1]:.2f}"
    )
    for rank, own in enumerate(record["ranks"]):
        sent, planned = sum(own["sent"].values()), sum(own["planned_sent"].values())
        wire = "" if own["wire"] is None else f", {own['wire'] / planned:.4f} on the wire"
        print(
            f"  rank {rank}: sends {sent / 2**20:.3f} MiB a step, {sent / planned:.4f} of the plan{wire}; "
            f"holds {own['peak'] / 2**20:.1f} MiB, {own['peak'] / own['planned_peak']:.3f} of the plan",
            flush=True,
        )


def _turning(step: TrainStep, given: Any) -> Callable[[], object]:
    """A step on one batch after the other."""
    turn = cycle(given)
    return lambda: step(*next(turn))


def cuda(cases: list[tuple[str, int]], pairs: int) -> list[dict[str, Any]]:
    """Under torchrun with one rank."""
    from gradproof.bench.timing import interleaved

    join("cuda")
    meshes = {"mesh": Mesh(MeshShape(), "cuda"), "sending": Mesh(MeshShape(), "cuda", always=True)}
    records = []
    for size, rows in cases:
        given, steps, ended = batches(StepCase(size, rows), "cuda"), {}, {}
        for name in (ALONE, AGAIN, *meshes):
            steps[name] = build(size, "cuda", meshes.get(name), dtype="bf16")
            losses = [steps[name](*given[s % len(given)]).loss for s in range(SAME_BITS)]
            flat_P = steps[name].model.params.flat_P
            ended[name] = torch.cat([flat_P, torch.stack(losses)]).view(torch.int32).cpu()
        record: dict[str, Any] = {"size": size, "rows": rows, "precision": "bf16", "gpu": torch.cuda.get_device_name()}
        record["contestants"] = {}
        turns = {name: _turning(step, given) for name, step in steps.items()}
        for name in (AGAIN, *meshes):
            timings = interleaved({ALONE: turns[ALONE], name: turns[name]}, "cuda", pairs, 60.0)
            record["contestants"][name] = {
                "ms": timings[name].ms,
                "no_mesh_ms": timings[ALONE].ms,
                "cost": median(a / b for a, b in zip(timings[name].blocks, timings[ALONE].blocks, strict=True)),
                "same_bits": bool(torch.equal(ended[name], ended[ALONE])),
                "plan": type(steps[name].plan([given[0]])).__name__,
            }
        records.append(record)
        for name, own in record["contestants"].items():
            bits = "the same bits" if own["same_bits"] else "OTHER BITS"
            print(
                f"{size}, {rows:,} rows, {name}: {own['ms']:.3f} ms, {own['cost']:.4f} of {own['no_mesh_ms']:.3f}, "
                f"{bits} after {SAME_BITS} steps (taken by {own['plan']})",
                flush=True,
            )
    for mesh in meshes.values():
        mesh.close()
    leave()
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", help="SIZE:ROWS,…")
    parser.add_argument("--mesh", default="data=2")
    parser.add_argument("--shard-optimizer", action="store_true")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    listed = (given.cases or CASES[given.device]).split(",")
    cases = [(size, int(rows)) for size, _, rows in (case.partition(":") for case in listed)]
    if given.device == "cuda":
        records = cuda(cases, given.pairs)
    else:
        records = cpu(cases, given.mesh, given.shard_optimizer, given.pairs)
    if given.json:
        given.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
