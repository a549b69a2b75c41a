"""LayerNorm over the last axis, biased variance.

x̂ = (x − mean(x))·rstd,  rstd = 1/√(var(x) + eps),  y = x̂·γ + β
dx = rstd/D·(D·dx̂ − Σ dx̂ − x̂·Σ(dx̂·x̂)),  dx̂ = dy·γ;   dγ = Σ_T dy·x̂;   dβ = Σ_T dy
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, Example, equivariant
from gradproof.ops import wide

EPS = 1e-5


class Saved(NamedTuple):
    mean_T1: Tensor
    rstd_T1: Tensor


def forward(x_TD: Tensor, gamma_D: Tensor, beta_D: Tensor) -> tuple[Tensor, Saved]:
    """y_TD in the dtype of x_TD, and the row statistics."""
    dtype, x_TD = x_TD.dtype, wide(x_TD)
    mean_T1 = x_TD.mean(-1, keepdim=True)
    centred_TD = x_TD - mean_T1
    rstd_T1 = (centred_TD.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return (centred_TD * rstd_T1 * gamma_D + beta_D).to(dtype), Saved(mean_T1, rstd_T1)


def backward(dy_TD: Tensor, saved: Saved, x_TD: Tensor, gamma_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dx_TD, dgamma_D, dbeta_D."""
    dtype, dy_TD = dy_TD.dtype, wide(dy_TD)
    xhat_TD = (wide(x_TD) - saved.mean_T1) * saved.rstd_T1
    dxhat_TD = dy_TD * gamma_D
    # Both corrections are means, so they include the 1/D of the formula.
    dx_TD = dxhat_TD - dxhat_TD.mean(-1, keepdim=True) - xhat_TD * (dxhat_TD * xhat_TD).mean(-1, keepdim=True)
    return (dx_TD * saved.rstd_T1).to(dtype), (dy_TD * xhat_TD).sum(0), dy_TD.sum(0)


def _small_variance(generator: torch.Generator) -> Example:
    """Rows whose variance is close to eps, where a wrong eps shows."""
    x_TD = 3e-3 * torch.randn(6, 8, generator=generator, dtype=torch.float64)
    gamma_D, beta_D = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    return Example("variance near eps", dict(x=x_TD, gamma=gamma_D, beta=beta_D))


def _constant_row(generator: torch.Generator) -> Example:
    """Zero variance: rstd is 1/√eps and everything stays finite."""
    x_TD = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    x_TD[1] = 2.5
    gamma_D, beta_D = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    return Example("constant row", dict(x=x_TD, gamma=gamma_D, beta=beta_D))


CONTRACT = Contract(
    shapes="x[T,D] gamma[D] beta[D] -> y[T,D]",
    sizes=dict(T=(1, 2, 7, 64), D=(2, 3, 8, 129)),
    grads=("x", "gamma", "beta"),
    parameters=("gamma", "beta"),
    claims=(*EVERY_OP, equivariant("T")),
    edges=(_small_variance, _constant_row),
)
