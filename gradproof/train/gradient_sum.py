"""GradientSum: sums the flat gradient over the ranks in buckets, each as soon as the backward has finished with it.

Buckets are parts of the flat buffer, the last one first, because a backward goes from the last layer to the first. All
ranks send them in this order. Every bucket is cut into one piece for each rank of the axis `data`: where the optimizer
is sharded, a rank adds up its own pieces only, and moves those parameters.

What all ranks of the mesh hold alike, a router beside experts that are shared out, stands in front of the buckets and
is added up over all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gradproof.params import ALIGNMENT, ParamSpace, padded
from gradproof.ranks.mesh import Mesh, Pending
from gradproof.ranks.mesh_shape import share

BUCKET = 32 << 20  # bytes: large enough for the full bandwidth, small enough that several fit into a backward
IN_FLIGHT = 4  # buckets; a sharded sum holds what it receives until it is added up


class Bucket(NamedTuple):
    """A part of the flat buffer, its pieces by rank, relative to its start, and the parameters that lie in it."""

    at: slice
    pieces: list[slice]
    names: frozenset[str]

    def piece(self, rank: int) -> slice:
        """Of the flat buffer."""
        own = self.pieces[rank]
        return slice(self.at.start + own.start, self.at.start + own.stop)


def buckets(params: ParamSpace, ranks: int, front: int = 0, size: int | None = None) -> list[Bucket]:
    """Of everything behind the first `front` numbers, the last bucket first."""
    flat_P = params.flat_P
    cut = cuts(flat_P.numel(), flat_P.element_size(), ranks, front, size)
    return [Bucket(at, pieces_of(at, ranks), _names(params, at)) for at in cut]


def cuts(length: int, item: int, ranks: int, front: int = 0, size: int | None = None) -> list[slice]:
    """Where the buckets of a flat buffer of `length` numbers of `item` bytes lie, the last one first."""
    step = ALIGNMENT * ranks
    each = max(step, (size or BUCKET) // item // step * step)
    return [slice(start, min(start + each, length)) for start in reversed(range(front, length, each))]


def pieces_of(at: slice, ranks: int) -> list[slice]:
    """Whole blocks of the alignment, as equal as may be."""
    parts = [share((at.stop - at.start) // ALIGNMENT, rank, ranks) for rank in range(ranks)]
    return [slice(part.start * ALIGNMENT, part.stop * ALIGNMENT) for part in parts]


def _names(params: ParamSpace, at: slice) -> frozenset[str]:
    ends = {name: start + padded(params[name].numel()) for name, start in params.offsets.items()}
    return frozenset(name for name, start in params.offsets.items() if start < at.stop and ends[name] > at.start)


class GradientSum:
    """`begin`, then `final` for what the backward is done with, then `finish`. `sharded` leaves each rank the sum of
    its own pieces alone. `front` numbers of the flat buffer are held alike by all ranks of the mesh."""

    def __init__(self, mesh: Mesh, params: ParamSpace, sharded: bool, front: int = 0):
        self.mesh, self.params, self.sharded, self.front = mesh, params, sharded, front
        self.buckets = buckets(params, mesh.ranks("data"), front)
        self.listening = False
        self._left: list[set[str]] = []
        self._flying: list[tuple[Bucket, Pending, Tensor | None]] = []

    @property
    def own(self) -> list[slice]:
        """The parts of the flat buffer that this rank moves, where the optimizer is sharded: in ascending order."""
        rank = self.mesh.at("data")
        pieces = [piece for bucket in reversed(self.buckets) if (piece := bucket.piece(rank)).start < piece.stop]
        return [slice(0, self.front), *pieces] if self.front else pieces

    def begin(self) -> None:
        """A backward, whose gradients are the last to be added to what is there, begins."""
        self._left, self._flying = [set(bucket.names) for bucket in self.buckets], []
        self.listening = True

    def final(self, prefix: str) -> None:
        """The gradients of the parameters under this prefix are final."""
        if not self.listening:
            return
        for left in self._left:
            left.difference_update([name for name in left if name.startswith(prefix)])
        while self._left and not self._left[0]:
            self._send()

    def finish(self) -> None:
        """All gradients are final. Returns when they are added up."""
        self.final("")
        self.listening = False
        pending = None
        if self.front:
            pending = self.mesh.start_sum(self.params.grad_P[: self.front], "all")
        while self._flying:
            self._land()
        if pending is not None:
            pending.wait()

    def _send(self) -> None:
        """The next bucket in line."""
        self._left.pop(0)
        done = len(self.buckets) - len(self._left) - 1
        bucket = self.buckets[done]
        flat = self.params.grad_P[bucket.at]
        if self.sharded:
            pending, rows_RP = self.mesh.start_scatter(flat, bucket.pieces, "data")
        else:
            pending, rows_RP = self.mesh.start_sum(flat, "data"), None
        self._flying.append((bucket, pending, rows_RP))
        while self.sharded and len(self._flying) > IN_FLIGHT:
            self._land()

    def _land(self) -> None:
        bucket, pending, rows_RP = self._flying.pop(0)
        pending.wait()
        if rows_RP is None:
            return
        own_P = self.params.grad_P[bucket.piece(self.mesh.at("data"))]
        if rows_RP.data_ptr() != own_P.data_ptr():
            own_P.copy_(rows_RP[0] if len(rows_RP) == 1 else rows_RP.sum(0))
            if rows_RP.is_cpu:  # gloo's thread may hold on to it until it gets a turn
                rows_RP.untyped_storage().resize_(0)
