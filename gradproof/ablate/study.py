"""A study is a directory: study.json, the config, is its first file; the same config resumes it.

study.json  data/<encoding>/seed-N/  runs/<contestant>/seed-N/<setting>/  report.json  report.html

Nothing heavy is imported here: a study's config is on disk before anything slow begins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gradproof.ablate.families import DEFAULT, Family, family
from gradproof.files import claim, take_back, write_atomically
from gradproof.train.config import OF_TABLE, TrainConfig, fill
from gradproof.train.recipe import TableSize, batch_of, most_steps

BASELINES = {
    "hist-gradient-boosting": "HistGradientBoosting",
    "logistic-regression": "logistic regression",
    "mlp": "PyTorch MLP",
}
# Of the recipe that `gradproof train` has for a table; the model's shape, rate and steps are a study's own.
OF_RECIPE = {
    name: value
    for name, value in OF_TABLE.items()
    if name not in ("recipe", "members", "lr", "minutes", "model_options")
}
PLACE = ("jobs",)  # options that change how a study is run, and nothing in its result


@dataclass(frozen=True)
class StudyConfig:
    """The defaults are what `gradproof ablate` without a flag does; docs/ablate.md says what each option means."""

    data: str = "synthetic"
    target: str | None = None
    metrics: list[str] = field(default_factory=list)
    categorical: list[str] = field(default_factory=list)
    ignore: list[str] = field(default_factory=list)
    budget: int = 200_000
    match: Literal["total", "active", "flops"] = "total"
    families: list[str] = field(default_factory=lambda: list(DEFAULT))
    options: dict[str, Any] = field(default_factory=dict)  # of a family by its name: {"moe": {"experts": 8}}
    baselines: list[str] = field(default_factory=lambda: list(BASELINES))
    seeds: int = 5
    seed: int = 0  # the first of them
    tests: bool = True
    members: int | None = None  # of every family; as in train eight for a table, one for the synthetic set
    steps: int | None = None  # with `batch`: by the table's size; 3000 and 256 for the synthetic set
    batch: int | None = None
    learning_rates: list[float] = field(default_factory=lambda: [3e-3, 1e-2, 3e-2])
    validation: float = 0.1
    test: float = 0.2
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    jobs: int | None = None  # runs at a time; as many as there are cores

    def __post_init__(self):
        for name in ("budget", "seeds", "jobs", "members"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        if self.tests and self.seeds < 2:
            raise ValueError(
                f"seeds = {self.seeds}: a test needs at least two seeds; use --seeds 5, or --no-test for scores alone"
            )
        for name in ("families", "learning_rates"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; a study needs at least one")
        if unknown := [name for name in self.baselines if name not in BASELINES]:
            raise ValueError(f"there is no baseline {unknown[0]!r}; the baselines are {', '.join(BASELINES)}")
        for names in (self.families, self.baselines, self.learning_rates):
            if len(set(names)) < len(names):
                raise ValueError(f"{', '.join(map(str, names))}: one of them is given twice")
        if not all(isinstance(table, dict) for table in self.options.values()):
            raise ValueError("options holds a table for each family: options.moe.experts = 8")
        if unknown := [name for name in self.options if name not in self.families]:
            raise ValueError(f"options are given for {unknown[0]!r}, which is not one of {', '.join(self.families)}")
        for contestant in self.contestants():
            for lr in self.learning_rates:
                fill(TrainConfig, self.train_options(contestant, self.seed, lr))

    def contestants(self) -> list[Family]:
        """The families, in the order given."""
        return [family(name, self.options.get(name)) for name in self.families]

    @property
    def own(self) -> bool:
        """Whether the rows are a user's table, which the recipe is for."""
        return self.data.partition(":")[0] != "synthetic"

    @property
    def ensemble(self) -> int:
        """How many members every family has."""
        return self.members or (OF_TABLE["members"] if self.own else 1)

    def settled(self, size: TableSize) -> StudyConfig:
        """With the steps and the batch that follow from the table, where they are not given."""
        batch = self.batch or (batch_of(size) if self.own else TrainConfig.batch)
        steps = self.steps or (most_steps(size, batch) if self.own else TrainConfig.steps)
        return replace(self, steps=steps, batch=batch)

    def seed_list(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))

    def train_options(self, contestant: Family, seed: int, lr: float) -> dict[str, Any]:
        """The options of one run, but for the shape of its model. Every run takes all of its steps: the best
        checkpoint is kept, but nobody is stopped early."""
        shared = ("data", "target", "metrics", "categorical", "ignore", "validation", "test", "steps", "batch")
        given = {name: getattr(self, name) for name in (*shared, "device", "precision")}
        return {
            **(OF_RECIPE if self.own else {}),
            **{name: value for name, value in given.items() if value is not None or name == "target"},
            **({"members": self.ensemble, "threads": 1} if self.ensemble > 1 else {}),  # runs stand side by side
            **contestant.train_options(),
            "size": str(self.budget),
            "seed": seed,
            "lr": lr,
            "patience": None,
            "task": "classification",
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Study:
    """A study in its folder. `made` is the outermost folder that this process had to make for it."""

    path: Path
    config: StudyConfig
    fresh: bool = False
    made: Path | None = None

    def discard(self) -> None:
        """Takes a study back that could not start: nothing is left of it."""
        if self.fresh:
            take_back(self.path, self.made)

    def data(self, encoding: str, seed: int) -> Path:
        """The table as one seed's split reads it."""
        return self.path / "data" / encoding / f"seed-{seed}"

    def run(self, contestant: str, seed: int, setting: str) -> Path:
        """One run, or one setting of a baseline."""
        return self.path / "runs" / contestant / f"seed-{seed}" / setting


def start(out: Path | None, given: Mapping[str, Any]) -> Study:
    """The study of these options: a new one, or the one that is there already and has the same."""
    if out is not None and (out / "study.json").is_file():
        return _again(out, given)
    config = fill(StudyConfig, given)
    path = out or _folder(config)
    if (path / "study.json").is_file():
        return _again(path, given)
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise ValueError(f"--out {path}: {existing} is a file, but a study is a folder")
    if existing == path and any(path.iterdir()):
        raise ValueError(f"{path} is not empty and is not a study; choose another --out")
    made = claim(path)
    try:
        write_atomically(path / "study.json", json.dumps(config.to_dict(), indent=1) + "\n", new=True)
    except FileExistsError:
        raise ValueError(f"another process has just started a study in {path}; choose another --out") from None
    except OSError:
        take_back(path, made)
        raise
    return Study(path, config, True, made)


def _again(path: Path, given: Mapping[str, Any]) -> Study:
    file = path / "study.json"
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        config = fill(StudyConfig, kept)
    except ValueError as error:
        raise ValueError(f"{file} is not the config of a study: {error}") from None
    other = fill(StudyConfig, kept, given)
    for name in given:
        if name not in PLACE and getattr(config, name) != getattr(other, name):
            raise ValueError(
                f"{path} is a different study: {name} is {getattr(config, name)!r} there and "
                f"{getattr(other, name)!r} here; choose another --out"
            )
    return Study(path, other)


def _folder(config: StudyConfig) -> Path:
    """runs/ablate-<data>-<digest of the options>: the same command finds its study again."""
    options = {name: value for name, value in config.to_dict().items() if name not in PLACE}
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"ablate-{Path(config.data.partition(':')[0]).stem}-{digest}"
