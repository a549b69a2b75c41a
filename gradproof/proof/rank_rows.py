"""Assigns rows to ranks: the inputs that a rank gets, and the outputs that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Outputs
from gradproof.proof.runner import CannotRun
from gradproof.proof.structure import dense, floating, leaves_of, rebuilt
from gradproof.ranks.mesh_shape import share


class RankTurn(NamedTuple):
    """One step: its number, into how many micro-batches it accumulates, and whether all but the last of them run under
    the wrapped module's `no_sync`."""

    number: int
    micros: int = 1
    unsynced: bool = False


class RowShares(NamedTuple):
    """`rows` rows in `shares` contiguous parts, of which one is this rank's."""

    rows: int
    shares: int
    own: int

    def of(self, turn: RankTurn, micro: int) -> list[slice]:
        """The rows of each share in a micro-batch."""
        slices = []
        for s in range(self.shares):
            part = share(self.rows, s, self.shares)
            inner = share(part.stop - part.start, micro, turn.micros)
            slices.append(slice(part.start + inner.start, part.start + inner.stop))
        return slices

    def place(self, turn: RankTurn, micro: int) -> slice:
        """Where this rank's rows are among all of the micro-batch."""
        lengths = [one.stop - one.start for one in self.of(turn, micro)]
        return slice(sum(lengths[: self.own]), sum(lengths[: self.own + 1]))

    @property
    def least(self) -> int:
        return self.rows // self.shares


def rows_of(inputs: Any) -> int:
    """The first axis of the first tensor that has one."""
    for _, leaf in leaves_of(inputs):
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf.shape[0]
    raise CannotRun("no input has rows that can be split")


def has_rows(leaf: Any, rows: int) -> bool:
    """Whether a tensor is cut into shares; anything else goes to every rank as it is."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and dense(leaf) and leaf.shape[0] == rows


def taken(inputs: Any, rows: int, slices: Sequence[slice]) -> Any:
    """The inputs with these rows alone, one slice after the other."""
    cut = (torch.cat([leaf[s] for s in slices]) if has_rows(leaf, rows) else leaf for _, leaf in leaves_of(inputs))
    return rebuilt(inputs, cut)


class OutputPart(NamedTuple):
    """Which part of a whole output is a rank's; all of it where the output has no rows."""

    start: int = 0
    stop: int | None = None
    by_rows: bool = False

    def of(self, whole: Tensor) -> Tensor:
        return whole[self.start : self.stop] if self.by_rows else whole


def output_part(whole: Sequence[int], own: Sequence[int], rows: int, place: slice) -> OutputPart:
    """Where a rank's output lies in the one of all rows. Each row may have several entries along the first axis."""
    many = whole[0] // rows if whole and rows and whole[0] % rows == 0 else 0
    if many and tuple(own) == ((place.stop - place.start) * many, *whole[1:]):
        return OutputPart(place.start * many, place.stop * many, True)
    if tuple(own) == tuple(whole):
        return OutputPart()
    count = place.stop - place.start
    raise CannotRun(
        f"the wrapped module gives an output of shape {tuple(own)} for {count} of {rows} rows; "
        f"on one rank all rows give {tuple(whole)}"
    )


def outputs_of(output: Any) -> Outputs:
    """The floating tensors of an output, real and whole."""
    found = [_whole(leaf) for _, leaf in leaves_of(output) if isinstance(leaf, Tensor) and floating(leaf)]
    if not found:
        raise CannotRun("the module's output holds no floating tensor to project")
    return tuple(torch.view_as_real(y.resolve_conj()) if y.dtype.is_complex else y for y in found)


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
