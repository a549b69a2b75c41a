"""MeshShape: the number of ranks along each axis. `data=2,experts=2` is four ranks.

Rank d·X + x stands at (d, x). Every rank has rows of its own. Along `data` all parameters are replicated; along
`experts` each rank holds its share of the experts, and the rest is replicated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

AXES = ("data", "experts")


@dataclass(frozen=True)
class MeshShape:
    """Ranks along each axis."""

    data: int = 1
    experts: int = 1

    def __post_init__(self):
        if min(self.data, self.experts) < 1:
            raise ValueError(f"mesh {self}: each axis has at least one rank")

    @classmethod
    def parse(cls, text: str) -> MeshShape:
        """From `data=2,experts=2`; an axis that is left out has one rank."""
        sizes: dict[str, int] = {}
        for item in text.split(","):
            match = re.fullmatch(r"\s*([a-z]+)\s*=\s*([0-9]+)\s*", item)
            if match is None or match[1] not in AXES or match[1] in sizes:
                raise ValueError(f"mesh {text!r}: {item.strip()!r} is not an axis; write data=2,experts=2")
            sizes[match[1]] = int(match[2])
        return cls(**sizes)

    @property
    def ranks(self) -> int:
        return self.data * self.experts

    def check_experts(self, experts: int | None) -> None:
        """Whether so many experts can be shared out; None for a model that has none."""
        if self.experts == 1:
            return
        if experts is None:
            raise ValueError(f"mesh {self}: only a mixture has experts to spread; use data={self.ranks}")
        if experts % self.experts:
            raise ValueError(f"mesh {self}: {experts} experts cannot be shared equally among {self.experts} ranks")

    def __str__(self) -> str:
        return f"data={self.data},experts={self.experts}" if self.experts > 1 else f"data={self.data}"


def share(count: int, rank: int, ranks: int) -> slice:
    """The part of `count` items that belongs to a rank: contiguous, sizes differ by at most one."""
    return slice(count * rank // ranks, count * (rank + 1) // ranks)
