"""Feed-forward layer of a transformer: Linear → GELU → Linear.

    h = x W₁ᵀ + b₁,  a = GELU(h),  y = a W₂ᵀ + b₂
    da = dy W₂,  dh = GELU′(h)·da,  dx = dh W₁;  dW₂ = dyᵀa,  dW₁ = dhᵀx,  db = Σ_T of dy and of dh

The backward keeps only h and recomputes the activation from it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, Example, equivariant
from gradproof.ops import gelu, linear


class Grads(NamedTuple):
    dx_TD: Tensor
    dw1_FD: Tensor
    db1_F: Tensor
    dw2_DF: Tensor
    db2_D: Tensor


def forward(x_TD: Tensor, w1_FD: Tensor, b1_F: Tensor, w2_DF: Tensor, b2_D: Tensor) -> tuple[Tensor, Tensor]:
    """y_TD; `saved` is h_TF, in the dtype of x_TD."""
    h_TF, _ = linear.forward(x_TD, w1_FD, b1_F)
    return linear.forward(gelu.forward(h_TF)[0], w2_DF, b2_D)[0], h_TF


def backward(
    dy_TD: Tensor,
    saved: Tensor,
    x_TD: Tensor,
    w1_FD: Tensor,
    w2_DF: Tensor,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    accumulate: bool = False,
) -> Grads:
    """If `out` is given, the parameter gradients are written or added to it."""
    first, second = (None, None) if out is None else (out[:2], out[2:])
    a_TF, _ = gelu.forward(saved)
    dw2_DF, db2_D = linear.parameter_gradients(dy_TD, a_TF, second, accumulate)
    dh_TF = gelu.backward(linear.input_gradient(dy_TD, w2_DF), None, saved)
    dw1_FD, db1_F = linear.parameter_gradients(dh_TF, x_TD, first, accumulate)
    return Grads(linear.input_gradient(dh_TF, w1_FD), dw1_FD, db1_F, dw2_DF, db2_D)


def narrowed(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A call in bf16 or fp16: all operands of the products are low-precision."""
    return {name: value.to(dtype) if isinstance(value, Tensor) else value for name, value in arguments.items()}


def _tails(generator: torch.Generator) -> Example:
    """Pre-activations from one saturated tail of GELU to the other."""
    x_TD, w1_FD = torch.randn(9, 4, generator=generator).double(), 3 * torch.randn(6, 4, generator=generator).double()
    w2_DF, b1_F, b2_D = (torch.randn(shape, generator=generator).double() for shape in ((4, 6), (6,), (4,)))
    return Example("tails", dict(x=x_TD, w1=w1_FD, b1=b1_F, w2=w2_DF, b2=b2_D))


CONTRACT = Contract(
    shapes="x[T,D] w1[F,D] b1[F] w2[D,F] b2[D] -> y[T,D]",
    sizes=dict(T=(1, 2, 7, 33), D=(1, 3, 8, 32), F=(1, 5, 12, 64)),
    grads=("x", "w1", "b1", "w2", "b2"),
    parameters=("w1", "b1", "w2", "b2"),
    out=("w1", "b1", "w2", "b2"),
    claims=(*EVERY_OP, equivariant("T")),
    edges=(_tails,),
)
