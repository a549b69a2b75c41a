"""Bias, LayerNorm and GELU over the last axis: applied after each product of an expert.

x = h + b,  n = LayerNorm(x; γ, β),  y = GELU(n) where active, else n
dn = GELU′(n)·dy,  dh = LayerNorm's dx,  db = Σ_T dh,  dγ = Σ_T dn·x̂,  dβ = Σ_T dn

One pass over memory each way: besides dy, the backward reads only h and recomputes n and the statistics from it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, Example, equivariant
from gradproof.ops import gelu, layernorm, wide


class Grads(NamedTuple):
    dh_TH: Tensor
    db_H: Tensor
    dgamma_H: Tensor
    dbeta_H: Tensor


def forward(h_TH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor, activate: bool = True) -> tuple[Tensor, None]:
    """y_TH in the dtype of h_TH; intermediate values are at least fp32."""
    n_TH, _ = layernorm.forward(wide(h_TH) + b_H, gamma_H, beta_H)
    return (gelu.forward(n_TH)[0] if activate else n_TH).to(h_TH.dtype), None


def backward(
    dy_TH: Tensor, saved: None, h_TH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor, activate: bool = True
) -> Grads:
    """dh_TH in the dtype of h_TH; parameter gradients in the dtype of the parameters."""
    x_TH = wide(h_TH) + b_H
    n_TH, stats = layernorm.forward(x_TH, gamma_H, beta_H)
    dn_TH = gelu.backward(wide(dy_TH), None, n_TH) if activate else wide(dy_TH)
    dh_TH, dgamma_H, dbeta_H = layernorm.backward(dn_TH, stats, x_TH, gamma_H)
    return Grads(dh_TH.to(h_TH.dtype), dh_TH.sum(0), dgamma_H, dbeta_H)


def narrowed(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A call in bf16 or fp16: h is low-precision, the parameters are not."""
    return {**arguments, "h": arguments["h"].to(dtype)}


def _example(label: str, h_TH: Tensor, generator: torch.Generator, **options: Any) -> Example:
    b_H, gamma_H, beta_H = torch.randn(3, h_TH.shape[1], generator=generator, dtype=torch.float64)
    return Example(label, dict(h=h_TH, b=b_H, gamma=gamma_H, beta=beta_H), options)


def _large_mean(generator: torch.Generator) -> Example:
    """A mean far above the standard deviation: a variance computed as E[x²] − E[x]² would cancel."""
    return _example("mean far above the spread", 30 + torch.randn(6, 8, generator=generator).double(), generator)


def _tails(generator: torch.Generator) -> Example:
    """Pre-activations from one saturated tail to the other, in rows of small and of large variance."""
    scale_T1 = torch.tensor([[1e-3], [1.0], [40.0]], dtype=torch.float64)
    return _example("tails", scale_T1 * torch.randn(3, 33, generator=generator).double(), generator)


CONTRACT = Contract(
    shapes="h[T,H] b[H] gamma[H] beta[H] -> y[T,H]",
    sizes=dict(T=(1, 2, 7, 64), H=(2, 3, 8, 129)),
    grads=("h", "b", "gamma", "beta"),
    parameters=("b", "gamma", "beta"),
    claims=(*EVERY_OP, equivariant("T")),
    options=(dict(activate=True), dict(activate=False)),
    edges=(_large_mean, _tails),
)
