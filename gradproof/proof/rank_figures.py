"""The requests to the ranks of a trial, and the figures that they return: plain records sent between processes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class RankSetting(NamedTuple):
    """One trial: the case, the dtype that module and inputs are converted to, and where a hung rank says so."""

    text: str
    seed: int
    dtype: torch.dtype | None
    autocast: torch.dtype | None
    timeout: float
    folder: str


class Opened(NamedTuple):
    """What is judged.

    unjudged    by name, why a tensor of the wrapped module is not
    lost        by name, why a parameter of the module cannot be found again
    dtype       the module's own
    least       rows of the smallest share
    can_unsync  whether the wrapped module has a `no_sync`
    factor      of a rank's own loss
    uneven      whether some shares have more rows than others"""

    parameters: list[str]
    unjudged: dict[str, str]
    lost: dict[str, str]
    dtype: torch.dtype
    shares: int
    least: int
    can_unsync: bool
    factor: float
    uneven: bool


class Figure(NamedTuple):
    """A tensor of this rank beside what it should be: norms of the difference, of its own and of the right part, the
    product of both; what is plainly wrong in words; the norm of what it was computed from."""

    error: float
    own: float
    size: float
    dot: float
    words: str = ""
    scale: float = 0.0


class RankComparison(NamedTuple):
    """One step on this rank.

    moved    by how much of its size a value was changed without an optimizer
    sizes    norm of each right gradient and how far rounding moves it; None where there is none
    rate     the learning rate of the update that follows
    random   whether the module draws random numbers
    by_rows  whether all outputs have rows"""

    parameters: dict[str, Figure]
    inputs: dict[str, Figure]
    outputs: list[Figure]
    buffers: dict[str, Figure]
    moved: dict[str, float]
    sizes: dict[str, tuple[float, float] | None]
    rate: float
    random: bool
    by_rows: bool


def figure(own: Tensor, right: Tensor) -> Figure:
    """A tensor beside what it should be."""
    if own.shape != right.shape:
        return Figure(math.inf, float(own.norm()), float(right.norm()), 0.0, f"has the shape {tuple(own.shape)}")
    same = own.isfinite() | (own == right) | (own.isnan() & right.isnan())  # infinite entries that are so on one rank
    if not bool(same.all()):
        return Figure(math.inf, math.nan, float(right.norm()), 0.0, "is not finite")
    both = own.isfinite() & right.isfinite()
    own, right = own.where(both, 0.0), right.where(both, 0.0)
    return Figure(float((own - right).norm()), float(own.norm()), float(right.norm()), float((own * right).sum()))


def share_of(part: float, whole: float) -> float:
    """Of its size, by which something is off."""
    if math.isnan(part):
        return math.inf
    return part / whole if whole else math.inf if part else 0.0
