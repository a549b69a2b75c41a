"""Measures ranks on this machine: bandwidth, and the speed of a step's arithmetic.

Some ranks are started, one thread each over gloo, as many as the mesh has or as the machine has cores. All work at the
same time, as they do in training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from gradproof.models.moe import MoE, MoEConfig
from gradproof.ops import adamw as reference
from gradproof.ranks.mesh import Mesh
from gradproof.ranks.mesh_shape import MeshShape
from gradproof.ranks.pool import Pool
from gradproof.ranks.traffic import KINDS
from gradproof.streams import seeded
from gradproof.train.adamw import AdamW
from gradproof.train.gradient_sum import BUCKET, pieces_of
from gradproof.train.mesh_plan import Rates
from gradproof.train.step import TrainStep

ROWS = 2048  # of nano, whose step is nearly all products then
REPEATS = 7
UPDATED = 1 << 23  # parameters: far more than caches hold
PASSES = 8  # over them, in a norm and an update


def measured_rates(ranks: int) -> Rates:
    """Of a mesh of so many ranks here; of the ranks, the slowest counts."""
    started = max(2, min(ranks, os.cpu_count() or 1))
    with Pool(started) as pool:
        measured = pool.run(_of_this_rank, seconds=300)
    seconds = {name: max(own[name] for own in measured) for name in measured[0]}
    bandwidth = {kind: seconds[f"sent {kind}"] / seconds[kind] for kind in KINDS}
    flops = MoEConfig.sized("nano").flops_per_row() * ROWS / seconds["step"]
    return Rates(bandwidth, seconds["latency"], flops, PASSES * UPDATED * 4 / seconds["optimizer"])


def _of_this_rank() -> dict[str, float]:
    """Seconds of each operation, and the bytes that it sends."""
    mesh = Mesh(MeshShape(data=dist.get_world_size()))
    flat = torch.zeros(BUCKET // 4)
    pieces = pieces_of(slice(0, len(flat)), mesh.size)
    rows, each = flat.view(-1, 64), [len(flat) // 64 // mesh.size] * mesh.size
    little = torch.zeros(8)
    rows = rows[: sum(each)]
    work: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: mesh.sum_(flat),
        "reduce-scatter": lambda: mesh.start_scatter(flat, pieces, "data")[0].wait(),
        "all-gather": lambda: mesh.start_gather(flat, pieces, "data").wait(),
        "all-to-all": lambda: mesh.exchange(rows, each, each, "data"),
    }
    measured = {}
    for kind, operation in work.items():
        operation()
        mesh.traffic.clear()
        measured[kind] = _seconds(mesh, operation)
        measured[f"sent {kind}"] = mesh.traffic.sent[kind] / mesh.traffic.calls[kind]
    measured["latency"] = _seconds(mesh, lambda: [mesh.sum_(little) for _ in range(10)]) / 10
    mesh.close()
    return measured | {"step": _seconds(mesh, _step()), "optimizer": _seconds(mesh, _update())}


def _seconds(mesh: Mesh, work: Callable[[], object]) -> float:
    """The median of some turns, which all ranks begin together."""
    turns = []
    for _ in range(REPEATS):
        dist.barrier()
        begun = time.perf_counter()
        work()
        turns.append(time.perf_counter() - begun)
    return median(turns)


def _step() -> Callable[[], object]:
    """A step of nano, which no mesh is told of."""
    step = TrainStep(MoE.sized("nano"), "cross_entropy", AdamW())
    generator, c = seeded("rates"), step.model.config
    x_TI = torch.randn(ROWS, c.inputs, generator=generator)
    target_T = torch.randint(c.outputs, (ROWS,), generator=generator)
    step(x_TI, target_T)
    return lambda: step(x_TI, target_T)


def _update() -> Callable[[], object]:
    """The norm of a large gradient, and AdamW by it."""
    p_P, g_P, m_P, v_P = (torch.zeros(UPDATED) for _ in range(4))
    count, rate = torch.ones(()), torch.full((), 1e-3)

    def update() -> None:
        reference.norm(g_P)
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            [p_P],
            [g_P],
            [m_P],
            [v_P],
            [],
            [count],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return update
