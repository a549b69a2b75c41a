"""AUC: the area under the ROC curve, from ranks."""

from __future__ import annotations

import numpy as np


def auc(score_T: np.ndarray, positive_T: np.ndarray) -> float | None:
    """The probability that a positive row scores above a negative one, ties counted half; None without both."""
    positives = int(positive_T.sum())
    negatives = len(positive_T) - positives
    if not positives or not negatives:
        return None
    # A positive row's rank, the mean over the rows it ties with; of the few positive rows of a rare class alone.
    ascending_T, found_P = np.sort(score_T), score_T[positive_T]
    below_P, upto_P = (np.searchsorted(ascending_T, found_P, side) for side in ("left", "right"))
    rank_sum = ((below_P + upto_P + 1) / 2).sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def mean_auc(probability_TC: np.ndarray, outcome_T: np.ndarray) -> float | None:
    """The AUC of two classes; of several the unweighted mean of each class against the rest.

    A class that none or all of the rows belong to is left out, and None is returned where no class remains. A row
    without probabilities (NaN) ranks on the wrong side of all others."""
    C = probability_TC.shape[1]
    areas = []
    for c in [1] if C == 2 else range(C):
        own_T = outcome_T == c
        score_T = np.where(np.isnan(probability_TC[:, c]), np.where(own_T, -1.0, 2.0), probability_TC[:, c])
        areas.append(auc(score_T, own_T))
    defined = [area for area in areas if area is not None]
    return sum(defined) / len(defined) if defined else None
