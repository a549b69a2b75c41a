"""Every option of a training run. Read from TOML or JSON, overridden by flags, written to the run as config.json.

Nothing heavy is imported here: a run's config is on disk before anything slow begins.
"""

from __future__ import annotations

import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gradproof.ranks.mesh_shape import MeshShape

if TYPE_CHECKING:
    from gradproof.data.source import SourceOptions

Config = TypeVar("Config")

# What `gradproof train --model transformer` does without a flag: a row is a whole sequence there.
OF_TEXT = {"batch": 16, "lr": 2e-3}
# What `gradproof train --data FILE --target COL` does: `train/recipe.py` chooses the rest by the size of the table.
# Tuned on inner splits of four public tables, see docs/notes/tables.md.
OF_TABLE = {
    "recipe": "table",
    "members": 8,
    "names": 256,
    "pieces": 48,
    "levels": 256,
    "places": True,
    "average": 0.99,
    "select": "loss",
    "lr": 2e-3,
    "weight_decay": 0.05,
    "minutes": 0.6,
    "model_options": {"experts": 1, "k": 1, "hidden": 128, "depth": 2},
}
VALIDATIONS = 20  # of a run, unless validate_every says otherwise
LAYOUT = {"mesh", "shard_optimizer", "timeout", "compare_every"}  # may change when a run is resumed
EXACTLY_ONE = ("model", "size", "steps", "router", "recipe")  # options that ask for a particular model


@dataclass(frozen=True)
class TrainConfig:
    """The defaults are what `gradproof train` without a flag does; docs/train.md says what each option means."""

    model: Literal["moe", "dense", "transformer"] = "moe"
    size: str = "nano"
    router: Literal["softmax", "sheaf"] = "softmax"
    model_options: dict[str, Any] = field(default_factory=dict)  # experts, k, balance, …: fields of the model's config
    data: str = "synthetic"
    target: str | None = None
    metrics: list[str] = field(default_factory=list)
    task: Literal["classification", "regression"] | None = None  # null: regression for floats of more than 50 values
    categorical: list[str] = field(default_factory=list)
    ignore: list[str] = field(default_factory=list)
    encoding: Literal["onehot", "padic"] = "onehot"
    validation: float = 0.1
    test: float = 0.1
    steps: int = 3000
    batch: int = 256
    micro_rows: int | None = None
    lr: float = 3e-3
    weight_decay: float = 0.01
    decay: Literal["matrices", "all"] = "matrices"
    clip: float | None = 1.0
    schedule: Literal["constant", "warmup-cosine", "warmup-stable-decay"] = "warmup-cosine"
    warmup: float = 0.05
    metrics_weight: float = 1.0
    class_weights: Literal["none", "balanced"] = "none"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int | None = None
    seed: int = 0
    log_every: int = 10
    validate_every: int | None = None  # a twentieth of the steps
    patience: int | None = 6  # validations without a better one; null trains to the end
    # Steps before patience counts: with fewer, a twentieth of them is less than ten, and validations differ by chance.
    patience_after: int = 200
    tensorboard: bool = False
    recipe: Literal["none", "table"] = "none"  # table: what is not given follows from the table's size
    members: int = 1  # models trained at once, whose probabilities are averaged
    dropout: float = 0.0  # share of the inputs that is zero in a step
    average: float = 0.0  # decay of the running average of the weights that is used instead of the last ones
    names: int = 64  # of a column, the most frequent, that are told apart
    pieces: int = 48  # of a number, at most (data/pieces.py)
    levels: int = 0  # values of a number up to which each has an input of its own
    places: bool = False  # a number by its rank among the training rows instead of standardised
    select: Literal["accuracy", "loss"] = (
        "accuracy"  # what the best checkpoint is best in; loss also fits a temperature
    )
    minutes: float | None = None  # of training; becomes `steps` when the run has begun
    mesh: str | None = None  # of the ranks that torchrun started: data=2,experts=2; null: data parallel
    shard_optimizer: bool = False  # AdamW's moments spread along the axis data
    timeout: float = 60.0  # seconds after which a rank that is dead or hung ends the run
    compare_every: int = 100  # steps between two comparisons of the ranks' parameters
    settled: bool = False  # whether recipe and minutes have become other options

    def __post_init__(self):
        at_least = {"steps": 1, "batch": 1, "micro_rows": 1, "threads": 1, "log_every": 1, "validate_every": 1}
        at_least |= {"members": 1, "names": 1, "compare_every": 1, "pieces": 0, "levels": 0}
        for name, least in {**at_least, "patience": 1, "patience_after": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} = {value} must be at least {least}")
        if self.threads is not None and self.threads > 1024:
            raise ValueError(f"threads = {self.threads} must be at most 1024")
        for name in ("lr", "weight_decay", "metrics_weight", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} = {value} must be a finite number, at least 0")
        if self.router != "softmax" and self.model != "moe":
            raise ValueError(f"router = {self.router!r}: a {self.model} model has no router; model = 'moe' has one")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout = {self.dropout} must be a share of the inputs, at least 0 and below 1")
        if not 0 <= self.average < 1:
            raise ValueError(f"average = {self.average} must be the decay of an average, at least 0 and below 1")
        if self.model == "transformer" and self.average:
            raise ValueError("average: not available for a transformer; moe and dense models have it")
        if self.mesh is not None:
            MeshShape.parse(self.mesh)
        if not 5 <= self.timeout < float("inf"):
            raise ValueError(f"timeout = {self.timeout} must be at least 5 seconds")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ValueError(f"minutes = {self.minutes} must be a number above 0")
        if self.model == "transformer" and self.members > 1:
            raise ValueError("members: a transformer cannot be an ensemble; moe and dense models can")
        if self.model == "transformer" and self.minutes is not None:
            raise ValueError("minutes: not available for text; use --steps")
        if self.task == "regression" and (self.model == "transformer" or self.data.partition(":")[0] == "synthetic"):
            what = "a transformer learns text" if self.model == "transformer" else "the synthetic set has classes"
            raise ValueError(f"task = 'regression': {what}; it needs a table with a numeric --target")
        if self.task == "regression" and self.class_weights != "none":
            raise ValueError("class_weights: regression has no classes; omit it with task = 'regression'")
        if self.clip == 0:
            raise ValueError("clip = 0 would stop all learning; use null for no clipping")
        if not (self.validation > 0 and self.test > 0 and self.validation + self.test < 0.9):
            raise ValueError(
                f"validation = {self.validation} and test = {self.test} are shares of the rows above 0, "
                "below 0.9 together"
            )

    def with_layout(self, given: Mapping[str, Any]) -> TrainConfig:
        """With the options of `given` that may change when a run is resumed."""
        return replace(self, **{name: value for name, value in given.items() if name in LAYOUT})

    @property
    def interval(self) -> int:
        """Steps between two validations, each of which is a checkpoint."""
        return self.validate_every or max(1, self.steps // VALIDATIONS)

    @property
    def source(self) -> SourceOptions:
        """What reading the rows depends on."""
        from gradproof.data.source import SourceOptions

        return SourceOptions(**{option.name: getattr(self, option.name) for option in fields(SourceOptions)})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def read_config(file: Path) -> dict[str, Any]:
    """The options in a TOML or JSON file."""
    if not file.is_file():
        raise ValueError(f"there is no config file {file}")
    try:
        text = file.read_text(encoding="utf-8")
        options = json.loads(text) if file.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} is not valid {'JSON' if file.suffix.lower() == '.json' else 'TOML'}: {error}"
        ) from None
    if not isinstance(options, dict):
        raise ValueError(f"{file} must be a table of options, not {type(options).__name__}")
    return options


