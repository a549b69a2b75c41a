"""The Gaussian loss: a number predicted as a mean and a log standard deviation.

    y = (m, s),  l = clamp(s, LOW, HIGH) = log σ,  z = (m − t)/σ
    L = Σ (l + z²/2 + ½ log 2π)/n,  n = the number of rows or the given total
    dm = dL·z/(σ·n);   ds = dL·(1 − z²)/n where LOW < s < HIGH, else 0

The target is standardised, so σ is relative to its standard deviation. Without the lower limit, a row that is fitted
exactly would make the loss and the gradient of its mean unbounded.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs

LOW, HIGH = -5.0, 5.0  # of log σ: from 0.7% to 148 times the target's standard deviation
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Saved(NamedTuple):
    z_T: Tensor
    scale_T: Tensor  # 1/n


def forward(y_TO: Tensor, target_T: Tensor, total: float | None = None) -> tuple[Tensor, Saved]:
    """The mean negative log likelihood."""
    if y_TO.dim() != 2 or y_TO.shape[1] != 2:
        raise ValueError(f"the output must be [rows, 2], mean and log standard deviation, got {list(y_TO.shape)}")
    if target_T.shape != y_TO.shape[:1]:
        raise ValueError(f"target must be {list(y_TO.shape[:1])}, one number per row, got {list(target_T.shape)}")
    l_T = y_TO[:, 1].clamp(LOW, HIGH)
    z_T = (y_TO[:, 0] - target_T) * (-l_T).exp()
    scale_T = torch.full_like(z_T, 1 / (len(z_T) if total is None else total))
    return ((l_T + z_T * z_T / 2 + HALF_LOG_2PI) * scale_T).sum(), Saved(z_T, scale_T)


def count(target_T: Tensor) -> dict[str, Any]:
    """The divisor of the loss, as a keyword argument of forward; pass each micro-batch the sum over all of them."""
    return dict(total=target_T.shape[0])


def backward(dloss: Tensor, saved: Saved, y_TO: Tensor) -> Tensor:
    """Returns dy_TO."""
    z_T, d_T = saved.z_T, dloss * saved.scale_T
    dm_T = d_T * z_T * (-y_TO[:, 1].clamp(LOW, HIGH)).exp()
    return torch.stack([dm_T, d_T * (1 - z_T * z_T) * inside(y_TO[:, 1])], 1)


def inside(s_T: Tensor) -> Tensor:
    """The derivative of the clamp: 1 between its limits, else 0."""
    return ((s_T > LOW) & (s_T < HIGH)).to(s_T.dtype)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    shape = (sizes["T"], 2)
    return dict(
        y=torch.randn(shape, generator=generator, dtype=torch.float64),
        target=torch.randn(sizes["T"], generator=generator, dtype=torch.float64),
    )


def _clamped(generator: torch.Generator) -> Example:
    """Log standard deviations beyond both limits of the clamp, and one between them."""
    y_TO = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    y_TO[:, 1] = torch.tensor([-9.0, 9.0, 0.5, -5.5, 5.5])
    # As close to the mean as rows below the limit are in training. Further away, the differences of z² would swamp the
    # other rows.
    target_T = y_TO[:, 0] + 0.01 * torch.randn(5, generator=generator, dtype=torch.float64)
    return Example("beyond the clamp", dict(y=y_TO, target=target_T))


def _flat_outside(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """Outside the clamp, the log standard deviation has exactly zero gradient."""
    dy_TO = grads["y"]
    assert dy_TO is not None
    outside_T = inside(example.arguments["y"][:, 1]) == 0
    return float((dy_TO[outside_T, 1] != 0).sum() + (~dy_TO.isfinite()).sum()), 0.0


CONTRACT = Contract(
    shapes="y[T,O] target[T] -> loss[]",
    sizes=dict(T=(1, 2, 7, 33)),
    grads=("y",),
    draw=_draw,
    options=({}, dict(total=50.0)),
    claims=(*EVERY_OP, Claim("conserves", check=_flat_outside)),
    edges=(_clamped,),
)
