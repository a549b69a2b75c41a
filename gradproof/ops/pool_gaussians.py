"""Pooled Gaussians: combines an ensemble's predictions of a number into the moments of their mixture.

    z_m = (μ_m, s_m),  σ_m = exp clamp(s_m);   μ = 1/M Σ μ_m,  σ² = 1/M Σ (σ_m² + (μ_m − μ)²);   y = (μ, log σ)
    dμ_m = (dy_0 + dy_1·(μ_m − μ)/σ²)/M;   ds_m = dy_1·σ_m²/(M·σ²) inside the clamp, else 0

The disagreement of the members adds to the variance.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.ops.gaussian import HIGH, LOW, inside


class Saved(NamedTuple):
    off_MT: Tensor  # μ_m − μ
    variance_T: Tensor  # σ²


def forward(z_MTO: Tensor) -> tuple[Tensor, Saved]:
    """y_TO, the mean and log standard deviation of the mixture."""
    mean_MT = z_MTO[..., 0]
    mean_T = mean_MT.mean(0)
    off_MT = mean_MT - mean_T
    variance_T = ((2 * z_MTO[..., 1].clamp(LOW, HIGH)).exp() + off_MT * off_MT).mean(0)
    return torch.stack([mean_T, variance_T.log() / 2], -1), Saved(off_MT, variance_T)


def backward(dy_TO: Tensor, saved: Saved, z_MTO: Tensor) -> Tensor:
    """Returns dz_MTO."""
    M, s_MT = len(z_MTO), z_MTO[..., 1]
    share_T = dy_TO[:, 1] / (M * saved.variance_T)
    ds_MT = share_T * (2 * s_MT.clamp(LOW, HIGH)).exp() * inside(s_MT)
    return torch.stack([dy_TO[:, 0] / M + share_T * saved.off_MT, ds_MT], -1)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    return dict(z=torch.randn((sizes["M"], sizes["T"], 2), generator=generator, dtype=torch.float64))


def _apart(generator: torch.Generator) -> Example:
    """Members that are confident, that disagree, and that lie beyond the clamp."""
    z_MTO = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    z_MTO[:, 1] = torch.tensor([[-3.0, -9.0], [0.0, -4.0], [3.0, 7.0]])
    z_MTO[:, 2] = torch.tensor([[1.0, -4.0], [1.0, -4.5], [1.0, -9.0]])  # all agree
    return Example("sure and apart", dict(z=z_MTO))


def _no_surer(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """The variance of the mixture is at least the mean variance of its members, and its mean lies between theirs."""
    z_MTO, y_TO = example.arguments["z"], outputs[0]
    variance_T = (2 * z_MTO[..., 1].clamp(LOW, HIGH)).exp().mean(0)
    short_T = (variance_T.log() / 2 - y_TO[:, 1]).clamp(min=0)
    beyond_T = (z_MTO[..., 0].amin(0) - y_TO[:, 0]).clamp(min=0) + (y_TO[:, 0] - z_MTO[..., 0].amax(0)).clamp(min=0)
    return float(torch.maximum(short_T, beyond_T).max()), torch.finfo(y_TO.dtype).eps * 64


CONTRACT = Contract(
    shapes="z[M,T,O] -> y[T,O]",
    sizes=dict(M=(1, 2, 5), T=(1, 7, 33)),
    grads=("z",),
    draw=_draw,
    claims=(*EVERY_OP, equivariant("M"), Claim("conserves", check=_no_surer)),
    edges=(_apart,),
)
