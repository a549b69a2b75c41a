"""GELU, exact form.

y = x·Φ(x),  Φ(x) = ½(1 + erf(x/√2))
dx = dy·(Φ(x) + x·φ(x)),  φ(x) = exp(−x²/2)/√(2π)
"""

import math

import torch
from torch import Tensor

from gradproof.contract import Contract
from gradproof.ops import gelu


def forward(x_TD: Tensor) -> tuple[Tensor, None]:
    """y_TD; backward recomputes Φ from x."""
    return x_TD * 0.5 * (1 + torch.erf(x_TD / math.sqrt(2))), None


def backward(dy_TD: Tensor, saved: None, x_TD: Tensor) -> Tensor:
    """Returns dx_TD."""
    cdf_TD = 0.5 * (1 + torch.erf(x_TD / math.sqrt(2)))
    return dy_TD * (cdf_TD + x_TD * torch.exp(-0.5 * x_TD**2) / math.sqrt(2 * math.pi))


CONTRACT: Contract = gelu.CONTRACT
