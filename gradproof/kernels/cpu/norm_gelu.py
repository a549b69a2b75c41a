"""Bias, LayerNorm and GELU, one pass over memory each way. See ops/norm_gelu.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready
from gradproof.ops.norm_gelu import Grads


def forward(h_TH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor, activate: bool = True) -> tuple[Tensor, None]:
    """y_TH."""
    given = [ready(h_TH), *(ready(vector_H, h_TH.shape[1:]) for vector_H in (b_H, gamma_H, beta_H))]
    y_TH = torch.empty_like(given[0])
    pointers = [tensor.data_ptr() for tensor in given]
    library().norm_gelu_forward(*pointers, activate, *h_TH.shape, y_TH.data_ptr(), torch.get_num_threads())
    return y_TH, None


def backward(
    dy_TH: Tensor, saved: None, h_TH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor, activate: bool = True
) -> Grads:
    """Returns dh_TH, db_H, dgamma_H, dbeta_H."""
    given = [ready(rows_TH, h_TH.shape) for rows_TH in (dy_TH, h_TH)]
    given += [ready(vector_H, h_TH.shape[1:]) for vector_H in (b_H, gamma_H, beta_H)]
    grads = Grads(*(torch.empty_like(tensor) for tensor in given[1:]))
    pointers = [tensor.data_ptr() for tensor in given]
    grad_pointers = [grad.data_ptr() for grad in grads]
    library().norm_gelu_backward(*pointers, activate, *h_TH.shape, *grad_pointers, torch.get_num_threads())
    return grads
