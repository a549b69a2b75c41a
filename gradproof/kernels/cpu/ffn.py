"""Linear → GELU → Linear, bias and GELU in one pass each way; only h is kept. See ops/ffn.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready
from gradproof.ops import linear
from gradproof.ops.ffn import Grads

Saved = tuple[Tensor, Tensor]


def forward(x_TD: Tensor, w1_FD: Tensor, b1_F: Tensor, w2_DF: Tensor, b2_D: Tensor) -> tuple[Tensor, Saved]:
    """y_TD; h_TF is kept without its bias, and the bias beside it."""
    h_TF, b1_F = ready(x_TD @ w1_FD.T), ready(b1_F, w1_FD.shape[:1])
    a_TF = torch.empty_like(h_TF)
    library().ffn_forward(h_TF.data_ptr(), b1_F.data_ptr(), *h_TF.shape, a_TF.data_ptr(), torch.get_num_threads())
    return linear.forward(a_TF, w2_DF, b2_D)[0], (h_TF, b1_F)


def backward(
    dy_TD: Tensor,
    saved: Saved,
    x_TD: Tensor,
    w1_FD: Tensor,
    w2_DF: Tensor,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    accumulate: bool = False,
) -> Grads:
    """The parameters' gradients are written to `out` where given, or added to it. The activation takes h's place."""
    w1, w2 = (None, None) if out is None else (out[0], out[2:])
    h_TF, b1_F = saved
    dh_TF, db1_F = ready(linear.input_gradient(dy_TD, w2_DF), h_TF.shape), torch.empty_like(b1_F)
    pointers = (dh_TF.data_ptr(), h_TF.data_ptr(), b1_F.data_ptr())
    library().ffn_backward(*pointers, *h_TF.shape, db1_F.data_ptr(), torch.get_num_threads())
    dw2_DF, db2_D = linear.parameter_gradients(dy_TD, h_TF, w2, accumulate)
    dw1_FD = linear.weight_gradient(dh_TF, x_TD, w1, accumulate)
    if out is not None:
        db1_F = out[1].add_(db1_F) if accumulate else out[1].copy_(db1_F)
    return Grads(linear.input_gradient(dh_TF, w1_FD), dw1_FD, db1_F, dw2_DF, db2_D)
