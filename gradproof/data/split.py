"""The split into training, validation and test rows."""

from __future__ import annotations

import numpy as np

from gradproof.streams import philox

TRAIN, VALIDATION, TEST = 0, 1, 2


def split(outcome_R: np.ndarray, seed: int, validation: float, test: float) -> np.ndarray:
    """part_R: TRAIN, VALIDATION or TEST for each row, the same for the same outcomes (classes or strata) and seed.

    Stratified: every class gives its share to each part, to the nearest row; a class always keeps a row to train on."""
    part_R = np.full(len(outcome_R), TRAIN, np.int8)
    order_R = np.argsort(outcome_R, kind="stable")
    classes, starts = np.unique(outcome_R[order_R], return_index=True)
    share = test / (validation + test) if validation + test else 0.0
    held, tested, seen = 0, 0, 0  # rows so far: what rounding takes from one class it gives to the next
    for outcome, rows in zip(classes.tolist(), np.split(order_R, starts[1:]), strict=True):
        shuffled = np.random.Generator(philox(seed, "split", outcome)).permutation(rows)
        seen += len(rows)
        hold = min(max(round((validation + test) * seen) - held, 0), len(rows) - 1)
        held += hold
        score = min(max(round(held * share) - tested, 0), hold)
        tested += score
        part_R[shuffled[:score]] = TEST
        part_R[shuffled[score:hold]] = VALIDATION
    return part_R
