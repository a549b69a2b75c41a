"""How good the answers on test rows are. scikit-learn judges wherever it can, so that ours is not its own judge.

Shapes: T test rows, C classes.
"""

from __future__ import annotations

import numpy as np

BINS = 10  # as in gradproof/train/score.py


def scores(truth_T: np.ndarray, decision_T: np.ndarray, probability_TC: np.ndarray) -> dict[str, float]:
    """Accuracy, area under the curve, log loss, Brier score and calibration error. Truth and decisions are numbers of
    classes, the columns of the probabilities."""
    from sklearn.metrics import accuracy_score, log_loss

    # Probabilities that were written in fp32 add up to 1 within 1e-7 only, which scikit-learn would warn of.
    p_TC = np.asarray(probability_TC, np.float64)
    p_TC = p_TC / p_TC.sum(1, keepdims=True)
    return {
        "accuracy": float(accuracy_score(truth_T, decision_T)),
        "auc": area_under_curve(truth_T, p_TC),
        "log_loss": float(log_loss(truth_T, p_TC, labels=range(p_TC.shape[1]))),
        "brier": brier(truth_T, p_TC),
        "ece": calibration_error(p_TC.max(1), decision_T == truth_T),
    }


def area_under_curve(truth_T: np.ndarray, probability_TC: np.ndarray) -> float:
    """Of the second of two classes; of more, the mean of each one against the rest."""
    from sklearn.metrics import roc_auc_score

    C = probability_TC.shape[1]
    if C == 2:
        return float(roc_auc_score(truth_T, probability_TC[:, 1]))
    return float(roc_auc_score(truth_T, probability_TC, multi_class="ovr", average="macro", labels=range(C)))


def brier(truth_T: np.ndarray, probability_TC: np.ndarray) -> float:
    """Squared error of the probabilities, summed over the classes: between 0 and 2, for two classes as for more."""
    return float(((probability_TC - np.eye(probability_TC.shape[1])[truth_T]) ** 2).sum(1).mean())


def calibration_error(confidence_T: np.ndarray, right_T: np.ndarray) -> float:
    """Expected calibration error: |accuracy − confidence| in ten bins of the top class's probability, weighted by their
    rows."""
    bin_T = np.minimum((confidence_T * BINS).astype(np.int64), BINS - 1)
    gap_B = np.bincount(bin_T, weights=right_T.astype(np.float64) - confidence_T, minlength=BINS)
    return float(np.abs(gap_B).sum() / len(bin_T))


def regression_scores(
    truth_T: np.ndarray, mean_T: np.ndarray, low_T: np.ndarray | None = None, high_T: np.ndarray | None = None
) -> dict[str, float]:
    """RMSE; for intervals also the share of rows inside them and their mean width."""
    figures = {"rmse": float(np.sqrt(((mean_T - truth_T) ** 2).mean()))}
    if low_T is not None and high_T is not None:
        inside_T = (low_T <= truth_T) & (truth_T <= high_T)
        figures |= {"coverage": float(inside_T.mean()), "width": float((high_T - low_T).mean())}
    return figures
