"""Training: the state that a step changes, and the end of every step.

A step ends in one way, whoever made its gradients: unscale, clip, update or skip, then the router's correction and the
loss scale follow. All of it stays on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradproof.kernels.variants import Kernels
from gradproof.models.model import Model
from gradproof.ops import NARROW
from gradproof.ops.update import CLIP_EPS
from gradproof.params import Weights
from gradproof.train.adamw import AdamW, copy_pieces
from gradproof.train.loss import Loss
from gradproof.train.narrow import NarrowWeights

FIRST_SCALE = 2.0**16
GROW_AFTER = 2000  # good steps in a row


class Training:
    """A model with its loss and its optimizer. `dtype` is that of the products: narrow ones read a copy of the weights,
    and those of fp16 have a loss scale."""

    def __init__(
        self,
        model: Model,
        loss: Loss,
        optimizer: AdamW,
        dtype: torch.dtype,
        clip: float | None,
        own: Sequence[slice] | None = None,
    ):
        """`own` are the parts of the flat buffer that this optimizer moves; None for all of it."""
        self.model, self.loss, self.optimizer, self.clip = model, loss, optimizer.bind(model.params, own), clip
        narrow, flat_P = dtype in NARROW, model.params.flat_P
        self.weights: Weights = NarrowWeights(model.params, dtype) if narrow else model.params
        self.scaling = dtype == torch.float16
        self.scale = flat_P.new_full((), FIRST_SCALE if self.scaling else 1.0)
        self.good = flat_P.new_zeros(())  # steps since the scale last changed
        self.skipped = flat_P.new_zeros(())  # steps skipped so far

    def end(self, loss: Tensor, load_E: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Moves the parameters by `grad_P`, the gradient times the loss scale; returns the norm and whether nothing
        was moved."""
        if kernels.update is not None:
            norm, skipped = self.optimizer.end(kernels.update, loss, self.scale, self.skipped, self.clip)
            self.refresh()
        else:
            norm, skipped = self._update(loss, kernels)
        self.settle(load_E, skipped)
        return norm, skipped

    def settle(self, load_E: Tensor, skipped: Tensor) -> None:
        """What follows an update: the router's correction by the load, and the loss scale by whether it was skipped."""
        self._rebalance(load_E, skipped)
        if self.scaling:
            self._rescale(skipped)

    def _update(self, loss: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Without a kernel for all of it: norm, clip factor and skip in torch, then AdamW."""
        norm = self._norm(kernels) / self.scale
        skipped = 1 - (norm * 0 + loss * 0 == 0).float()  # not finite times zero is not zero
        divisor = self.scale
        if self.clip is not None:
            divisor = self.scale * ((norm + CLIP_EPS) / self.clip).clamp(min=1.0)
        unscaled = self.scaling or self.clip is not None
        self._move(divisor if unscaled else None, skipped, kernels)
        self.skipped += skipped
        return norm, skipped

    def _norm(self, kernels: Kernels) -> Tensor:
        """‖g‖ of the whole gradient, times the loss scale."""
        return kernels.adamw.norm(self.model.params.grad_P)

    def _move(self, divisor: Tensor | None, skipped: Tensor, kernels: Kernels) -> None:
        """AdamW by the gradient over `divisor`, unless the step is skipped."""
        narrow_P = self.weights.flat_P if isinstance(self.weights, NarrowWeights) else None
        self.optimizer.step(divisor, skipped, narrow_P, kernels.adamw)

    def _rebalance(self, load_E: Tensor, skipped: Tensor) -> None:
        if not self.model.buffers:
            return
        before = {name: buffer.clone() for name, buffer in self.model.buffers.items()}
        self.model.rebalance(load_E)
        for name, buffer in self.model.buffers.items():
            buffer.copy_(torch.where(skipped > 0, before[name], buffer))

    def _rescale(self, skipped: Tensor) -> None:
        """Half the scale after a skipped step, twice after many good ones in a row."""
        self.good += 1 - skipped
        grown = self.good >= GROW_AFTER
        self.scale.copy_(torch.where(skipped > 0, (self.scale / 2).clamp(min=1.0), self.scale * (1 + grown)))
        self.good *= (1 - skipped) * ~grown

    def refresh(self) -> None:
        """The narrow copy of the weights, after somebody else has moved them."""
        if isinstance(self.weights, NarrowWeights):
            self.weights.refresh()

    def state(self) -> dict[str, Tensor]:
        """Everything but the parameters that the next step depends on."""
        own = {"scale": self.scale, "good": self.good, "skipped": self.skipped}
        own |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return own | {f"buffer.{name}": tensor for name, tensor in self.model.buffers.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave; the parameters are restored before."""
        copy_pieces(self.state(), state)
        self.refresh()

    def written(self) -> dict[str, Tensor]:
        """The part of `state` that this process writes to a checkpoint."""
        return self.state()
