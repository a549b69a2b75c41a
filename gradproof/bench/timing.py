"""Interleaved timing: contestants take turns in one process, so that whatever slows the machine slows all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

BLOCK_MS = 40.0  # long beside the clock and a synchronisation, short beside what drifts
LEAST_STEPS = 4  # in training the launching hides behind the step before; the first after a synchronisation shows it
WARM_CALLS, WARM_SECONDS = 4, 0.15
LEAST_ROUNDS = 3
IDLE_SECONDS, HOT_SECONDS = 1.0, 2.0  # before a product counts as cold, and as hot
PEAK_BLOCKS = 15
PRODUCTS = {"cuda": (8192, torch.bfloat16), "cpu": (2048, torch.float32)}


class Timing(NamedTuple):
    """Milliseconds a step: one figure for each block, the median of these, and their quartiles."""

    ms: float
    quartiles: tuple[float, float]
    blocks: tuple[float, ...]
    steps: int  # in a block


class Peaks(NamedTuple):
    """TFLOP/s of a large product, medians: in a short burst after a pause, and after seconds of nothing else, when a
    GPU has come down to the clock that its power limit allows. Training is hot."""

    cold: float
    hot: float


def interleaved(
    contestants: Mapping[str, Callable[[], object]], device: str, rounds: int, seconds: float
) -> dict[str, Timing]:
    """Each round runs each contestant once, for a block of at least four steps that takes about 40 ms or more. Every
    other round goes backwards: what one contestant leaves, a hot device or a full cache, does not meet the same one.

    After `seconds` no further round is begun, but there are at least three (or `rounds`, if that is less).
    """
    steps = {name: _block_size(run, device) for name, run in contestants.items()}
    blocks: dict[str, list[float]] = {name: [] for name in contestants}
    started = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.perf_counter() - started > seconds:
            break
        for name in list(contestants)[:: -1 if done % 2 else 1]:
            blocks[name].append(_milliseconds(contestants[name], device, steps[name]) / steps[name])
    return {name: summary(blocks[name], steps[name]) for name in contestants}


def summary(blocks: list[float], steps: int = 1) -> Timing:
    """The median and the quartiles of some blocks."""
    low, middle, high = statistics.quantiles(blocks, n=4, method="inclusive") if len(blocks) > 1 else 3 * blocks
    return Timing(middle, (low, high), tuple(blocks), steps)


def product_peaks(device: str) -> Peaks:
    """Of a large square product: 8192³ in bf16 on a GPU, 2048³ in float32 on a CPU."""
    side, dtype = PRODUCTS[device]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def run() -> None:
        torch.mm(a, b, out=out)

    def tflops(ms: float) -> float:
        return 2 * side**3 / (ms * 1e-3) / 1e12

    steps = _block_size(run, device)
    time.sleep(IDLE_SECONDS)
    _milliseconds(run, device, 1)  # wakes the device up
    cold = statistics.median(_milliseconds(run, device, 1) for _ in range(PEAK_BLOCKS))
    started = time.perf_counter()
    while time.perf_counter() - started < HOT_SECONDS:
        _milliseconds(run, device, steps)
    hot = statistics.median(_milliseconds(run, device, steps) / steps for _ in range(PEAK_BLOCKS))
    return Peaks(tflops(cold), tflops(hot))


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def _block_size(run: Callable[[], object], device: str) -> int:
    """Warms up, and says how many steps take about as long as a block should."""
    started, calls = time.perf_counter(), 0
    while calls < WARM_CALLS or time.perf_counter() - started < WARM_SECONDS:
        run()
        wait(device)
        calls += 1
    several = min(_milliseconds(run, device, 2) for _ in range(2)) / 2
    return max(LEAST_STEPS, math.floor(BLOCK_MS / several))


def _milliseconds(run: Callable[[], object], device: str, steps: int) -> float:
    # The wall clock between two synchronisations also sees work on other streams, which events would miss.
    wait(device)
    started = time.perf_counter()
    for _ in range(steps):
        run()
    wait(device)
    return (time.perf_counter() - started) * 1e3
