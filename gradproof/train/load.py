"""A trained model out of its run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
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
    """The model of the run's best checkpoint."""
    run = Run(path)
    found = checkpoint.best(run.checkpoints, say)
    if found is None:
        raise ValueError(f"{path} has no whole checkpoint yet; gradproof train --resume --out {path} makes one")
    schema, _ = read_schema(path)
    model = build_model(run.config, schema, device)
    restore(model, found)
    return Loaded(model, schema, found.step)


def build_model(config: TrainConfig, schema: Schema, device: str) -> Model:
    """The configured model for the width of the data, with its initial values."""
    kind = family(config.model)
    options = {"balance": BALANCE, **config.model_options} if config.model == "moe" else config.model_options
    for each in fields(kind.Config):
        wanted, value = type(each.default), options.get(each.name, each.default)
        if type(value) is not wanted and (wanted, type(value)) != (float, int):
            raise ValueError(f"model_options: {each.name} = {value!r} must be {wanted.__name__}")
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
