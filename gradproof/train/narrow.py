"""The weights that products read: a bf16 or fp16 copy of the fp32 master weights."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.params import ParamSpace


class NarrowWeights:
    """The masters by name; beside the shards of the masters those of a copy in `dtype`, refreshed from them."""

    def __init__(self, masters: ParamSpace, dtype: torch.dtype):
        self.masters = masters
        self.flat_P = torch.empty_like(masters.flat_P, dtype=dtype)
        self._views = masters.views(self.flat_P)
        self.refresh()

    def refresh(self) -> None:
        """Copies the masters, rounded to nearest."""
        self.flat_P.copy_(self.masters.flat_P)

    def __getitem__(self, name: str) -> Tensor:
        return self.masters[name]

    def operand(self, name: str) -> Tensor:
        """The copy of one parameter."""
        return self._views[name]

    def shards(self, prefix: str, copies: int) -> tuple[Tensor, Tensor]:
        """theta_EP of the masters and of the copy."""
        theta_EP, _ = self.masters.shards(prefix, copies)
        return theta_EP, self.masters.shards_of(self.flat_P, prefix, copies)
