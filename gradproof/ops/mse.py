"""Mean squared error.

L = Σ (y − t)²/n,  n = the number of entries or the given total;   dy = dL·2(y − t)/n
"""

from typing import Any

from torch import Tensor

from gradproof.contract import Contract


def forward(y_TM: Tensor, target_TM: Tensor, total: float | None = None) -> tuple[Tensor, Tensor]:
    """The loss; `saved` is (y − t)/n."""
    if y_TM.shape != target_TM.shape:
        raise ValueError(f"target must be {list(y_TM.shape)} like the output, got {list(target_TM.shape)}")
    error_TM = y_TM - target_TM
    scaled_TM = error_TM / (y_TM.numel() if total is None else total)
    return (error_TM * scaled_TM).sum(), scaled_TM


def count(target_TM: Tensor) -> dict[str, Any]:
    """The divisor of the loss, as a keyword argument of forward; pass each micro-batch the sum over all of them."""
    return dict(total=target_TM.numel())


def backward(dloss: Tensor, saved: Tensor) -> Tensor:
    """Returns dy_TM."""
    return dloss * 2 * saved


CONTRACT = Contract(
    shapes="y[T,M] target[T,M] -> loss[]",
    sizes=dict(T=(1, 2, 7, 64), M=(1, 3, 8)),
    grads=("y",),
    options=({}, dict(total=1000.0)),
)
