"""Makes the record of a study from the results of its runs: chosen settings, means and intervals, comparisons,
conclusions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradproof.ablate.families import Family
from gradproof.ablate.runs import Failed
from gradproof.ablate.sentence import answer, summary
from gradproof.ablate.statistics import Comparison, compare, estimate, holm
from gradproof.ablate.study import BASELINES, Study, StudyConfig

Result = dict[str, Any]
FEWEST = 3  # seeds for the interval of a contestant's own scores


def record(study: Study, solved: Mapping[tuple[str, int], Any], results: Sequence[Result], notes: list[str]) -> Result:
    """Everything that report.json holds."""
    config, contestants = study.config, study.config.contestants()
    labels = {contestant.name: contestant.label for contestant in contestants} | {
        name: BASELINES[name] for name in config.baselines
    }
    chosen = {name: [_best(results, name, seed) for seed in config.seed_list()] for name in labels}
    share = _test_share(chosen)
    compared = comparisons(config, contestants, chosen, share)
    main, beside = compared[0] if compared else None, [c for c in compared if c.second in BASELINES]
    rows = [_row(name, labels[name], chosen[name], results, share) for name in labels]
    for row in rows:
        if (row["name"], config.seed) in solved:
            row["budget"] = solved[row["name"], config.seed].to_dict()
    return {
        "summary": summary(main, beside, labels) if main else _alone(rows),
        "answers": [answer(comparison, labels) for comparison in compared if comparison.second not in BASELINES],
        "study": {
            "data": config.data,
            "target": config.target,
            "budget": config.budget,
            "match": config.match,
            "members": config.ensemble,
            "seeds": config.seed_list(),
            "steps": config.steps,
            "batch": config.batch,
            "train_rows": chosen[rows[0]["name"]][0]["train_rows"],
            "test_rows": chosen[rows[0]["name"]][0]["test_rows"],
            "test_share": share,
            "runs": len(results),
            "seconds": sum(result["seconds"] for result in results),
            "bayes": _mean([r["bayes"] for r in chosen[rows[0]["name"]]]),
            # Runs of version 0.1.0 have none.
            "majority": _mean([r.get("majority") for r in chosen[rows[0]["name"]]]),
        },
        "rows": rows,
        "comparisons": [comparison.to_dict() for comparison in compared],
        "curves": [_curve(name, labels[name], chosen[name]) for name in labels if chosen[name][0]["curve"]],
        "experts": [
            _experts(contestant, chosen[contestant.name])
            for contestant in contestants
            if chosen[contestant.name][0]["experts"]
        ],
        "notes": notes,
        "config": config.to_dict(),
        "runs": list(results),
    }


def comparisons(
    config: StudyConfig, contestants: Sequence[Family], chosen: Mapping[str, list[Result]], share: float
) -> list[Comparison]:
    """The questions of a study, the main one first: each MoE against each dense model, then the other pairs of
    families, then the first family against each baseline. Holm's correction is over all of them."""
    moe = [contestant.name for contestant in contestants if contestant.model == "moe"]
    dense = [contestant.name for contestant in contestants if contestant.model == "dense"]
    names = [*moe, *dense]
    pairs = [(a, b) for a in moe for b in dense]
    pairs += [(b, a) for i, a in enumerate(names) for b in names[i + 1 :] if (a, b) not in pairs]
    pairs += [(names[0], name) for name in config.baselines]

    def scores(name: str) -> list[float]:
        return [result["test"]["accuracy"] for result in chosen[name]]

    return holm([compare(a, b, scores(a), scores(b), share, config.tests) for a, b in pairs])


def _best(results: Sequence[Result], name: str, seed: int) -> Result:
    """The setting that the validation rows chose: the highest accuracy, then the lowest loss."""
    mine = [
        result
        for result in results
        if (result["contestant"], result["seed"]) == (name, seed) and "diverged" not in result
    ]
    if not mine:
        raise Failed(
            f"{name} diverged at every learning rate of seed {seed}; use lower learning_rates, with another --out"
        )
    return max(mine, key=lambda result: (result["validation"]["accuracy"], -result["validation"]["log_loss"]))


