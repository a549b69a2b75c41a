"""One run of a study: a contestant at one seed and one setting, and its result.json.

A family's run is an ordinary run of `gradproof train`; it resumes as they do. A baseline is fitted again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.ablate.study import BASELINES, Study
from gradproof.files import write_atomically


@dataclass(frozen=True)
class Unit:
    """Plain data, so that it can be sent to another process. `given` are the options of `gradproof train`; the solved
    figures of the model are in `figures`."""

    contestant: str
    seed: int
    setting: str
    value: float
    folder: str
    data: str
    budget: int
    given: dict[str, Any]
    figures: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.contestant} seed {self.seed} {self.setting}"


def finished(unit: Unit) -> dict[str, Any] | None:
    """The result of a unit that needs nothing more."""
    try:
        result = json.loads((Path(unit.folder) / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def work(unit: Unit, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Does what is left of the unit, and returns its result, which is on disk by then."""
    import torch

    done = finished(unit)
    if done is not None:
        return done
    torch.set_num_threads(1)
    folder = Path(unit.folder)
    result = (_fitted if unit.contestant in BASELINES else _trained)(unit, folder, progress)
    about = {"contestant": unit.contestant, "seed": unit.seed, "setting": unit.setting, "value": unit.value}
    write_atomically(folder / "result.json", json.dumps({**about, **result}, indent=1) + "\n")
    return {**about, **result}


class _Watch:
    """Tells how far a run has come, and nothing else."""

    unit = "rows"

    def __init__(self, progress: Callable[[int, int], None]):
        self.progress = progress

    def say(self, sentence: str) -> None:
        pass

    def reading(self, done: int, total: int) -> None:
        pass

    def training(self, record: dict[str, Any], steps: int) -> None:
        self.progress(record["step"], steps)


def _share_table(data: Path, folder: Path) -> None:
    """The table as it was read once for this seed, by links: the schema last, as without it rows are read again."""
    if (folder / "schema.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted((data / "rows").glob("*.npy"))
    if rows:
        (folder / "rows").mkdir(exist_ok=True)
    for file in [*rows, data / "schema.json"]:
        place = folder / file.relative_to(data)
        place.unlink(missing_ok=True)
        os.link(file, place)


def _trained(unit: Unit, folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    from gradproof.ablate.specialisation import specialisation
    from gradproof.data.split import TEST, TRAIN
    from gradproof.train.evidence import prove
    from gradproof.train.loop import Trainer
    from gradproof.train.report import score_best
    from gradproof.train.run import lock, start
    from gradproof.train.stopped import Diverged

    run = start(folder, unit.given, resume=True)
    with lock(run):
        _share_table(Path(unit.data), folder)
        trainer = Trainer(run, _Watch(progress))
        prove(run, trainer.model)
        trainer.settle()
        trainer.resume()
        try:
            trainer.train()
        except Diverged as diverged:
            return {"diverged": str(diverged), "seconds": trainer.at.seconds, "curve": []}
        best, test, index_T = score_best(trainer)
        history = [line for line in trainer.metrics.read() if "validation_accuracy" in line]
        kept = {"accuracy": trainer.at.best_accuracy, "log_loss": trainer.at.best_loss}
        return {
            "validation": kept,
            "test": {name: test[name] for name in ("rows", "accuracy", "log_loss", "ece", "macro_f1")},
            "train_rows": len(trainer.source.index(TRAIN)),
            "test_rows": len(trainer.source.index(TEST)),
            "seconds": trainer.at.seconds,
            "steps": trainer.at.step,
            "best_step": best.step,
            **unit.figures,
            "bayes": _bayes(trainer.source, index_T),
            "majority": _majority(trainer.source),
            "curve": [[line["step"], line["validation_loss"], line["validation_accuracy"]] for line in history],
            "experts": specialisation(trainer, index_T),
        }


def _fitted(unit: Unit, folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    import numpy as np

    from gradproof.ablate.baselines import fit
    from gradproof.data.source import open_source
    from gradproof.data.split import TEST, TRAIN, VALIDATION
    from gradproof.train.config import resolve
    from gradproof.train.score import log_loss

    config = resolve(unit.given)
    _share_table(Path(unit.data), folder)
    source = open_source(config.source, folder)
    fitted = fit(unit.contestant, source, unit.value, config, unit.budget, progress)

    def scored(probability_TC: np.ndarray, part: int) -> dict[str, Any]:
        outcome_T = np.asarray(source.rows.outcome_R[source.index(part)])
        accuracy = float((probability_TC.argmax(1) == outcome_T).mean())
        return {"rows": len(outcome_T), "accuracy": accuracy, "log_loss": log_loss(probability_TC, outcome_T)}

    return {
        "validation": scored(fitted.validation_TC, VALIDATION),
        "test": scored(fitted.test_TC, TEST),
        "train_rows": len(source.index(TRAIN)),
        "test_rows": len(source.index(TEST)),
        "seconds": fitted.seconds,
        "steps": fitted.steps,
        "best_step": fitted.best_step,
        "total": fitted.parameters,
        "active": fitted.parameters,
        "flops": fitted.flops,
        "bayes": _bayes(source, source.index(TEST)),
        "majority": _majority(source),
        "curve": [list(point) for point in fitted.curve],
        "experts": None,
    }


def _bayes(source: Any, index_T: Any) -> float | None:
    """The accuracy that no model can expect to pass on these rows, where it is known."""
    return None if source.best_R is None else float(source.best_R[index_T].mean())


def _majority(source: Any) -> float:
    """The share of the test rows in the largest class of the training rows."""
    import numpy as np

    from gradproof.data.split import TEST, TRAIN

    outcome_R = np.asarray(source.rows.outcome_R)
    largest = np.bincount(outcome_R[source.index(TRAIN)]).argmax()
    return float((outcome_R[source.index(TEST)] == largest).mean())


def units(study: Study, solved: dict[tuple[str, int], Any]) -> list[Unit]:
    """All of them, seed by seed, so that a study that is stopped has whole seeds. `solved` holds the `Solved` of each
    family and seed."""
    from gradproof.ablate.baselines import NAMES, SETTINGS

    config, planned = study.config, []
    for seed in config.seed_list():
        for contestant in config.contestants():
            shape = solved[contestant.name, seed]
            for lr in config.learning_rates:
                given = config.train_options(contestant, seed, lr)
                given["model_options"] = {**contestant.options, **shape.shape}
                figures = {
                    name: value for name, value in shape.to_dict().items() if name in ("total", "active", "flops")
                }
                planned.append(
                    _unit(study, contestant.name, seed, f"lr-{lr:g}", lr, contestant.encoding, given, figures)
                )
        plain = config.contestants()[0]
        for name in config.baselines:
            for value in SETTINGS.get(name, config.learning_rates):
                rate = value if name == "mlp" else config.learning_rates[0]
                given = config.train_options(plain, seed, rate)
                given |= {"model": "moe", "router": "softmax", "encoding": "onehot", "model_options": {}}
                planned.append(_unit(study, name, seed, f"{NAMES[name]}-{value:g}", value, "onehot", given, {}))
    return planned


def _unit(
    study: Study,
    name: str,
    seed: int,
    setting: str,
    value: float,
    encoding: str,
    given: dict[str, Any],
    figures: dict[str, Any],
) -> Unit:
    folder, data = str(study.run(name, seed, setting)), str(study.data(encoding, seed))
    return Unit(name, seed, setting, value, folder, data, study.config.budget, given, figures)
