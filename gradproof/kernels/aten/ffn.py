"""Linear → GELU → Linear with torch's GELU, one pass over memory each way. See ops/ffn.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.ops import linear
from gradproof.ops.ffn import Grads

gelu, gelu_backward = torch.ops.aten.gelu, torch.ops.aten.gelu_backward


def forward(x_TD: Tensor, w1_FD: Tensor, b1_F: Tensor, w2_DF: Tensor, b2_D: Tensor) -> tuple[Tensor, tuple]:
    """y_TD; h_TF and its activation are kept."""
    h_TF, _ = linear.forward(x_TD, w1_FD, b1_F)
    a_TF = gelu(h_TF, approximate="tanh")
    return linear.forward(a_TF, w2_DF, b2_D)[0], (h_TF, a_TF)


def backward(
    dy_TD: Tensor,
    saved: tuple[Tensor, Tensor],
    x_TD: Tensor,
    w1_FD: Tensor,
    w2_DF: Tensor,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    accumulate: bool = False,
) -> Grads:
    """The parameters' gradients are written to `out` where given, or added to it."""
    first, second = (None, None) if out is None else (out[:2], out[2:])
    h_TF, a_TF = saved
    dw2_DF, db2_D = linear.parameter_gradients(dy_TD, a_TF, second, accumulate)
    dh_TF = gelu_backward(linear.input_gradient(dy_TD, w2_DF), h_TF, approximate="tanh")
    dw1_FD, db1_F = linear.parameter_gradients(dh_TF, x_TD, first, accumulate)
    return Grads(linear.input_gradient(dh_TF, w1_FD), dw1_FD, db1_F, dw2_DF, db2_D)
