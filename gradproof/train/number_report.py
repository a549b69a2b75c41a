"""The scores, warnings and summary of a regression run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradproof.data.source import Source
from gradproof.data.split import TRAIN
from gradproof.train import number_baselines
from gradproof.train.cautions import few_rows
from gradproof.train.number_score import true_values

FIGURES = ("rmse", "mae", "r2", "coverage", "width")
TOO_FAR = 0.1  # from the wanted coverage


def number_scores(name: str, test: dict[str, Any], source: Source, index_T: np.ndarray) -> list[dict[str, Any]]:
    """The model's figures, and those of what anyone would compare with."""
    schema, index_R, truth = source.schema, source.index(TRAIN), source.rows.take(index_T)
    value_R = true_values(source.rows.take(index_R), schema)
    return [
        {"name": name, **{figure: test[figure] for figure in FIGURES}, "note": "best checkpoint"},
        number_baselines.boosted_trees(schema, source.rows, index_R, truth),
        number_baselines.ridge(schema, source.rows, index_R, truth),
        number_baselines.mean(value_R, true_values(truth, schema)),
    ]


def number_summary(scores: Sequence[dict[str, Any]], test: dict[str, Any]) -> str:
    others = ", ".join(f"{s['name']} {s['rmse']:.4g}" for s in scores[1:] if s["rmse"] is not None)
    own = scores[0]
    return (
        f"{own['name']} predicts {test['rows']:,} held-out rows with an RMSE of {own['rmse']:.4g} ({others}); its "
        f"{test['covered']:.0%} intervals cover {own['coverage']:.1%}."
    )


def number_cautions(scores: Sequence[dict[str, Any]], test: dict[str, Any]) -> list[str]:
    """What makes the score worth less than it looks, each with what to try."""
    own, mean = scores[0], scores[-1]
    warnings = few_rows(test["rows"])
    if own["rmse"] >= mean["rmse"]:
        warnings.append(
            f"the RMSE, {own['rmse']:.4g}, is no better than always predicting the mean, {mean['rmse']:.4g}; check "
            "that the columns contain information about the target"
        )
    if abs(own["coverage"] - test["covered"]) > TOO_FAR:
        warnings.append(
            f"the intervals cover {own['coverage']:.1%} of the held-out rows, not {test['covered']:.0%}; with few "
            "validation rows their width is uncertain; hold out more with validation = 0.2 in a config file"
        )
    return warnings
