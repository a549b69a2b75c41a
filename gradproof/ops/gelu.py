"""GELU, tanh form. The exact form is a separate op (`gelu_erf`); the two differ by up to 5e-4 and are never mixed.

y = ½x(1 + tanh v),  v = √(2/π)(x + a·x³),  a = 0.044715
dx = dy·(½(1 + tanh v) + ½x(1 − tanh² v)·√(2/π)(1 + 3a·x²))
"""

import math

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, Example, equivariant
from gradproof.ops import wide

SCALE = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def forward(x_TD: Tensor) -> tuple[Tensor, None]:
    """y_TD; backward recomputes tanh v from x."""
    dtype, x_TD = x_TD.dtype, wide(x_TD)
    return (0.5 * x_TD * (1 + torch.tanh(SCALE * (x_TD + CUBIC * x_TD**3)))).to(dtype), None


def backward(dy_TD: Tensor, saved: None, x_TD: Tensor) -> Tensor:
    """Returns dx_TD."""
    # For |x| > 10, tanh v is ±1 in every precision, but x² may overflow, and 0·∞ would be NaN.
    x_TD = wide(x_TD).clamp(-10, 10)
    tanh_TD = torch.tanh(SCALE * (x_TD + CUBIC * x_TD**3))
    dv_TD = SCALE * (1 + 3 * CUBIC * x_TD**2)
    return (wide(dy_TD) * 0.5 * ((1 + tanh_TD) + x_TD * (1 - tanh_TD**2) * dv_TD)).to(dy_TD.dtype)


def _wide(generator: torch.Generator) -> Example:
    """From one saturated tail to the other."""
    return Example("tails", dict(x=torch.linspace(-6, 6, 49, dtype=torch.float64).reshape(7, 7)))


CONTRACT = Contract(
    shapes="x[T,D] -> y[T,D]",
    sizes=dict(T=(1, 2, 7, 64), D=(1, 3, 8, 129)),
    grads=("x",),
    claims=(*EVERY_OP, equivariant("T")),
    edges=(_wide,),
)
