"""Costs of wrong decisions by class, and the decisions with the lowest expected cost.

With probabilities p, the expected cost of decision d is Σ_c p_c·cost_c·[d ≠ c], which is smallest where p_d·cost_d is
largest. Of two classes the first is then decided from the threshold p = cost_2 / (cost_1 + cost_2) on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradproof.data.frame import class_slot
from gradproof.train.predictor import Predictions

RATIOS = (1, 2, 5, 10)  # cost of missing a row of the rarer class to that of a false alarm
SHOWN = 10  # classes that a sentence names
_COST = re.compile(r"(.+?)=([^=,]*)(?:,|\Z)", re.DOTALL)  # a class may be named a,b or a=b


def read_costs(text: str, classes: Sequence[str]) -> np.ndarray:
    """cost_C from NAME=NUMBER,NAME=NUMBER; classes that are not named cost 1."""
    pairs, end = [], 0
    while match := _COST.match(text, end):
        pairs.append((match[1].strip(), _number(match[2])))
        end = match.end()
    if not pairs or end != len(text) or text.endswith(","):
        raise ValueError(f"--costs is written CLASS=NUMBER,CLASS=NUMBER, not {_quoted(text)}")
    return cost_array(pairs, classes)


def cost_array(named: Iterable[tuple[str, Any]], classes: Sequence[str]) -> np.ndarray:
    """cost_C of the costs by class name; classes that are not named cost 1. ValueError says what does not fit."""
    cost_C, slot = np.full(len(classes), np.nan), class_slot(classes)
    for name, cost in named:
        if (c := slot(name)) < 0:
            raise ValueError(f"there is no class {_quoted(name)}; the classes are {_listed(classes)}")
        if not _is_cost(cost):
            raise ValueError(f"the cost of class {_quoted(name)} must be a finite number above 0")
        if not np.isnan(cost_C[c]):
            raise ValueError(f"class {_quoted(classes[c])} has two costs; give it one")
        cost_C[c] = cost
    return np.nan_to_num(cost_C, nan=1.0)


def decide(predicted: Predictions, cost_C: np.ndarray | None) -> Predictions:
    """The same predictions with the decisions of the lowest expected cost; None means equal costs."""
    if cost_C is None:
        return predicted
    # Scaled: costs near the limits of float64 neither overflow nor vanish beside each other.
    cheapest_T = (predicted.probability_TC * (cost_C / cost_C.max())).argmax(1)
    return predicted._replace(decision_T=np.where(predicted.decision_T < 0, -1, cheapest_T))


def total_cost(decision_T: np.ndarray, outcome_T: np.ndarray, cost_C: np.ndarray) -> float:
    """What the wrong decisions cost together."""
    return float(cost_C[outcome_T[decision_T != outcome_T]].sum())


def threshold_table(predicted: Predictions, outcome_T: np.ndarray, classes: Sequence[str]) -> dict[str, Any] | None:
    """For two classes: from which probability on the rarer one is decided at each of RATIOS, and how many of its rows
    are then found (recall) and how many of those decided are rightly so (precision). None for more classes."""
    if len(classes) != 2:
        return None
    rarer = int(np.bincount(outcome_T, minlength=2).argmin())
    own_T = outcome_T == rarer
    rows = []
    for ratio in RATIOS:
        decided_T = decide(predicted, np.where(np.arange(2) == rarer, ratio, 1.0)).decision_T == rarer
        hit, decided, support = (int(n.sum()) for n in (decided_T & own_T, decided_T, own_T))
        rows.append(
            {
                "ratio": ratio,
                "threshold": 1 / (1 + ratio),
                "decided": decided,
                "recall": hit / support if support else None,
                "precision": hit / decided if decided else None,
            }
        )
    return {"class": classes[rarer], "rows": rows}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_cost(cost: Any) -> bool:
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        return False
    try:
        return 0 < float(cost) < math.inf
    except OverflowError:  # an integer beyond the largest float
        return False


def _listed(classes: Sequence[str]) -> str:
    few = ", ".join(_quoted(name) for name in classes[:SHOWN])
    return few + (f" and {len(classes) - SHOWN:,} more" if len(classes) > SHOWN else "")


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 40 else name[:39] + "…")
