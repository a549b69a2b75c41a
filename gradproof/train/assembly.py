"""What a run is put together from: its step, its threads, and the environment that its bits depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradproof.data.source import Source
from gradproof.data.split import TRAIN
from gradproof.models.ensemble import Ensemble
from gradproof.models.model import Model
from gradproof.ranks.mesh import Mesh
from gradproof.train.adamw import AdamW
from gradproof.train.config import TrainConfig
from gradproof.train.ensemble_step import EnsembleStep
from gradproof.train.load import model_config
from gradproof.train.loss import Loss
from gradproof.train.schedule import Schedule
from gradproof.train.step import TrainStep

SMALL = 2_000_000  # parameters


def check_options(config: TrainConfig) -> None:
    """Everything that can be refused before the table is read."""
    model_config(config, inputs=96, outputs=20)
    Schedule(config.steps, config.schedule, config.warmup)
    if config.tensorboard:
        summary_writer()


def thread_count(config: TrainConfig, model: Model) -> int:
    """As configured; by default one thread for small models, which gain nothing from more, else torch's own."""
    if config.threads is not None:
        return config.threads
    if isinstance(model, Ensemble):
        return 1  # its members run side by side
    return 1 if model.params.count < SMALL and config.batch <= 1024 else torch.get_num_threads()


def build_step(config: TrainConfig, model: Model, source: Source, mesh: Mesh | None = None) -> TrainStep | EnsembleStep:
    """The loss follows from the schema: outcomes alone, outcomes and metrics, or a number."""
    options: dict[str, Any] = {}
    if config.class_weights == "balanced" and source.schema.quantity:
        raise ValueError("class_weights: the target is numeric and has no classes; omit it")
    if config.class_weights == "balanced":
        outcome_R = source.rows.outcome_R[source.index(TRAIN)]
        count_C = np.maximum(np.bincount(outcome_R, minlength=len(source.schema.classes)), 1)
        weight_C = torch.from_numpy(len(outcome_R) / (len(count_C) * count_C))
        options["class_weight_C"] = weight_C.to(config.device, torch.float32)
    if source.schema.quantity:
        loss = Loss("gaussian")
    elif source.schema.metrics:
        loss = Loss("quality", weight=config.metrics_weight, **options)
    else:
        loss = Loss("cross_entropy", **options)
    if isinstance(model, Ensemble):
        return EnsembleStep(model, lambda member: train_step(config, member, loss, mesh), config.threads)
    return train_step(config, model, loss, mesh)


def train_step(config: TrainConfig, model: Model, loss: Loss | str, mesh: Mesh | None = None) -> TrainStep:
    """The step of a run with this loss."""
    return TrainStep(
        model,
        loss,
        AdamW(config.lr, weight_decay=config.weight_decay, decay=config.decay),
        config.precision,
        clip=config.clip,
        schedule=Schedule(config.steps, config.schedule, config.warmup),
        micro_rows=config.micro_rows,
        mesh=mesh,
        shard_optimizer=config.shard_optimizer,
    )


def environment(config: TrainConfig, kernels: Mapping[str, str]) -> dict[str, Any]:
    """What the bits of a result depend on beside config and data."""
    device = torch.cuda.get_device_name() if config.device == "cuda" else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    cpu = f"{torch.backends.cpu.get_cpu_capability()} {os.environ.get('ONEDNN_MAX_CPU_ISA', '')}".strip()
    return {**versions, "device": device, "cpu": cpu, "threads": torch.get_num_threads(), "kernels": dict(kernels)}


def summary_writer() -> Any:
    """TensorBoard's writer; a sentence where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard = true needs TensorBoard: pip install 'gradproof[tensorboard]'") from None
    return SummaryWriter
