"""Weighted binary cross-entropy on logits.

    L = Σ_t w_t·(softplus(z_t) − y_t·z_t)/B,  y clamped to [0, 1];   dz = dL·w·(σ(z) − y)/B

The loss is computed as (1 − y)·softplus(z) + y·softplus(−z), which is accurate in both tails.
The weight is an argument, never inferred from the label. `total` is B of the whole accumulated batch.
"""

from typing import Any

import torch
from torch import Tensor

from gradproof.contract import Contract, Example


def forward(z_T: Tensor, label_T: Tensor, weight_T: Tensor, total: float | None = None) -> tuple[Tensor, Tensor]:
    """The loss; `saved` is w_t/B as scale_T."""
    if not z_T.shape == label_T.shape == weight_T.shape:
        shapes = f"{list(z_T.shape)}, {list(label_T.shape)} and {list(weight_T.shape)}"
        raise ValueError(f"logits, labels and weights must have the same shape, got {shapes}")
    scale_T = weight_T / (z_T.numel() if total is None else total)
    # logaddexp is accurate for large |z|, where torch's softplus switches to a linear function.
    zero_T, y_T = torch.zeros_like(z_T), label_T.clamp(0, 1)
    loss_T = (1 - y_T) * torch.logaddexp(z_T, zero_T) + y_T * torch.logaddexp(-z_T, zero_T)
    return (scale_T * loss_T).sum(), scale_T


def count(label_T: Tensor, weight_T: Tensor) -> dict[str, Any]:
    """The divisor of the loss, as a keyword argument of forward; pass each micro-batch the sum over all of them."""
    return dict(total=label_T.numel())


def backward(dloss: Tensor, saved: Tensor, z_T: Tensor, label_T: Tensor) -> Tensor:
    """Returns dz_T."""
    return dloss * saved * (torch.sigmoid(z_T) - label_T.clamp(0, 1))


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    label_T = torch.randint(-1, 3, (sizes["T"],), generator=generator).double()
    weight_T = torch.randint(1, 9, (sizes["T"],), generator=generator).double()
    return dict(label=label_T, weight=weight_T)


def _saturated(generator: torch.Generator) -> Example:
    z_T = torch.tensor([60.0, -60.0, 900.0, -900.0, 5.0]).double()
    label_T = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5]).double()
    return Example("saturated", dict(z=z_T, label=label_T, weight=torch.ones(5).double()))


CONTRACT = Contract(
    shapes="z[T] label[T] weight[T] -> loss[]",
    sizes=dict(T=(1, 2, 7, 64)),
    grads=("z",),
    draw=_draw,
    options=({}, dict(total=100.0)),
    edges=(_saturated,),
)
