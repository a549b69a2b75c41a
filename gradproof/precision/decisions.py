"""Discrete decisions of a run: which K of n scores each row chose, and by what margin.

margin = min over the chosen − max over the rejected,  in the scores as compared
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
CHOOSERS = frozenset(
    {aten.topk, aten.sort, aten.argmax, aten.argmin, aten.max, aten.min, aten.kthvalue, aten.median, aten.nanmedian}
)
MOST_SCORES = 2**22  # larger decisions are not recorded: for example, a choice from the vocabulary of a language model
EVERYTHING = -1  # the axis of an argmax over all entries


@dataclass
class Decision:
    """One top-k, sort or argmax. R rows of n scores. A sort, or the top n of n, decides only the order until the first
    or last K ranks are sliced from it; these then become the chosen ones.
    """

    path: str
    op: str
    scores_Rn: Tensor  # larger is better
    sign: int  # −1 if these are the negated scores
    order_Rn: Tensor  # all indices of a sort, or the K indices of a top-k
    shape: torch.Size  # of the indices that the op returned
    axis: int
    index_RK: Tensor | None = None  # the chosen indices; None for a sort that was not sliced

    @property
    def rows(self) -> int:
        return self.order_Rn.shape[0]

    def take(self, start: int, end: int) -> None:
        """Records that ranks start..end of a sort are the chosen ones."""
        n = self.order_Rn.shape[1]
        if self.index_RK is None and 0 < end - start < n and (start == 0 or end == n):
            self.index_RK = self.order_Rn[:, start:end]
            if start:  # the last ranks are the best
                self.scores_Rn, self.sign = -self.scores_Rn, -self.sign

    def chosen_Rn(self) -> Tensor:
        """A mask of the chosen entries."""
        assert self.index_RK is not None
        mask = torch.zeros(self.scores_Rn.shape, dtype=torch.bool, device=self.scores_Rn.device)
        return mask.scatter_(1, self.index_RK, True)

    def margin_R(self) -> Tensor:
        """The last chosen score minus the first rejected one; for a sort, the smallest gap between neighbours."""
        if self.index_RK is None:
            return self.scores_Rn.sort(1).values.diff(dim=1).amin(1)
        chosen = self.chosen_Rn()
        worst = self.scores_Rn.masked_fill(~chosen, torch.inf).amin(1)
        return worst - self.scores_Rn.masked_fill(chosen, -torch.inf).amax(1)

    def reordered_R(self, other: Decision) -> Tensor:
        """The rows whose indices or order differ."""
        return (self.order_Rn != other.order_Rn.to(self.order_Rn.device)).any(1)

    def flipped_R(self, other: Decision) -> Tensor:
        """The rows whose chosen set differs; for a sort, those whose order differs."""
        if self.index_RK is None or other.index_RK is None:
            return self.reordered_R(other)
        return (self.chosen_Rn() != other.chosen_Rn().to(self.scores_Rn.device)).any(1)

    def indices(self) -> Tensor:
        """The indices in the shape in which the op returned them."""
        if self.axis == EVERYTHING:
            return self.order_Rn.reshape(self.shape)
        sizes = list(self.shape)
        sizes.append(sizes.pop(self.axis))
        return self.order_Rn.reshape(sizes).movedim(-1, self.axis)


def decision(func: Any, args: Any, kwargs: dict[str, Any], out: Any, path: str) -> Decision | None:
    """The decision of an op; None if it does not compare floating-point scores or has no choice. Choosing everything in
    order counts as a sort.
    """
    x, packet = args[0], func.overloadpacket
    if not (isinstance(x, Tensor) and x.is_floating_point() and x.dim() and 0 < x.numel() <= MOST_SCORES):
        return None
    if packet in (aten.max, aten.min, aten.median, aten.nanmedian) and "dim" not in func._overloadname:
        return None
    given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    ranks = packet in (aten.topk, aten.sort)
    dim = given.get("dim", -1 if ranks else None)
    axis = EVERYTHING if dim is None else dim % x.dim()
    index = out if isinstance(out, Tensor) else out[1]
    if axis != EVERYTHING and not (ranks or given.get("keepdim")):
        index = index.unsqueeze(axis)
    if not index.numel():
        return None
    scores_Rn, order_Rn = _rows(x.detach(), axis).to(torch.float64, copy=True), _rows(index, axis)
    if scores_Rn.shape[1] == 1:
        return None
    largest = {aten.argmin: False, aten.min: False, aten.sort: given.get("descending", False)}
    sign = 1 if largest.get(packet, given.get("largest", True)) else -1
    chosen_RK = None if order_Rn.shape == scores_Rn.shape else order_Rn
    return Decision(path, packet.__name__, sign * scores_Rn, sign, order_Rn, index.shape, axis, chosen_RK)


def _rows(x: Tensor, axis: int) -> Tensor:
    """`x` with one row per line along `axis`."""
    return x.reshape(1, -1) if axis == EVERYTHING else x.movedim(axis, -1).reshape(-1, x.shape[axis])
