"""The weights as the products read them: a bf16 or fp16 copy beside the fp32 masters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gradproof.models.model import Model


class NarrowWeights(Mapping[str, Tensor]):
    """Matrices and biases in `dtype`, refreshed from the masters; norms and what the model keeps wide as they are."""

    def __init__(self, model: Model, dtype: torch.dtype):
        self.masters = model.params
        self.flat_P = torch.empty_like(model.params.flat_P, dtype=dtype)
        narrow = {
            e.name for e in model.params.spec if e.kind in ("matrix", "bias") and not e.name.startswith(model.wide)
        }
        views = model.params.views(self.flat_P)
        self._views = {name: views[name] if name in narrow else model.params[name] for name in model.params}
        self.refresh()

    def refresh(self) -> None:
        """Copies the masters, rounded to nearest."""
        self.flat_P.copy_(self.masters.flat_P)

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)
