"""The factor by which a refuted gradient is wrong, from differences of the forward along the gradient itself.

ratio = ‖g‖/⟨∇L, g/‖g‖⟩;   a scale bug where ∇L = g/ratio along other directions too
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Outputs
from gradproof.diagnosis.specimen import Prepared
from gradproof.streams import seeded


class Factor(NamedTuple):
    """`ratio` is claimed/true along the claimed gradient; `scale` says that it is the same everywhere."""

    ratio: float
    scale: bool


def factor(prepared: Prepared, cotangents: Outputs, name: str, g: Tensor, seed: int) -> Factor:
    """The factor of one tensor, from eight forwards. Infinite where the loss does not move along g."""
    norm = float(g.norm())
    if not norm:
        return Factor(0.0, False)
    slope = _slope(prepared, cotangents, name, g / norm)
    if abs(slope) < 1e-6 * norm:
        return Factor(math.inf, False)
    ratio = norm / slope
    # g with its signs shuffled: one factor for every entry, and no other error, keeps the prediction.
    signs = (
        torch.randint(0, 2, g.shape, generator=seeded(seed, "signs", name), dtype=torch.float64).to(g.device) * 2 - 1
    )
    other = g * signs / norm
    predicted, spread = float((g * other).sum()) / ratio, float((g * g).norm()) / norm / abs(ratio)
    return Factor(ratio, abs(_slope(prepared, cotangents, name, other) - predicted) <= 1e-3 * spread)


def _slope(prepared: Prepared, cotangents: Outputs, name: str, v: Tensor) -> float:
    """⟨∇L, v⟩ by central differences at two steps, extrapolated."""
    value = prepared.values[name]
    step = 1e-4 * (float(value.double().norm()) or math.sqrt(value.numel()))

    def loss(tau: float) -> float:
        moved = {**prepared.values, name: (value.double() + tau * v).to(value.dtype)}
        outputs, _ = prepared.run(moved, None)
        return sum(float((c * y.detach()).sum()) for c, y in zip(cotangents, outputs, strict=True))

    wide, narrow = ((loss(h) - loss(-h)) / (2 * h) for h in (step, step / 2))
    return (4 * narrow - wide) / 3
