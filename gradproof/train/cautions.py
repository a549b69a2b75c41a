"""Warnings about scores that mean less than they seem to, each with what to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FEW = 50  # held-out rows: with so many, an accuracy of 90% is known to 8 points either way


def few_rows(rows: int) -> list[str]:
    """A sentence where so many rows are too few to score on."""
    if rows >= FEW:
        return []
    return [
        f"only {rows} rows were held out, so one row changes the score by {1 / rows:.1%}; use more data, or hold out "
        "more of it with test = 0.3 in a config file"
    ]


def cautions(scores: Sequence[Mapping[str, Any]], rows: int) -> list[str]:
    """Sentences on the first of `scores`, the model's own, which was taken on so many held-out `rows`."""
    own, sentences = scores[0], few_rows(rows)
    majority = next((score for score in scores if score["name"] == "majority class"), None)
    if majority is None:
        return sentences
    if own["accuracy"] <= majority["accuracy"]:
        sentences.append(
            f"the accuracy, {own['accuracy']:.2%}, is no better than that of always choosing the most frequent class, "
            f'{majority["accuracy"]:.2%}; try more --steps, or class_weights = "balanced" in a config file, and check '
            "that the columns contain information about the target"
        )
    if own["log_loss"] > majority["log_loss"]:
        sentences.append(
            f"the log loss, {own['log_loss']:.4f}, is worse than that of predicting the class frequencies, "
            f"{majority['log_loss']:.4f}: the model is overconfident; try fewer --steps, a lower --lr or a smaller "
            "--size"
        )
    return sentences
