"""A trained model out of its run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gradproof.data.schema import Schema
from gradproof.data.source import read_schema
from gradproof.models.model import Model
from gradproof.models.subject import family
from gradproof.train import checkpoint
from gradproof.train.config import TrainConfig
from gradproof.train.run import Run

BALANCE = 0.01  # keeps every expert in use, unless the config says otherwise


class Loaded(NamedTuple):
    model: Model
    schema: Schema
    step: int  # of the checkpoint


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def load_model(path: Path, device: str = "cpu", say: Callable[[str], None] = _say) -> Loaded:
    """The model of the run's best checkpoint, or of its newest where the best is damaged, saying so."""
    run = Run(path)
    found = checkpoint.newest(run.checkpoints, say)
    if found is None:
        raise ValueError(f"{path} has no whole checkpoint yet; gradproof train --resume --out {path} makes one")
    best = found.state["progress"]["best_step"]
    if best is not None and best != found.step:
        try:
            found = checkpoint.load(run.checkpoints / f"step-{best}")
        except ValueError as error:
            say(f"{error}; taking the newest, step {found.step}")
    schema, _ = read_schema(path)
    model = build_model(run.config, schema, device)
    restore(model, found)
    return Loaded(model, schema, found.step)


def build_model(config: TrainConfig, schema: Schema, device: str) -> Model:
    """The configured model for the width of the data, with its initial values."""
    kind = family(config.model)
    options = {"balance": BALANCE, **config.model_options} if config.model == "moe" else config.model_options
    try:
        shape = kind.Config.sized(config.size, inputs=schema.inputs, outputs=schema.outputs, **options)
    except TypeError as error:
        raise ValueError(f"model_options = {config.model_options}: {str(error).partition(') ')[2] or error}") from None
    return kind(shape, seed=config.seed, device=device)


def restore(model: Model, found: checkpoint.Checkpoint) -> None:
    """Parameters and buffers of a checkpoint."""
    tensors = found.tensors(checkpoint.MODEL)
    for name, view in (*model.params.items(), *model.buffers.items()):
        view.copy_(tensors[name])
