"""Token embedding: looks up rows of a table.

    y_t = w[token_t], zeros for padding;   dw[v] = Σ_{t: token_t = v} dy_t

Token −1 is padding: its output is zero and it has no gradient.
"""

from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant

PADDING = -1


def forward(token_BS: Tensor, w_VD: Tensor) -> tuple[Tensor, None]:
    """y_BSD; backward needs only the arguments."""
    return w_VD[token_BS.clamp(min=0)] * (token_BS >= 0)[..., None], None


def backward(dy_BSD: Tensor, saved: None, token_BS: Tensor, w_VD: Tensor) -> Tensor:
    """Returns dw_VD. index_put_ sums duplicates in a fixed order on every device."""
    dy_BSD = dy_BSD * (token_BS >= 0)[..., None]
    return torch.zeros_like(w_VD).index_put_((token_BS.clamp(min=0),), dy_BSD.to(w_VD.dtype), accumulate=True)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    """A small vocabulary, so that most tokens repeat, and some padding."""
    return dict(token=torch.randint(-1, sizes["V"], (sizes["B"], sizes["S"]), generator=generator))


def _all_one(generator: torch.Generator) -> Example:
    """All positions hold the same token."""
    w_VD = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return Example("one token everywhere", dict(token=torch.full((2, 9), 3), w=w_VD))


def _all_padding(generator: torch.Generator) -> Example:
    w_VD = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return Example("nothing but padding", dict(token=torch.full((2, 3), PADDING), w=w_VD))


def _absent(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """A token that does not occur has exactly zero gradient."""
    dw_VD = grads["w"]
    assert dw_VD is not None
    occurs_V = torch.isin(torch.arange(dw_VD.shape[0], device=dw_VD.device), example.arguments["token"])
    return float((dw_VD[~occurs_V] != 0).sum() + (~dw_VD.isfinite()).sum()), 0.0


CONTRACT = Contract(
    shapes="token[B,S] w[V,D] -> y[B,S,D]",
    sizes=dict(B=(1, 2, 3), S=(1, 5, 16), V=(1, 2, 7), D=(1, 3, 8)),
    grads=("w",),
    parameters=("w",),
    draw=_draw,
    claims=(*EVERY_OP, equivariant("B"), equivariant("S"), Claim("zero_rows_safe", check=_absent)),
    edges=(_all_one, _all_padding),
)
