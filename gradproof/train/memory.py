"""How much memory a piece of work takes at its peak, in tensors: what `gradproof sizes` predicts, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradproof.kernels.registry import choose
from gradproof.models.subject import family
from gradproof.streams import seeded
from gradproof.train.adamw import AdamW
from gradproof.train.step import TrainStep


def peak_bytes(work: Callable[[], Any], device: str) -> int:
    """The most bytes of tensors that `work` holds at once, beyond those that were there before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = work()
        torch.cuda.synchronize()
        del kept
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = work()
    del kept
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    held = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
        most = max(most, held)
    return most


def step_bytes(model: str, size: str, rows: int, device: str) -> int:
    """The peak of training steps on random rows; kernels are admitted before, since that is done once for all."""
    kind = family(model)
    choose(kind(kind.Config.sized(size), device=device).shape(rows, torch.float32))
    return peak_bytes(lambda: training_step(model, size, rows, device), device)


def training_step(model: str, size: str, rows: int, device: str) -> None:
    """Makes a model of this size and takes two steps on random rows: the second one runs with everything in place."""
    kind = family(model)
    made = kind(kind.Config.sized(size), device=device)
    step = TrainStep(made, "mse", AdamW(), clip=1.0)
    generator = seeded("memory", size)
    x_TI = torch.randn(rows, made.config.inputs, generator=generator).to(device)
    target_TO = torch.randn(rows, made.config.outputs, generator=generator).to(device)
    for _ in range(2):
        result = step(x_TI, target_TO)
        if not bool(torch.isfinite(result.loss)):
            raise ValueError(f"the step of {model} {size} gave a loss of {float(result.loss)}")
