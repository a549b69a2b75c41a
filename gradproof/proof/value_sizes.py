"""The scale of each tensor: its root mean square, or that of each column if columns differ in scale.

Features of 1.7e7, 1 and 1e-6 side by side have no common step: one that the first column hardly notices throws the last
one far out of its range. So where the slices along some axis differ by orders of magnitude, each moves by its own size.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import torch
from torch import Tensor

UNEVEN = 1e4  # ratio of the largest slice to the smallest one that is not zero
UNEVEN_ENTRIES = 1e6  # the same for slices of one number, which may be small by chance


def sizes_of(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The size of each tensor, to be broadcast against it; a tensor of zeros moves like the others do."""
    whole = {name: float(value.double().square().mean().sqrt()) for name, value in values.items() if value.numel()}
    known = [size for size in whole.values() if 0 < size < math.inf]
    usual = statistics.median(known) if known else 1.0
    sizes = {}
    for name, value in values.items():
        plain = 0 < whole.get(name, 0.0) < math.inf
        by_slice = _of_slices(value.double()) if plain else None
        size = whole[name] if plain else usual
        sizes[name] = torch.tensor(size, dtype=torch.float64, device=value.device) if by_slice is None else by_slice
    return sizes


def _of_slices(value: Tensor) -> Tensor | None:
    """The size of each slice along the axis on which they differ most; None where they are much alike. A slice of zeros
    gets the median of the others."""
    best, most = None, 1.0
    for axis in range(value.dim()):
        others = [a for a in range(value.dim()) if a != axis]
        slices = value.square().mean(others, keepdim=True).sqrt() if others else value.abs()
        nonzero = slices[slices > 0]
        ratio = float(nonzero.max() / nonzero.min())
        if ratio > max(most, UNEVEN if value.numel() > slices.numel() else UNEVEN_ENTRIES):
            best, most = torch.where(slices > 0, slices, nonzero.median()), ratio
    return best
