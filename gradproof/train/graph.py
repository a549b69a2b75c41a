"""A step as a CUDA graph: captured once for a shape, replayed with other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class Graph:
    """`work(x, target)` on memory of its own. What it returns are copies: the next replay writes over the originals."""

    def __init__(self, work: Callable[[Tensor, Any], Sequence[Tensor]], x_TI: Tensor, target: Any):
        self.x_TI, self.target = x_TI.clone(), tree_map(torch.clone, target)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.results = tuple(work(self.x_TI, self.target))
            # The small results lie side by side, so that they are copied at once.
            small = [result for result in self.results if result.dim() < 2]
            self.packed = torch.cat([result.reshape(-1).double() for result in small])

    def __call__(self, x_TI: Tensor, target: Any) -> list[Tensor]:
        """Replays it."""
        self.x_TI.copy_(x_TI)
        tree_map(lambda own, given: own.copy_(given), self.target, target)
        self.graph.replay()
        packed, at, copies = self.packed.clone(), 0, []
        for result in self.results:
            if result.dim() >= 2:
                copies.append(result.clone())
                continue
            copies.append(packed[at : at + result.numel()].view(result.shape).to(result.dtype))
            at += result.numel()
        return copies
