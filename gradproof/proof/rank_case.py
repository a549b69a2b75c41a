"""RankCase: a module, all rows of its inputs, and what the user does to distribute it.

What "right" means on N ranks, where the same module on one rank has the loss L = Σ⟨r, y⟩ over all rows:

- The rows (the first axis of every input) are cut into `shares` contiguous parts, as equal as they can be; rank k gets
  part k·shares // N. By default there are N shares: data parallel. `shares=1` gives every rank all rows, as tensor
  parallelism wants them; `shares=2` on four ranks is two groups of two.
- Each rank differentiates a loss of its own, L_k. Of an output with rows it is shares·⟨r, y⟩ over the rank's rows; an
  output without rows (a loss that the module computes itself) has the same r on every rank. With `reduction="mean"`
  L is the mean of the L_k, so that ranks must end with the *mean* of their gradients, as in DistributedDataParallel and
  FSDP. With `reduction="sum"` there is no factor, and they must end with the sum.
- Each rank's gradient of its own rows of an input is that of L_k by them, which needs no reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

REDUCTIONS = ("mean", "sum")


class RankCase(NamedTuple):
    """What `gradproof verify file.py:case --ranks N` judges.

    module          as it is on one rank; the case is called on every rank
    inputs          all rows, a tuple or a dict by keyword; those of rank 0 are used
    wrap            `wrap(module)` returns the distributed module; the process group is ready
    reduction       `mean` or `sum`: what the ranks' gradients are reduced to
    shares          into how many parts the rows are cut; left out, one for each rank
    after_backward  called with the wrapped module after the last backward of a step, where a script would reduce
                    gradients by hand"""

    module: nn.Module
    inputs: Any
    wrap: Callable[[nn.Module], nn.Module]
    reduction: str = "mean"
    shares: int | None = None
    after_backward: Callable[[nn.Module], Any] | None = None

    def fault(self) -> str | None:
        """What is wrong about the case itself, in words."""
        if not isinstance(self.module, nn.Module):
            return f"the module must be a torch.nn.Module, not a {type(self.module).__name__}"
        if not isinstance(self.inputs, (tuple, dict)):
            return f"the inputs must be a tuple (or a dict by keyword), not {type(self.inputs).__name__}"
        for name, function in (("wrap", self.wrap), ("after_backward", self.after_backward)):
            if not callable(function) and (name == "wrap" or function is not None):
                return f"{name} must be a function of the module, not a {type(function).__name__}"
        if self.reduction not in REDUCTIONS:
            return f"reduction is {self.reduction!r}; use mean or sum"
        if self.shares is not None and (not isinstance(self.shares, int) or self.shares < 1):
            return f"shares is {self.shares!r}; it must be the number of parts that the rows are cut into"
        return None
