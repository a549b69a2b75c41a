"""Finds the fastest admitted kernels on this machine: whole steps, changing one op's kernel at a time, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradproof.bench.case import StepCase, batches
from gradproof.bench.step import QUICK_ROUNDS, QUICK_SECONDS, ROUNDS, SECONDS
from gradproof.bench.timing import interleaved
from gradproof.kernels import admissions
from gradproof.train.adamw import AdamW
from gradproof.train.step import DTYPES, TrainStep


def tune(
    case: StepCase, device: str, precision: str, quick: bool, say: Callable[[str], object] = lambda what: None
) -> list[dict[str, Any]]:
    """Milliseconds a step for each op and kernel, fastest first. That order is kept, and decides from now on."""
    from gradproof.models.families import family

    kind = family(case.family)
    shape = kind(case.config).shape(case.rows, DTYPES[precision])
    shape = replace(shape, device=device)
    x_TI, target = batches(case, device)[0]

    def stepping(kernels: dict[str, str]) -> Callable[[], object]:
        model = kind(case.config, device=device)
        step = TrainStep(model, case.loss, AdamW(), precision, kernels=kernels)  # pyright: ignore[reportArgumentType]
        return lambda: step(x_TI, target)

    usual = dict(admissions.choose(shape, fused=False).chosen)  # a fused op would hide its parts; it comes after them
    orders = []
    for op in (*shape.ops, *shape.fused):
        admissions.tune(op, shape, [])
        admitted = [v.kernel for v in admissions.variants(op, shape) if admissions.admission(v, shape).admitted]
        if not admitted:
            continue
        say(f"{case}: {op}")
        contestants = {kernel: stepping({**usual, op: kernel}) for kernel in [*admitted, "reference"]}
        rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
        times = interleaved(contestants, device, rounds, seconds)
        order = sorted(times, key=lambda kernel: times[kernel].ms)
        admissions.tune(op, shape, order)
        usual[op] = order[0]
        orders.append({"op": op, "order": [{"kernel": kernel, "ms": times[kernel].ms} for kernel in order]})
    return orders
