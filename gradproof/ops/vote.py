"""Vote: combines the members of an ensemble by the mean of their probabilities, as logits.

    l_m = log softmax(z_m) over the first C outputs;   y_c = log(1/M Σ_m exp l_mc)
    r_mc = exp(l_mc − y_c)/M, the share of member m in class c
    dl_mc = r_mc·dy_c;   dz_m = dl_m − softmax(z_m)·Σ_c dl_mc
    outputs after the first C are numbers: their mean

softmax(y) is the mean of the members' probabilities, so code that reads logits can use an ensemble like any model.
"""

import math
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant


def forward(z_MTO: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """y_TO, and l_MTC, which the backward needs."""
    l_MTC = torch.log_softmax(z_MTO[..., :classes], -1)
    y_TC = torch.logsumexp(l_MTC, 0) - math.log(len(z_MTO))
    return torch.cat([y_TC, z_MTO[..., classes:].mean(0)], -1), l_MTC


def backward(dy_TO: Tensor, saved: Tensor, z_MTO: Tensor, classes: int) -> Tensor:
    """Returns dz_MTO."""
    M, dy_TC = len(z_MTO), dy_TO[:, :classes]
    dl_MTC = torch.softmax(saved, 0) * dy_TC
    dz_MTC = dl_MTC - saved.exp() * dl_MTC.sum(-1, keepdim=True)
    return torch.cat([dz_MTC, (dy_TO[:, classes:] / M).expand(M, -1, -1)], -1)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    shape = (sizes["M"], sizes["T"], options["classes"] + sizes["N"])
    return dict(z=2 * torch.randn(shape, generator=generator, dtype=torch.float64))


def _sure(generator: torch.Generator) -> Example:
    """Members that are certain and disagree: the probability of a class may underflow in float32."""
    z_MTO = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
    z_MTO[0, 1] = torch.tensor([900.0, 0.0, -900.0])
    z_MTO[1, 1] = torch.tensor([-900.0, 0.0, 900.0])
    return Example("sure and of two minds", dict(z=z_MTO), dict(classes=3))


def _sums_to_one(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """The probabilities of a row sum to 1."""
    y_TC = outputs[0][:, : example.options["classes"]]
    return float((y_TC.exp().sum(-1) - 1).abs().max()), torch.finfo(y_TC.dtype).eps * (16 + 4 * y_TC.shape[-1])


CONTRACT = Contract(
    shapes="z[M,T,O] -> y[T,O]",
    sizes=dict(M=(1, 2, 5), T=(1, 7, 33), N=(0, 2)),
    grads=("z",),
    draw=_draw,
    options=(dict(classes=2), dict(classes=7)),
    claims=(*EVERY_OP, equivariant("M"), Claim("conserves", check=_sums_to_one)),
    edges=(_sure,),
)
