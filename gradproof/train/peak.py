"""Measures the peak memory of a piece of work in tensors, which `gradproof sizes` predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradproof.kernels.admissions import choose
from gradproof.models.model import Model
from gradproof.models.transformer import Transformer
from gradproof.streams import seeded
from gradproof.train.adamw import AdamW
from gradproof.train.loss import Target
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


def step_bytes(kind: type[Model], config: Any, rows: int, device: str) -> int:
    """The peak of training steps on random rows; kernels are admitted before, since that is done once for all."""
    x, _, _ = _batch(kind(config, device=device), rows)
    choose(kind(config, device=device).shape(x.shape[0], torch.float32))
    return peak_bytes(lambda: training_step(kind, config, rows, device), device)


def training_step(kind: type[Model], config: Any, rows: int, device: str) -> None:
    """Makes a model and takes two steps on random rows: the second one runs with everything in place."""
    model = kind(config, device=device)
    x, target, loss = _batch(model, rows)
    step = TrainStep(model, loss, AdamW(), clip=1.0)
    for _ in range(2):
        result = step(x, target)
        if not bool(torch.isfinite(result.loss)):
            raise ValueError(f"the step of {config} gave a loss of {float(result.loss)}")


def _batch(model: Model, rows: int) -> tuple[Tensor, Target, str]:
    """x and target at random, and the loss by name. A transformer's rows are tokens, in sequences as long as may be."""
    c, generator, device = model.config, seeded("memory"), model.params.flat_P.device
    if not isinstance(model, Transformer):
        shapes = (rows, c.inputs), (rows, c.outputs)
        x_TI, target_TO = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
        return x_TI, target_TO, "mse"
    sequences = -(-rows // c.context)
    shape = (sequences, *[2] * (c.mode == "seq2seq"), -(-rows // sequences))
    token_BS = torch.randint(c.vocabulary, shape, generator=generator).to(device)
    if c.decodes:
        return token_BS, token_BS if c.mode == "causal" else token_BS[:, 1], "cross_entropy"
    ones_B = torch.ones(sequences, device=device)
    return token_BS, (ones_B, ones_B), "bce"
