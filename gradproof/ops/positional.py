"""Learned positions: adds a vector for each position of the sequence.

    y_bs = x_bs + p_s;   dx = dy;   dp_s = Σ_b dy_bs, and 0 for positions beyond S

Letters: C positions, the longest sequence that the table supports.
"""

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant


def forward(x_BSD: Tensor, p_CD: Tensor) -> tuple[Tensor, None]:
    """y_BSD; S is at most C."""
    S, C = x_BSD.shape[1], p_CD.shape[0]
    if S > C:
        raise ValueError(f"a sequence of {S} tokens exceeds the model's {C} positions")
    return x_BSD + p_CD[:S], None


def backward(dy_BSD: Tensor, saved: None, p_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Returns dx_BSD, dp_CD."""
    dp_CD = torch.zeros_like(p_CD)
    dp_CD[: dy_BSD.shape[1]] = dy_BSD.sum(0)
    return dy_BSD, dp_CD


def _beyond(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """Positions that no sequence reaches have exactly zero gradient."""
    dp_CD = grads["p"]
    assert dp_CD is not None
    return float((dp_CD[outputs[0].shape[1] :] != 0).sum()), 0.0


CONTRACT = Contract(
    shapes="x[B,S,D] p[C,D] -> y[B,S,D]",
    sizes=dict(B=(1, 2, 7), S=(1, 2, 5), C=(5, 9), D=(1, 4, 33)),
    grads=("x", "p"),
    parameters=("p",),
    claims=(*EVERY_OP, equivariant("B"), Claim("zero_rows_safe", check=_beyond)),
)
