"""The band of noise: what rounding to a format does to each gradient of a module, and who leaves it.

A tensor's noise is the largest error among stochastically rounded replicas. These round every result without bias, and
without over- or underflow, so they show what a unit of this size does to this module at this input, cancellation and
depth included. Then

    excess = error/noise,    z = (ln excess − μ)/σ    with μ, σ of correct modules, by how many numbers the tensor has
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from gradproof.precision.compared import Compared, ratio
from gradproof.precision.formats import Format

# (numbers in the tensor up to, μ, σ): ln(error/noise) of correct modules and the spread of its upper half, measured on
# round 0 of tests/zoo. No tensor of it came beyond z = 4.
BANDS = ((1, -1.6, 0.75), (8, -0.9, 0.47), (64, -0.75, 0.4), (math.inf, -0.6, 0.35))
FALSE_ALARMS = 1e-6  # family-wise and nominal: the tails of ln(error/noise) are only about normal
FLOOR = (8.0, 0.1)  # in units, at most: a relative error below this is never called anything but noise


@dataclass(frozen=True)
class Standing:
    """Where an error stands in its band."""

    excess: float
    z: float
    outside: bool


@dataclass(frozen=True)
class Band:
    """The replicas of one format, each tensor by name."""

    format: Format
    replicas: Sequence[Mapping[str, Compared]]

    @cached_property
    def critical(self) -> float:
        """The z that no tensor of a correct module exceeds: two runs a tensor are held against it."""
        tensors = max((len(replica) for replica in self.replicas), default=1)
        return NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(tensors, 1)))

    def noise(self, name: str) -> float:
        """The largest error of a replica; half a unit of the gradient where they are nearer than that."""
        compared = [replica[name] for replica in self.replicas]
        least = 0.5 * self.format.unit * max((c.size for c in compared), default=0.0)
        return max([least, *(c.scatter for c in compared if c.finite)])

    def stands(self, name: str, c: Compared) -> Standing:
        """An error in its band. What is not finite is outside."""
        if not c.finite:
            return Standing(math.inf, math.inf, True)
        excess = ratio(c.error, self.noise(name))
        _, mean, spread = next(band for band in BANDS if c.numel <= band[0])
        z = (math.log(excess) - mean) / spread if excess > 0 else -math.inf
        return Standing(excess, z, z > self.critical and c.relative > floor(self.format))


def floor(format: Format) -> float:
    """The relative error that is never called anything but noise."""
    units, most = FLOOR
    return min(units * format.unit, most)
