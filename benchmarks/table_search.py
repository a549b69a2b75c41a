"""Random search for ours and for trees: options are chosen by log loss on inner validation rows.

The test rows of fold 0 are scored once, with the chosen options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from table_contestants import measure
from table_record import Record
from table_sets import fold, inner

# A list is a choice; ("log", a, b) a number and ("log int", a, b) a whole number, both log-uniform. A dot leads into a
# table of the config file: "model_options.hidden" is [model_options] hidden.
SPACES: dict[str, dict[str, Any]] = {
    "ours": {
        "lr": ("log", 3e-4, 1e-2),
        "weight_decay": ("log", 1e-4, 0.3),
        "dropout": [0.0, 0.05, 0.1, 0.2, 0.3],
        "members": [4, 8, 16],
        "model_options.hidden": [64, 128, 256],
    },
    "hist": {
        "learning_rate": ("log", 0.01, 0.3),
        "max_leaf_nodes": ("log int", 7, 127),
        "min_samples_leaf": ("log int", 3, 100),
        "l2_regularization": ("log", 1e-4, 10.0),
        "max_iter": ("log int", 50, 800),
    },
}
CHOSEN = "chosen"  # in place of a trial's number: the best trial's options, trained on the whole fold


def check_spaces() -> None:
    """SystemExit where the config has no such option, before anything is trained. Those of a model are checked when it
    is made."""
    from gradproof.train.config import TrainConfig

    options = {field.name for field in fields(TrainConfig)}
    unknown = [name for name in SPACES["ours"] if name.split(".")[0] not in options]
    if unknown:
        raise SystemExit(
            f"--search: gradproof train has no option {', '.join(map(repr, unknown))}; correct SPACES in "
            "benchmarks/table_search.py"
        )


def draw(contestant: str, trial: int) -> dict[str, Any]:
    """The options of a trial: the same in every run and on every table."""
    rng = np.random.default_rng([trial, *contestant.encode()])
    options: dict[str, Any] = {}
    for name, space in SPACES[contestant].items():
        *tables, last = name.split(".")
        at = options
        for nested in tables:
            at = at.setdefault(nested, {})
        at[last] = _draw(space, rng)
    return options


def _draw(space: Any, rng: np.random.Generator) -> Any:
    if isinstance(space, list):
        return space[int(rng.integers(len(space)))]
    kind, low, high = space
    value = math.exp(rng.uniform(math.log(low), math.log(high)))
    return round(value) if kind == "log int" else float(f"{value:.4g}")


def search(record: Record, name: str, contestant: str, trials: int, resume: bool) -> dict[str, Any]:
    """The entry of the chosen options; every trial is recorded too."""
    outer = fold(name, 0, 0)
    validation = inner(outer)
    tried = []
    for trial in range(trials):
        tried.append(_measured(record, validation, name, contestant, trial, draw(contestant, trial), resume))
        print(f"{name} {contestant} trial {trial + 1} of {trials}: log loss {tried[-1]['log_loss']:.4f}", flush=True)
    best = min(tried, key=lambda entry: entry["log_loss"])
    print(f"{name} {contestant}: trial {best['trial'] + 1} is chosen", flush=True)
    return _measured(record, outer, name, contestant, CHOSEN, best["options"], resume, trials=trials)


def _measured(
    record: Record,
    on: Any,
    name: str,
    contestant: str,
    trial: int | str,
    options: Mapping[str, Any],
    resume: bool,
    **more: Any,
) -> dict[str, Any]:
    known = record.known("search", table=name, contestant=contestant, trial=trial) if resume else None
    if known is not None and known["options"] == options and all(known.get(key) == more[key] for key in more):
        return known
    minutes = record.setting.get("minutes")
    time = {} if minutes is None or contestant != "ours" else {"minutes": minutes}
    figures = measure(contestant, on, {**options, **time})
    return record.add(
        "search", {"table": name, "contestant": contestant, "trial": trial, "options": options, **more, **figures}
    )