def resolve(*layers: Mapping[str, Any]) -> TrainConfig:
    """The config of all layers, later ones before earlier ones; a sentence for what does not fit."""
    given = {name: value for layer in layers if isinstance(layer, Mapping) for name, value in layer.items()}
    if given.get("model") == "transformer":
        return fill(TrainConfig, OF_TEXT, *layers)
    own = str(given.get("data", "synthetic")).partition(":")[0] != "synthetic"
    if not own or any(name in given for name in EXACTLY_ONE):
        return fill(TrainConfig, *layers)
    shape = given.get("model_options", {})
    if isinstance(shape, dict):  # what is not given of a member's shape is the recipe's
        layers = (*layers, {"model_options": {**OF_TABLE["model_options"], **shape}})
    return fill(TrainConfig, OF_TABLE, *layers)


def fill(kind: type[Config], *layers: Mapping[str, Any]) -> Config:
    """`resolve` for any dataclass of options."""
    types_of = get_type_hints(kind)
    known = {option.name for option in fields(kind)}  # type: ignore[arg-type]
    merged: dict[str, Any] = {}
    for layer in layers:
        if not isinstance(layer, Mapping):
            raise ValueError(f"a config must be a table of options, not {type(layer).__name__}")
        for name, value in layer.items():
            if name not in known:
                raise ValueError(f"unknown option {name!r}; the options are {', '.join(sorted(known))}")
            merged[name] = _checked(name, value, types_of[name])
    return kind(**merged)


def _checked(name: str, value: Any, wanted: Any) -> Any:
    choices = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType, Literal) else (wanted,)
    if get_origin(wanted) is Literal:
        if value not in choices:
            raise ValueError(f"{name} = {value!r} must be one of {', '.join(map(str, choices))}")
        return value
    for choice in choices:
        plain = get_origin(choice) or choice
        if plain is Literal and value in get_args(choice):
            return value
        if plain is float and type(value) is int:
            return float(value)
        if plain is list and type(value) is list:
            (item,) = get_args(choice)
            return [_checked(f"{name}[{i}]", element, item) for i, element in enumerate(value)]
        if type(value) is plain:
            return value
    names = " or ".join(map(_choice, choices))
    raise ValueError(f"{name} = {value!r} must be {names}")


def _choice(choice: Any) -> str:
    """What a sentence calls a type."""
    if get_origin(choice) is Literal:
        return ", ".join(map(str, get_args(choice)))
    return "null" if choice is types.NoneType else getattr(choice, "__name__", str(choice))
