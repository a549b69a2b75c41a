"""Masked mean over the tokens of a sequence.

    y_b = Σ_s m_bs·x_bs/n_b,  n_b = Σ_s m_bs;   dx_bs = m_bs·dy_b/n_b

A sequence that is all padding gives zeros.
"""

from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.ops import wide


def forward(x_BSD: Tensor, mask_BS: Tensor) -> tuple[Tensor, None]:
    """y_BD."""
    return (x_BSD * share(mask_BS, x_BSD)).sum(1), None


def backward(dy_BD: Tensor, saved: None, mask_BS: Tensor) -> Tensor:
    """Returns dx_BSD."""
    return dy_BD[:, None] * share(mask_BS, dy_BD)


def share(mask_BS: Tensor, like: Tensor) -> Tensor:
    """share_BS1: m_bs/n_b."""
    m_BS = mask_BS.to(wide(like).dtype)
    return (m_BS / m_BS.sum(1, keepdim=True).clamp(min=1))[..., None]


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    lengths_B = torch.randint(0, sizes["S"] + 1, (sizes["B"],), generator=generator)
    return dict(mask=torch.arange(sizes["S"]) < lengths_B[:, None])


def _holes(generator: torch.Generator) -> Example:
    """Padding between tokens, only padding, and no padding."""
    mask_BS = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    return Example("holes", dict(x=torch.randn(3, 4, 5, generator=generator, dtype=torch.float64), mask=mask_BS))


def _unseen(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """Padding has no gradient, and a sequence that is all padding pools to zero."""
    mask_BS, dx_BSD = example.arguments["mask"], grads["x"]
    assert dx_BSD is not None
    return float((dx_BSD[~mask_BS] != 0).sum() + (outputs[0][~mask_BS.any(1)] != 0).sum()), 0.0


def _mean(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """The weights of a sequence sum to 1: each output is the mean of the unmasked tokens."""
    x_BSD, mask_BS = example.arguments["x"], example.arguments["mask"]
    means = [x_SD[mask_S].mean(0) for x_SD, mask_S in zip(x_BSD, mask_BS, strict=True) if mask_S.any()]
    off = [float((y - mean).abs().max()) for y, mean in zip(outputs[0][mask_BS.any(1)], means, strict=True)]
    return max(off, default=0.0), 8 * torch.finfo(outputs[0].dtype).eps * float(x_BSD.abs().max())


CONTRACT = Contract(
    shapes="x[B,S,D] mask[B,S] -> y[B,D]",
    sizes=dict(B=(1, 2, 5), S=(1, 3, 8), D=(1, 4, 17)),
    grads=("x",),
    draw=_draw,
    claims=(
        *(*EVERY_OP, equivariant("B"), equivariant("S")),
        Claim("conserves", check=_mean),
        Claim("zero_rows_safe", check=_unseen),
    ),
    edges=(_holes,),
)
