"""The split: which rows train, which choose the checkpoint, which are only scored at the end."""

from __future__ import annotations

import numpy as np

from gradproof.streams import philox

TRAIN, VALIDATION, TEST = 0, 1, 2


def split(outcome_R: np.ndarray, seed: int, validation: float, test: float) -> np.ndarray:
    """part_R: TRAIN, VALIDATION or TEST for each row, the same for the same outcomes and seed.

    Stratified: every class gives its share to each part, to the nearest row; a class always keeps a row to train on."""
    part_R = np.full(len(outcome_R), TRAIN, np.int8)
    for outcome in np.unique(outcome_R):
        (rows,) = np.nonzero(outcome_R == outcome)
        shuffled = np.random.Generator(philox(seed, "split", outcome)).permutation(rows)
        held = min(round((validation + test) * len(rows)), len(rows) - 1)
        tested = round(held * test / (validation + test)) if held else 0
        part_R[shuffled[:tested]] = TEST
        part_R[shuffled[tested:held]] = VALIDATION
    return part_R
