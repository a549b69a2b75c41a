"""ExpertsInTurn: runs the op `experts` one expert at a time; the backward starts with the last.

When an expert's gradients are final that is announced, so that they can be sent to other ranks while the next expert is
computed. On a CPU, where a call for one expert is as fast as one for all; on a GPU experts share each product.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.admissions import choose
from gradproof.kernels.shapes import Shape
from gradproof.kernels.variants import Kernels
from gradproof.kernels.workspace import Workspace
from gradproof.ops import dispatch
from gradproof.ops import experts as reference
from gradproof.ops.dispatch import DispatchPlan
from gradproof.ops.experts import Chain

# Of an expert, from which the CPU kernels take one path: with fewer each number of rows has a path of its own, which
# would have to be proven in the midst of a training.
FEWEST = 128


def experts_kernel(kernels: Kernels, x_MI: Tensor, experts: int, chain: Chain, narrow_EP: Tensor | None) -> Any:
    """The kernel for this many rows and experts: the chosen one if it is admitted for them."""
    name, module = kernels.chosen.get("experts", "reference"), kernels.experts
    rows, dtype = len(x_MI), x_MI.dtype if narrow_EP is None else narrow_EP.dtype
    if not isinstance(module, ModuleType) and rows:  # one that is being checked: its calls are judged as they are
        return module
    if not rows or name == "reference" or (x_MI.is_cpu and rows < FEWEST * experts):
        return reference
    of = (rows, experts, 1, chain)
    shape = Shape(x_MI.device.type, str(dtype)[6:], *of, ops=("experts",), fused=(), parameters=experts * chain.length)
    return choose(shape, only={"experts": name}).experts


class ExpertTurn(NamedTuple):
    """What the forward of one expert saves."""

    module: Any
    plan: DispatchPlan
    saved: Any


class ExpertsInTurn:
    """Replaces the op `experts`; `first` is the number of the first expert in `theta_EP`."""

    def __init__(self, kernels: Kernels, first: int = 0):
        self.kernels, self.first = kernels, first

    def forward(
        self,
        x_NI: Tensor,
        theta_EP: Tensor,
        plan: DispatchPlan,
        chain: Chain,
        narrow_EP: Tensor | None = None,
        workspace: Workspace | None = None,
    ) -> tuple[Tensor, tuple[list[int], list[ExpertTurn]]]:
        bounds = plan.bounds()
        outputs, turns = [], []
        for e, (start, end) in enumerate(pairwise(bounds)):
            x_nI, own, narrow = x_NI[start:end], slice(e, e + 1), None if narrow_EP is None else narrow_EP[e : e + 1]
            module, rows = experts_kernel(self.kernels, x_nI, 1, chain, narrow), dispatch.all_rows(end - start)
            space = None if workspace is None else workspace.part(e)
            y_nO, saved = module.forward(x_nI, theta_EP[own], rows, chain, narrow, workspace=space)
            outputs.append(y_nO)
            turns.append(ExpertTurn(module, rows, saved))
        return torch.cat(outputs), (bounds, turns)

    def backward(
        self,
        dy_NO: Tensor,
        saved: tuple[list[int], list[ExpertTurn]],
        x_NI: Tensor,
        theta_EP: Tensor,
        plan: DispatchPlan,
        chain: Chain,
        narrow_EP: Tensor | None = None,
        out_EP: Tensor | None = None,
        accumulate: bool = False,
        want_dx: bool = True,
        workspace: Workspace | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        bounds, turns = saved
        dtheta_EP = torch.zeros_like(theta_EP) if out_EP is None else out_EP
        dx: list[Any] = [None] * len(turns)
        for e, turn in reversed(list(enumerate(turns))):
            at, own = slice(*bounds[e : e + 2]), slice(e, e + 1)
            dx[e], _ = turn.module.backward(
                dy_NO[at],
                turn.saved,
                x_NI[at],
                theta_EP[own],
                turn.plan,
                chain,
                narrow_EP=None if narrow_EP is None else narrow_EP[own],
                out_EP=dtheta_EP[own],
                accumulate=accumulate,
                want_dx=want_dx,
                workspace=None if workspace is None else workspace.part(e),
            )
            self.kernels.announce(f"experts.{self.first + e}.")
        return torch.cat(dx) if want_dx else None, dtheta_EP
