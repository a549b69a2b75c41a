"""LayerNorm by native_layer_norm. See ops/layernorm.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.ops.layernorm import EPS, Saved


def forward(x_TD: Tensor, gamma_D: Tensor, beta_D: Tensor) -> tuple[Tensor, Saved]:
    """y_TD, and the row statistics."""
    y_TD, mean_T1, rstd_T1 = torch.ops.aten.native_layer_norm(x_TD, gamma_D.shape, gamma_D, beta_D, EPS)
    return y_TD, Saved(mean_T1, rstd_T1)


def backward(dy_TD: Tensor, saved: Saved, x_TD: Tensor, gamma_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dx_TD, dgamma_D, dbeta_D."""
    return torch.ops.aten.native_layer_norm_backward(
        dy_TD.contiguous(), x_TD, gamma_D.shape, saved.mean_T1, saved.rstd_T1, gamma_D, gamma_D, [True, True, True]
    )
