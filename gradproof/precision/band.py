"""The noise band: how far rounding to a format moves each gradient of a module, and which errors exceed that.

A tensor's noise is the largest error among stochastically rounded replicas. These round every result without bias and
without over- or underflow. They show what a unit of this size does to this module at this input, including cancellation
and depth.

    excess = error/noise,    z = (ln excess − μ)/σ    with μ, σ of correct modules, by tensor size
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from gradproof.precision.compared import Compared, ratio
from gradproof.precision.formats import Format

# (largest tensor size, μ, σ): mean of ln(error/noise) of correct modules, and the spread of its upper half, measured on
# round 0 of tests/zoo. No tensor there exceeded z = 4.
BANDS = ((1, -1.6, 0.75), (8, -0.9, 0.47), (64, -0.75, 0.4), (math.inf, -0.6, 0.35))
FALSE_ALARMS = 1e-6  # family-wise and nominal: the tails of ln(error/noise) are only approximately normal
FLOOR = (8.0, 0.1)  # (units, cap): relative errors below this always count as noise


@dataclass(frozen=True)
class Standing:
    """An error relative to its band."""

    excess: float
    z: float
    outside: bool


@dataclass(frozen=True)
class Band:
    """The replicas of one format: the comparison of each tensor by name."""

    format: Format
    replicas: Sequence[Mapping[str, Compared]]

    @cached_property
    def critical(self) -> float:
        """The critical z for a correct module. Two runs per tensor are tested against it."""
        tensors = max((len(replica) for replica in self.replicas), default=1)
        return NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(tensors, 1)))

    def noise(self, name: str) -> float:
        """The largest error of a replica, but at least half a unit of the gradient."""
        compared = [replica[name] for replica in self.replicas]
        least = 0.5 * self.format.unit * max((c.size for c in compared), default=0.0)
        return max([least, *(c.scatter for c in compared if c.finite)])

    def stands(self, name: str, c: Compared) -> Standing:
        """The standing of an error. A gradient that is not finite is outside the band."""
        if not c.finite:
            return Standing(math.inf, math.inf, True)
        excess = ratio(c.error, self.noise(name))
        _, mean, spread = next(band for band in BANDS if c.numel <= band[0])
        z = (math.log(excess) - mean) / spread if excess > 0 else -math.inf
        return Standing(excess, z, z > self.critical and c.relative > floor(self.format))


def floor(format: Format) -> float:
    """Relative errors up to this always count as noise."""
    units, most = FLOOR
    return min(units * format.unit, most)
