"""Loads a trained model from its run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.data.schema import Schema
from gradproof.data.source import read_schema
from gradproof.models.ensemble import Ensemble, EnsembleConfig
from gradproof.models.expert_ranks import ExpertRanks
from gradproof.models.families import family
from gradproof.models.model import Model
from gradproof.models.moe import MoE
from gradproof.ranks.mesh import Mesh
from gradproof.train import checkpoint
from gradproof.train.config import TrainConfig
from gradproof.train.interval import read_reach
from gradproof.train.predictor import Predictor
from gradproof.train.run import Run
from gradproof.train.temperature import read_temperature

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
    if run.config.model == "transformer":
        raise ValueError(
            f"{path} is a language model: it continues text, but does not predict rows; its report has samples"
        )
    best = best_checkpoint(run, say)
    schema, _ = read_schema(path)
    model = build_model(run.config, schema, device)
    restore(model, best)
    return Loaded(model, schema, best.step)


def load_predictor(path: Path, device: str = "cpu") -> tuple[Predictor, int]:
    """The run's best checkpoint, ready to decide rows, and its step."""
    model, schema, step = load_model(path, device)
    fitted = dict(temperature=read_temperature(path), reach=read_reach(path))
    return Predictor(model, schema, device=device, fast=True, **fitted), step


def best_checkpoint(run: Run, say: Callable[[str], None] = _say) -> checkpoint.Checkpoint:
    """The run's best one; a sentence where there is none."""
    best = checkpoint.best(run.checkpoints, say)
    if best is None:
        raise ValueError(
            f"{run.path} has no complete checkpoint yet; gradproof train --resume --out {run.path} makes one"
        )
    return best


def build_model(config: TrainConfig, schema: Schema, device: str, mesh: Mesh | None = None) -> Model:
    """The configured model for the width of the data, with its initial values. On a mesh with an axis `experts`, this
    rank's part of it."""
    shape = model_config(config, schema.inputs, schema.outputs, schema.patches)
    if mesh is not None and mesh.shape.experts > 1:
        if config.model != "moe" or config.members > 1:
            what = "an ensemble" if config.members > 1 else f"a {config.model} model"
            raise ValueError(f"mesh {mesh.shape}: {what} has no experts to spread; use --mesh data={mesh.size}")
        return MoE(shape, seed=config.seed, device=device, ranks=ExpertRanks(mesh, shape.experts))
    if config.members == 1:
        return family(config.model)(shape, seed=config.seed, device=device)
    return Ensemble(EnsembleConfig(shape, config.members, len(schema.classes)), seed=config.seed, device=device)


def model_config(config: TrainConfig, inputs: int, outputs: int, patches: tuple[int, ...] = ()) -> Any:
    """The model's own config; a sentence for options that it does not have."""
    kind = family(config.model)
    options = {"balance": BALANCE, **config.model_options} if config.model == "moe" else config.model_options
    given = {"router": "sheaf", "patches": patches} if config.router == "sheaf" else {}
    check_model_options(kind, options, ("inputs", "outputs", "router", "patches"))  # by the data and the run's options
    return replace(kind.Config.sized(config.size, inputs=inputs, outputs=outputs), **options, **given)


def check_model_options(kind: type[Model], options: Mapping[str, Any], given: Sequence[str]) -> None:
    """A sentence for what the model's config does not have, or what is `given` by the data."""
    types = {field.name: type(field.default) for field in fields(kind.Config) if field.name not in given}
    for name, value in options.items():
        if name not in types:
            raise ValueError(f"model_options: there is no option {name!r}; the options are {', '.join(types)}")
        if type(value) is not types[name] and (types[name], type(value)) != (float, int):
            raise ValueError(f"model_options: {name} = {value!r} must be {types[name].__name__}")


def restore(model: Model, saved: checkpoint.Checkpoint) -> None:
    """Parameters and buffers of a checkpoint."""
    tensors = saved.tensors(checkpoint.MODEL)
    for name, view in (*model.params.items(), *model.buffers.items()):
        stored = tensors.get(name)
        if stored is None or stored.shape != view.shape:
            raise ValueError(
                f"{saved.folder} belongs to another model: its {name} does not fit this run's data and config"
            )
        view.copy_(stored)
