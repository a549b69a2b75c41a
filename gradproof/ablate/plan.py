"""The plan of a study: the table read for every seed, the matched configurations, the units. All that can be refused is
refused here, before the first run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from gradproof.ablate.budget import Solved, solve
from gradproof.ablate.families import Family
from gradproof.ablate.study import Study, StudyConfig
from gradproof.ablate.unit import Unit, units
from gradproof.data.source import Source, SourceOptions, open_source
from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.models.sizes import cost
from gradproof.train.assembly import check_options
from gradproof.train.config import TrainConfig, fill
from gradproof.train.recipe import TableSize

FEWEST = 5  # rows of each class: some to train on, to choose by and to test with


class StudyPlan:
    """The units of a study, and what they were solved from."""

    def __init__(self, study: Study, progress: Callable[[int, int], None]):
        config, contestants = study.config, study.config.contestants()
        check_extras()
        check_contestants(config)
        self.notes: list[str] = []
        self.solved: dict[tuple[str, int], Solved] = {}
        encodings = dict.fromkeys(
            [*(contestant.encoding for contestant in contestants), *["onehot"] * bool(config.baselines)]
        )
        seeds = config.seed_list()
        for done, seed in enumerate(seeds):
            for encoding in encodings:
                source = self._read(study, encoding, seed)
                if config.steps is None or config.batch is None:
                    config = config.settled(size_of(source))
                for contestant in contestants:
                    if contestant.encoding == encoding:
                        self.solved[contestant.name, seed] = solve_for(contestant, config, source)
            self.jobs = jobs(config, [self.solved[contestant.name, seed] for contestant in contestants])
            progress(done + 1, len(seeds))
        first = [self.solved[contestant.name, seeds[0]] for contestant in contestants]
        self.notes += [note for solved in first if (note := solved.note())]
        self.study = replace(study, config=config)
        self.units: list[Unit] = units(self.study, self.solved)

    def _read(self, study: Study, encoding: str, seed: int) -> Source:
        config = study.config
        folder = study.data(encoding, seed)
        folder.mkdir(parents=True, exist_ok=True)
        source = open_source(_source_options(config, encoding, seed), folder)
        check_rows(source, config.data)
        self.notes += [note for note in source.notes if note not in self.notes]
        return source


def preview(config: StudyConfig, folder: Path) -> list[Solved]:
    """The first seed's configurations, without a run; the table is read into `folder`."""
    check_contestants(config)
    solved = []
    for contestant in config.contestants():
        there = folder / contestant.encoding
        there.mkdir(exist_ok=True)
        solved.append(
            solve_for(contestant, config, open_source(_source_options(config, contestant.encoding, config.seed), there))
        )
    return solved


def solve_for(family: Family, config: StudyConfig, source: Source) -> Solved:
    """The family's configuration for the width of the table."""
    schema = source.schema
    widths = (schema.inputs, schema.outputs, schema.patches)
    together = {"members": config.ensemble, "classes": len(schema.classes)}
    return solve(family, config.budget, config.match, *widths, **together)


def size_of(source: Source) -> TableSize:
    """What steps and batch follow from."""
    return TableSize(len(source.index(TRAIN)), source.schema.inputs, len(source.schema.classes))


def check_extras() -> None:
    """One sentence where the extra is missing."""
    try:
        import scipy.stats
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        raise ValueError("gradproof ablate needs scikit-learn and scipy: pip install 'gradproof[ablate]'") from None
    _ = scipy.stats


def check_contestants(config: StudyConfig) -> None:
    """Options that no model has, and budgets that none can have, whatever the table."""
    for contestant in config.contestants():
        check_options(fill(TrainConfig, config.train_options(contestant, config.seed, config.learning_rates[0])))


def check_rows(source: Source, data: str) -> None:
    """Enough rows of every class, and some in each part."""
    count_C = np.bincount(np.asarray(source.rows.outcome_R), minlength=len(source.schema.classes))
    rarest = int(count_C.argmin())
    if count_C[rarest] < FEWEST:
        raise ValueError(
            f"class {source.schema.classes[rarest]!r} has {count_C[rarest]} of the {source.rows.count:,} rows of "
            f"{data}; a study needs {FEWEST} of each class: remove such rows or merge classes"
        )
    if min(len(source.index(part)) for part in (TRAIN, VALIDATION, TEST)) < 1:
        raise ValueError(f"{data} has too few rows for training, validation and test; it needs a few dozen")


def jobs(config: StudyConfig, solved: list[Solved]) -> int:
    """Runs at a time: as many as there are cores, as fit into memory, and on a GPU one."""
    largest = max(
        cost(model.family, model.config, config.batch or TrainConfig.batch, config.device).total for model in solved
    )
    memory = _memory(config.device)
    if largest > memory:
        raise ValueError(
            f"budget = {config.budget:,}: a training step takes about {largest / 2**30:,.1f} GiB, and this machine has "
            f"{memory / 2**30:,.1f} GiB; give a smaller --budget"
        )
    if config.device == "cuda":
        return config.jobs or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(config.jobs or cores, memory // max(1, largest)))


def _memory(device: str) -> int:
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _source_options(config: StudyConfig, encoding: str, seed: int) -> SourceOptions:
    """The options that reading a table depends on."""
    plain = config.train_options(replace(config.contestants()[0], encoding=encoding), seed, config.learning_rates[0])
    return fill(TrainConfig, plain).source
