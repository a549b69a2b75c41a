"""Softmax over the last axis, stable.

p = exp(z − max z)/Σ exp(z − max z)
dz = p·(dp − ⟨p, dp⟩)
"""

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant


def forward(z_TE: Tensor) -> tuple[Tensor, Tensor]:
    """p_TE, which is also `saved`."""
    p_TE = torch.softmax(z_TE, -1)
    return p_TE, p_TE


def backward(dp_TE: Tensor, saved: Tensor) -> Tensor:
    """Returns dz_TE. `saved` is the unmasked p."""
    return saved * (dp_TE - (saved * dp_TE).sum(-1, keepdim=True))


def _rows_sum_to_one(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    (p_TE,) = outputs
    return float((p_TE.sum(-1) - 1).abs().max()), torch.finfo(p_TE.dtype).eps * (2 + p_TE.shape[-1])


def _huge(generator: torch.Generator) -> Example:
    """Logits that overflow exp unless the maximum is subtracted first."""
    z_TE = 800 + 3 * torch.randn(4, 5, generator=generator, dtype=torch.float64)
    z_TE[1] = -z_TE[1]
    return Example("huge logits", dict(z=z_TE))


CONTRACT = Contract(
    shapes="z[T,E] -> p[T,E]",
    sizes=dict(T=(1, 2, 7, 64), E=(2, 3, 4, 33)),
    grads=("z",),
    claims=(*EVERY_OP, equivariant("T"), equivariant("E"), Claim("conserves", check=_rows_sum_to_one)),
    edges=(_huge,),
)
