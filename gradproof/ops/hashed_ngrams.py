"""A sparse linear layer on a bag of hashed n-grams.

    y_b = Σ_g a_bg·w[gram_bg],  a_bg = s[gram_bg]/√(Σ_g s[gram_bg]²);   dw[n] = Σ_{bg: gram_bg = n} a_bg·dy_b

`gram` holds the ids of a row's distinct n-grams, padded with −1. `s` is the given scale of each n-gram, such as its
inverse document frequency. G is the number of n-grams per row, N the number of ids.
"""

from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant


def forward(gram_BG: Tensor, scale_N: Tensor, w_N: Tensor) -> tuple[Tensor, Tensor]:
    """y_B; `saved` is share_BG, the a of the equation. A row without n-grams gives zero."""
    scale_BG = scale_N[gram_BG.clamp(min=0)] * (gram_BG >= 0)
    norm_B1 = scale_BG.square().sum(1, keepdim=True).sqrt()
    share_BG = scale_BG / norm_B1.clamp(min=torch.finfo(scale_N.dtype).tiny)
    return (share_BG * w_N[gram_BG.clamp(min=0)]).sum(1), share_BG


def backward(dy_B: Tensor, saved: Tensor, gram_BG: Tensor, w_N: Tensor) -> Tensor:
    """Returns dw_N. index_put_ sums duplicates in a fixed order."""
    return torch.zeros_like(w_N).index_put_((gram_BG.clamp(min=0),), saved * dy_B[:, None], accumulate=True)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    """Few ids, so that most occur in several rows, and some padding. The scales resemble those of rare and common
    words.
    """
    gram_BG = torch.randint(-1, sizes["N"], (sizes["B"], sizes["G"]), generator=generator)
    return dict(gram=gram_BG, scale=1 + 4 * torch.rand(sizes["N"], generator=generator, dtype=torch.float64))


def _nothing(generator: torch.Generator) -> Example:
    """A row without n-grams, and one with a single n-gram."""
    gram_BG = torch.tensor([[-1, -1, -1], [-1, 2, -1], [0, 1, 3]])
    arguments = dict(gram=gram_BG, scale=torch.tensor([1.0, 2.0, 0.5, 3.0]).double())
    return Example("a row of nothing", dict(**arguments, w=torch.randn(4, generator=generator, dtype=torch.float64)))


def _unseen(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """An n-gram that does not occur has no gradient; a row without n-grams gives exactly zero."""
    gram_BG, dw_N = example.arguments["gram"], grads["w"]
    assert dw_N is not None
    occurs_N = torch.isin(torch.arange(len(dw_N), device=dw_N.device), gram_BG)
    empty_B = (gram_BG < 0).all(1)
    return float((dw_N[~occurs_N] != 0).sum() + (~dw_N.isfinite()).sum() + (outputs[0][empty_B] != 0).sum()), 0.0


CONTRACT = Contract(
    shapes="gram[B,G] scale[N] w[N] -> y[B]",
    sizes=dict(B=(1, 2, 5), G=(1, 3, 17), N=(1, 2, 9, 64)),
    grads=("w",),
    parameters=("w",),
    draw=_draw,
    claims=(*EVERY_OP, equivariant("B"), equivariant("G"), Claim("zero_rows_safe", check=_unseen)),
    edges=(_nothing,),
)
