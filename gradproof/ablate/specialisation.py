"""What the experts of a trained MoE specialise in, on the test rows.

A row's share in an expert is its gate over the sum of its gates. For each grouping of the rows (the hidden regimes
where they are known, the outcomes, the columns of names) the record holds the mean share of each expert in each group,
and how much the groups tell about the experts: the mutual information of group and first expert, over the entropy of
the expert. Of an ensemble these are the experts of its first member; who is right is the whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gradproof.models.ensemble import Ensemble
from gradproof.models.model import Model
from gradproof.train.loop import Trainer

SHOWN = 3  # columns of names: those that tell most about the expert
MOST_GROUPS = 40  # of a grouping, the largest
CHUNK = 4096
BINS = 10


def specialisation(trainer: Trainer, index_T: np.ndarray) -> dict[str, Any] | None:
    """The record for the trainer's model; None for one without experts."""
    if router_of(trainer).experts < 2:
        return None
    gates_TE, entropy_T, energy_T, right_T = _routed(trainer, index_T)
    share_TE = gates_TE / np.maximum(gates_TE.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    first_T = gates_TE.argmax(1)
    schema, rows = trainer.source.schema, trainer.source.rows.take(index_T)
    groupings = [grouping(schema.target, list(schema.classes), rows.outcome_R, share_TE, first_T)]
    if trainer.source.regime_R is not None:
        regime_T = trainer.source.regime_R[index_T]
        names = [f"regime {g}" for g in range(int(trainer.source.regime_R.max()) + 1)]
        groupings.insert(0, grouping("hidden regime", names, regime_T, share_TE, first_T))
    columns = []
    for c, category in enumerate(schema.categories):
        slots = [*category.values, *["other"] * category.other, *["missing"] * category.missing, "none"]
        code_T = np.where(rows.codes_RC[:, c] < 0, len(slots) - 1, rows.codes_RC[:, c])
        columns.append(grouping(category.name, slots, code_T, share_TE, first_T))
    columns.sort(key=lambda column: -column["information"])
    return {
        "experts": gates_TE.shape[1],
        "load": share_TE.mean(0).tolist(),
        "router_entropy": float(entropy_T.mean()),
        "groupings": [*groupings, *columns[:SHOWN]],
        "energy": None if energy_T is None else energy_and_error(energy_T, ~right_T),
    }


def grouping(name: str, groups: list[str], group_T: np.ndarray, share_TE: np.ndarray, first_T: np.ndarray) -> dict:
    """The mean shares of the experts in each group that has rows, the largest groups first to be kept."""
    count_G = np.bincount(group_T, minlength=len(groups))
    kept = sorted(np.argsort(-count_G, kind="stable")[:MOST_GROUPS].tolist())
    kept = [g for g in kept if count_G[g]]
    return {
        "name": name,
        "groups": [groups[g] for g in kept],
        "rows": [int(count_G[g]) for g in kept],
        "share": [share_TE[group_T == g].mean(0).tolist() for g in kept],
        "information": information(group_T, first_T),
    }


def information(group_T: np.ndarray, expert_T: np.ndarray) -> float:
    """I(group; expert)/H(expert): 0 where the groups say nothing about the expert, 1 where they say all."""
    joint_GE = np.zeros((int(group_T.max()) + 1, int(expert_T.max()) + 1))
    np.add.at(joint_GE, (group_T, expert_T), 1 / len(group_T))
    p_E, p_G = joint_GE.sum(0), joint_GE.sum(1)
    entropy = -float((p_E[p_E > 0] * np.log(p_E[p_E > 0])).sum())
    there = joint_GE > 0
    mutual = float((joint_GE[there] * np.log(joint_GE[there] / np.outer(p_G, p_E)[there])).sum())
    return max(0.0, mutual / entropy) if entropy > 0 else 0.0


def energy_and_error(energy_T: np.ndarray, wrong_T: np.ndarray) -> dict[str, Any]:
    """Does a router that disagrees with itself announce an error? The error rate in tenths of the rows by energy, and
    the chance that a wrong row has more of it than a right one (ties count half)."""
    from scipy.stats import rankdata

    order_T = np.argsort(energy_T, kind="stable")
    tenths = [part for part in np.array_split(order_T, BINS) if len(part)]
    wrong, right = int(wrong_T.sum()), int((~wrong_T).sum())
    rank_T = rankdata(energy_T)
    auc = (rank_T[wrong_T].sum() - wrong * (wrong + 1) / 2) / (wrong * right) if wrong and right else None
    return {
        "mean": float(energy_T.mean()),
        "energy": [float(energy_T[part].mean()) for part in tenths],
        "error": [float(wrong_T[part].mean()) for part in tenths],
        "rows": [len(part) for part in tenths],
        "auc": None if auc is None else float(auc),
    }


def router_of(trainer: Trainer) -> Model:
    """The model whose experts are looked at."""
    model = trainer.model
    return model.members[0] if isinstance(model, Ensemble) else model


@torch.no_grad()
def _routed(trainer: Trainer, index_T: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """gates_TE, the entropy of the router's p for each row, its gluing energy where it has one, and who was right."""
    model, rows = router_of(trainer), trainer.source.rows
    parts = []
    for start in range(0, len(index_T), CHUNK):
        chunk = rows.take(index_T[start : start + CHUNK])
        output, saved = model.apply(model.params, trainer.encoder.inputs(chunk))
        p_TE = model.routed(saved)[0].double()
        entropy_T = -(p_TE * p_TE.clamp_min(1e-300).log()).sum(1)
        right_T = torch.from_numpy(trainer.predictor(chunk).decision_T == np.asarray(chunk.outcome_R))
        energy_T = model.energy(saved)
        parts.append((output.gates_TE.double(), entropy_T, right_T, *([] if energy_T is None else [energy_T.double()])))
    gates_TE, entropy_T, right_T, *energy = (torch.cat(pieces).cpu().numpy() for pieces in zip(*parts, strict=True))
    return gates_TE, entropy_T, energy[0] if energy else None, right_T