def _test_share(chosen: Mapping[str, list[Result]]) -> float:
    """n_test/n_train, the same for everybody up to a row."""
    return _mean([result["test_rows"] / result["train_rows"] for result in next(iter(chosen.values()))]) or 0.0


def _row(name: str, label: str, mine: list[Result], results: Sequence[Result], share: float) -> Result:
    return {
        "name": name,
        "label": label,
        "kind": "baseline" if name in BASELINES else "family",
        "accuracy": _interval([result["test"]["accuracy"] for result in mine], share, 1.0),
        "log_loss": _interval([result["test"]["log_loss"] for result in mine], share, None),
        "total": mine[0]["total"],
        "active": mine[0]["active"],
        "flops": mine[0]["flops"],
        "seconds": _mean([result["seconds"] for result in mine]),
        "search_seconds": sum(result["seconds"] for result in results if result["contestant"] == name) / len(mine),
        "settings": [result["setting"] for result in mine],
        "scores": [result["test"]["accuracy"] for result in mine],
        "budget": None,
    }


def _interval(scores: Sequence[float], share: float, highest: float | None) -> Result:
    """The mean of a contestant's scores, with `margin`, half of the 95% interval. Two seeds give none:
    with one degree of freedom it would often be wider than the score's whole range, which no limit leaves."""
    mean, low, high, deviation = estimate(scores, share)
    if low is None or high is None or len(scores) < FEWEST:
        return {"mean": mean, "low": None, "high": None, "deviation": deviation, "margin": None}
    limits = {"low": max(0.0, low), "high": high if highest is None else min(highest, high)}
    return {"mean": mean, **limits, "deviation": deviation, "margin": high - mean}


def _curve(name: str, label: str, mine: list[Result]) -> Result:
    """The validation accuracy over the steps: mean, lowest and highest of the seeds."""
    steps = [point[0] for point in mine[0]["curve"]]
    accuracy_SP = np.array([[point[2] for point in result["curve"]] for result in mine])
    spread = {"mean": accuracy_SP.mean(0), "low": accuracy_SP.min(0), "high": accuracy_SP.max(0)}
    return {"name": name, "label": label, "steps": steps, **{key: value.tolist() for key, value in spread.items()}}


def _experts(contestant: Family, mine: list[Result]) -> Result:
    """The first seed's experts as they are, as numbers of experts mean something else at every seed; and over the
    seeds what can be averaged."""
    experts = [result["experts"] for result in mine]
    regimes = [next((g["information"] for g in e["groupings"] if g["name"] == "hidden regime"), None) for e in experts]
    energies = [e["energy"] for e in experts if e["energy"]]
    return {
        "name": contestant.name,
        "label": contestant.label,
        "seed": mine[0]["seed"],
        **experts[0],
        "router_entropies": [e["router_entropy"] for e in experts],
        "regime_informations": None if None in regimes else regimes,
        "energy_aucs": [e["auc"] for e in energies] if energies else None,
    }


def _alone(rows: Sequence[Result]) -> str:
    best = max(rows, key=lambda row: row["accuracy"]["mean"])
    share = f"{best['accuracy']['mean']:.1%}"
    return f"{best['label']} decides {share} of the test rows correctly; there is nothing to compare it with."


def _mean(values: Sequence[float | None]) -> float | None:
    return None if any(value is None for value in values) else float(np.mean([v for v in values if v is not None]))


def write(study: Study, report: Result) -> None:
    """report.json first, then the page."""
    from gradproof.files import write_atomically
    from gradproof.report.page import render

    write_atomically(study.path / "report.json", json.dumps(report, indent=1) + "\n")
    write_atomically(study.path / "report.html", render("ablate.html", report))
