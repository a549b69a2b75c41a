"""A trained model out of its run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.data.schema import Schema
from gradproof.data.source import read_schema
from gradproof.models.model import Model
from gradproof.models.subject import family
from gradproof.train import checkpoint
from gradproof.train.config import TrainConfig
from gradproof.train.run import Run

BALANCE = 0.1  # keeps every expert in use, unless the config says otherwise


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
    shape = model_config(config, schema.inputs, schema.outputs, schema.patches)
    return family(config.model)(shape, seed=config.seed, device=device)


def model_config(config: TrainConfig, inputs: int, outputs: int, patches: tuple[int, ...] = ()) -> Any:
    """The model's own config; a sentence for options that it does not have."""
    kind = family(config.model)
    options = {"balance": BALANCE, **config.model_options} if config.model == "moe" else config.model_options
    given = ("inputs", "outputs", "router", "patches")  # by the data and by the run's own options
    types = {each.name: type(each.default) for each in fields(kind.Config) if each.name not in given}
    for name, value in options.items():
        if name not in types:
            raise ValueError(f"model_options: there is no {name!r} to set; there are {', '.join(types)}")
        if type(value) is not types[name] and (types[name], type(value)) != (float, int):
            raise ValueError(f"model_options: {name} = {value!r} must be {types[name].__name__}")
    if config.router == "sheaf":
        options = {**options, "router": "sheaf", "patches": patches}
    return replace(kind.Config.sized(config.size, inputs=inputs, outputs=outputs), **options)


def restore(model: Model, found: checkpoint.Checkpoint) -> None:
    """Parameters and buffers of a checkpoint."""
    tensors = found.tensors(checkpoint.MODEL)
    for name, view in (*model.params.items(), *model.buffers.items()):
        if name not in tensors or tensors[name].shape != view.shape:
            raise ValueError(f"{found.folder} is of another model: its {name} does not fit this run's data and config")
        view.copy_(tensors[name])
