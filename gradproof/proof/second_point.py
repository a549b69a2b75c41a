"""A second, generic point near the given one, where no gradient vanishes by accident.

A branch that is multiplied by zero, as in LoRA before its first step, has no gradient whatever the code does. So
numbers that are not zero are moved by up to a tenth of themselves, zeros of parameters by the scale of their layer;
inputs keep their range, their zeros and their symmetry, and what is integer-valued is not moved at all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import torch
from torch import Tensor

from gradproof.streams import seeded

SHARE = 0.1
OF_LAYER = 0.3  # of the scale of a layer, by which zeros move


def second_point(values: Mapping[str, Tensor], inputs: frozenset[str], fixed: Mapping[str, Tensor], seed: int):
    """The values, moved; those that are not are the same objects."""
    scales = _scales({name: value for name, value in values.items() if name not in inputs})
    moved = {}
    for name, value in values.items():
        generator = seeded(seed, "second point", name)
        share = 1 + SHARE * (2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1)
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if name in inputs:
            moved[name] = _input(value, share.to(value), fixed.get(name))
        else:
            zeros = (OF_LAYER * scales[name] * noise).to(value)
            moved[name] = _kept(torch.where(value == 0, zeros, value * share.to(value)), value, fixed.get(name))
    return moved


def _input(value: Tensor, share: Tensor, fixed: Tensor | None) -> Tensor:
    plain = value[~fixed] if fixed is not None else value
    if not plain.numel() or bool((plain == plain.round()).all()):
        return value
    moved = (value * share).clamp(plain.min(), plain.max())
    if value.dim() >= 2 and value.shape[-1] == value.shape[-2] and torch.equal(value, value.mT):
        moved = (moved + moved.mT) / 2
    return _kept(moved, value, fixed)


def _kept(moved: Tensor, value: Tensor, fixed: Tensor | None) -> Tensor:
    moved = torch.where(value.isfinite(), moved, value)
    return moved if fixed is None else torch.where(fixed, value, moved)


def _scales(parameters: Mapping[str, Tensor]) -> dict[str, float]:
    """The root mean square of each layer's numbers that are not zero: its own, or that of the layers around it."""
    sizes = {}
    for name, value in parameters.items():
        plain = value[(value != 0) & value.isfinite()]
        sizes[name] = float(plain.double().square().mean().sqrt()) if plain.numel() else math.nan
    known = {name: size for name, size in sizes.items() if math.isfinite(size)}
    usual = statistics.median(known.values()) if known else 1.0

    def around(name: str) -> float:
        layer = name
        while layer:
            layer = layer.rpartition(".")[0]
            near = [size for other, size in known.items() if layer and other.startswith(f"{layer}.")]
            if near:
                return statistics.median(near)
        return usual

    return {name: known.get(name) or around(name) for name in sizes}
