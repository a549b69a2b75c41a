"""The K largest entries of each row, in descending order; ties go to the lower index (`torch.topk` guarantees no
order).

y_k = x[S_k];   dx = scatter of dy to S
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant


class Saved(NamedTuple):
    index_TK: Tensor
    experts: int


def forward(x_TE: Tensor, k: int) -> tuple[Tensor, Saved]:
    """The values y_TK; `saved` holds their indices. Raises ValueError for k outside 1..E."""
    experts = x_TE.shape[-1]
    if not 1 <= k <= experts:
        raise ValueError(f"k = {k}: k must be between 1 and E = {experts}")
    value_TE, index_TE = torch.sort(x_TE, dim=-1, descending=True, stable=True)
    return value_TE[:, :k], Saved(index_TE[:, :k].contiguous(), experts)


def backward(dy_TK: Tensor, saved: Saved) -> Tensor:
    """Returns dx_TE, zero off S."""
    return dy_TK.new_zeros(dy_TK.shape[0], saved.experts).scatter_(1, saved.index_TK, dy_TK)


def _chosen(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """Exactly K distinct indices per row, the lowest on a tie; compared with a plain sort of (−value, index)."""
    x_TE, k = example.arguments["x"], example.options["k"]
    index_TK = forward(x_TE, k)[1].index_TK.tolist()
    wrong = 0
    for row, chosen in zip(x_TE.tolist(), index_TK, strict=True):
        wrong += chosen != sorted(range(len(row)), key=lambda e, row=row: (-row[e], e))[:k]
    return float(wrong), 0.0


def _ties(generator: torch.Generator) -> Example:
    """Rows with equal entries, one of them constant."""
    x_TE = torch.randint(0, 2, (8, 6), generator=generator).to(torch.float64)
    x_TE[0] = 1.0
    return Example("ties", dict(x=x_TE), dict(k=3), smooth=False)


CONTRACT = Contract(
    shapes="x[T,E] -> y[T,K]",
    sizes=dict(T=(1, 2, 7, 64), E=(4, 5, 33)),
    grads=("x",),
    options=(dict(k=1), dict(k=2), dict(k=4)),
    claims=(*EVERY_OP, equivariant("T"), Claim("conserves", check=_chosen)),
    edges=(_ties,),
)
