"""The quality loss: cross-entropy on the outcome plus mean squared error on the metrics.

    L = cross_entropy(y[:, :C], outcome) + λ·mse(y[:, C:], metrics);   dy concatenates the two gradients

The target is the pair (outcome_T, metrics_TM); C = O − M. For an accumulated batch, `total` is its number of rows and
`weight_total` its sum of class weights.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Contract, Example
from gradproof.ops import cross_entropy, mse


class Saved(NamedTuple):
    scale_T: Tensor
    scaled_TM: Tensor


def forward(
    y_TO: Tensor,
    outcome_T: Tensor,
    metrics_TM: Tensor,
    weight: float = 1.0,
    class_weight_C: Tensor | None = None,
    total: float | None = None,
    weight_total: Tensor | float | None = None,
) -> tuple[Tensor, Saved]:
    """The loss; `weight` is λ and `class_weight_C` are the class weights."""
    C, M = y_TO.shape[1] - metrics_TM.shape[1], metrics_TM.shape[1]
    if C < 2:
        raise ValueError(f"{y_TO.shape[1]} outputs cannot hold {M} metrics and at least two outcomes")
    outcome, scale_T = cross_entropy.forward(
        y_TO[:, :C], outcome_T, class_weight_C, total if class_weight_C is None else weight_total
    )
    metrics, scaled_TM = mse.forward(y_TO[:, C:], metrics_TM, total=None if total is None else total * M)
    return outcome + weight * metrics, Saved(scale_T, scaled_TM)


def count(outcome_T: Tensor, metrics_TM: Tensor, class_weight_C: Tensor | None = None) -> dict[str, Any]:
    """The divisors of the loss, as keyword arguments of forward; pass each micro-batch the sum over all of them."""
    return dict(total=outcome_T.shape[0], weight_total=cross_entropy.count(outcome_T, class_weight_C)["total"])


def backward(dloss: Tensor, saved: Saved, y_TO: Tensor, outcome_T: Tensor, weight: float = 1.0) -> Tensor:
    """Returns dy_TO."""
    C = y_TO.shape[1] - saved.scaled_TM.shape[1]
    dz_TC = cross_entropy.backward(dloss, saved.scale_T, y_TO[:, :C], outcome_T)
    return torch.cat([dz_TC, mse.backward(dloss * weight, saved.scaled_TM)], 1)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    outcome_T = torch.randint(sizes["O"] - sizes["M"], (sizes["T"],), generator=generator)
    return dict(outcome=outcome_T, metrics=torch.rand(sizes["T"], sizes["M"], generator=generator).double())


def _weighted(generator: torch.Generator) -> Example:
    """Class weights on part of a batch: the outcomes are divided by the weights, the metrics by the rows."""
    y_TO, metrics_TM = torch.randn(9, 7, generator=generator).double(), torch.rand(9, 3, generator=generator).double()
    class_weight_C = torch.tensor([0.5, 2.0, 1.0, 3.0]).double()
    options = dict(weight=0.3, class_weight=class_weight_C, total=20.0, weight_total=31.0)
    return Example("class weights", dict(y=y_TO, outcome=torch.arange(9) % 4, metrics=metrics_TM), options)


CONTRACT = Contract(
    shapes="y[T,O] outcome[T] metrics[T,M] -> loss[]",
    sizes=dict(T=(1, 2, 7, 33), O=(11, 20), M=(1, 8)),
    grads=("y",),
    draw=_draw,
    options=({}, dict(weight=0.3), dict(weight=2.0, total=50.0)),
    edges=(_weighted,),
)
