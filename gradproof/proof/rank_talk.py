"""RankTalk: messages between the ranks of a trial, in a process group that the user's code does not use."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = datetime.timedelta(hours=1)  # the process that waits for the ranks gives up earlier


class RankTalk:
    """Every rank calls the same of these, in the same order."""

    def __init__(self):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._group: Any = dist.new_group(timeout=PATIENCE)

    def from_first(self, value: Any) -> Any:
        """What rank 0 has."""
        box = [value if self.rank == 0 else None]
        dist.broadcast_object_list(box, 0, group=self._group)
        return box[0]

    def tensor_from(self, rank: int, tensor: Tensor | None, shape: Sequence[int] | None = None) -> Tensor:
        """A rank's tensor in float64; where there is none, its shape must be given."""
        taken = torch.empty(tuple(shape or ()), dtype=torch.float64) if tensor is None else tensor.clone()
        dist.broadcast(taken, rank, group=self._group)
        return taken

    def gathered(self, value: Any) -> list[Any]:
        """What every rank has, by rank."""
        said: list[Any] = [None] * self.ranks
        dist.all_gather_object(said, value, group=self._group)
        return said

    def sum_(self, tensor: Tensor) -> Tensor:
        """Over all ranks, in place."""
        dist.all_reduce(tensor, group=self._group)
        return tensor

    def close(self) -> None:
        dist.destroy_process_group(self._group)
