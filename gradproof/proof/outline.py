"""Judges a layer in bf16 or fp16 by the norms of the rows and columns of its error.

    ‖fast − right‖ ≤ u·‖right‖ + 8σ,  σ of a row of a product ab: √K·u₃₂·‖a_i‖·max‖b_k‖

It takes an eighth of the operations of a judgement number by number, and sees whatever is off by more than a rounding
in a row or a column as a whole: zeros, a wrong scale, a tile that is missing. A few numbers that are a little off it
does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.ops import layernorm, linear, wide
from gradproof.proof.normed import STEEPEST
from gradproof.proof.sizes import UNIT, UNITS, neighbours, norm, one_sign

NORM_UNITS = 8 * UNITS  # units of fp32 that bias, norm and GELU together may be off
FEW = 64  # rows, at least, of which it is seen how many are the same
FLIPS = 2.0  # units of the format: what is rounded in another kernel may have gone the other way

Part = tuple[str, Tensor, Tensor]  # name, ‖fast − right‖, and what it may be


class LayerOutline(NamedTuple):
    """What comes out of the norm below a layer, and of the layer's product, of one expert."""

    w_OI: Tensor
    vectors: tuple[Tensor, Tensor, Tensor]  # bias, γ and β of the norm
    active: bool
    h_nI: Tensor
    dh_nO: Tensor  # of what the product gave

    def parts(
        self, x_nI: Tensor | None, dh_nI: Tensor, out_nO: Tensor, grad: Callable[[str], Tensor]
    ) -> Iterator[Part]:
        """Of what the kernel shows, and of the gradients that it returns: `weight`, `bias`, `gamma` and `beta`."""
        (bias_I, gamma_I, beta_I), format = self.vectors, torch.finfo(self.h_nI.dtype)
        unit, least = format.eps / 2, format.tiny * math.sqrt(max(self.w_OI.shape))
        in_nI = self.h_nI.float().add_(bias_I)
        n_nI, mean_n1, rstd_n1 = torch.native_layer_norm(in_nI, [in_nI.shape[1]], gamma_I, beta_I, layernorm.EPS)
        value_nI = F.gelu(n_nI, approximate="tanh") if self.active else n_nI
        lost_n = NORM_UNITS * UNIT * norm(in_nI, 1) * rstd_n1[:, 0]
        flips = 0.0
        if x_nI is None:
            x_nI, flips = value_nI.to(self.h_nI.dtype), 2 * FLIPS * unit
        else:
            steepest = gamma_I.abs().max() * STEEPEST
            yield "x", norm(x_nI - value_nI, 1), unit * norm(value_nI, 1) + lost_n * steepest + least
        yield from product("h", out_nO, x_nI, self.w_OI.T, FLIPS * unit, flips)
        yield from product("weight", grad("weight"), self.dh_nO.T, x_nI, one_sign(len(x_nI)), flips)

        dx_nI = wide(linear.wide_product(self.dh_nO, self.w_OI).to(self.h_nI.dtype))
        dn_nI = torch.ops.aten.gelu_backward(dx_nI, n_nI, approximate="tanh") if self.active else dx_nI
        right_nI, dgamma_I, dbeta_I = torch.ops.aten.native_layer_norm_backward(
            dn_nI, in_nI, [in_nI.shape[1]], mean_n1, rstd_n1, gamma_I, beta_I, [True, True, True]
        )
        size_n = norm(dn_nI * gamma_I, 1) * rstd_n1[:, 0]
        more_n = (FLIPS * unit + NORM_UNITS * UNIT + lost_n / math.sqrt(in_nI.shape[1])) * size_n
        yield "dh", norm(dh_nI - right_nI, 1), unit * norm(right_nI, 1) + more_n + least
        most_I = torch.linalg.vector_norm((in_nI - mean_n1).mul_(rstd_n1), math.inf, 0)  # |x̂|
        terms_I, same = norm(dn_nI, 0), neighbours(dx_nI[:: max(1, len(dx_nI) // FEW)], len(dx_nI))
        sums = {"bias": (right_nI.sum(0), norm(right_nI, 0)), "gamma": (dgamma_I, most_I * terms_I)}
        for name, (right_I, size_I) in {**sums, "beta": (dbeta_I, terms_I)}.items():
            allowed_I = UNITS * unit * size_I * same**0.5 + one_sign(len(x_nI)) * right_I.abs() + least
            yield name, (grad(name) - right_I).abs(), allowed_I


def product(name: str, fast: Tensor, a: Tensor, b: Tensor, share: float, flips: float) -> Iterator[Part]:
    """a b by rows and by columns. `share` is what each number of it may be off by itself, `flips` what the largest of
    its terms may be."""
    right = linear.wide_product(a, b)
    error, sigma = fast - right, UNITS * math.sqrt(a.shape[1]) * UNIT
    least = torch.finfo(fast.dtype).tiny * math.sqrt(max(right.shape))
    for which, own, other, dim in (("rows", a, b, 1), ("columns", b, a, 0)):
        size = sigma * norm(own, dim)
        if flips:
            size += flips * torch.linalg.vector_norm(own, math.inf, dim)
        allowed = share * norm(right, dim) + size * norm(other, dim).max() + least
        yield f"{name} by {which}", norm(error, dim), allowed
