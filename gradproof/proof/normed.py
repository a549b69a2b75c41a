"""Bias, LayerNorm and GELU of some rows, and σ of every result: what its arithmetic in fp32 may be off by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.ops import gelu, layernorm, wide
from gradproof.proof.sizes import UNIT, norm

FUNCTIONS = 4.0  # units that an elementary function may be off
STEEPEST = 1.13  # slope of a GELU


class NormTrial(NamedTuple):
    """LayerNorm of h + b, and σ of its results: S = rstd·(|x| + rms x), σ_x̂ = u·(S + |x̂|·mean(|x̂|·S) + 2|x̂|)."""

    xhat: Tensor
    rstd: Tensor
    n: Tensor
    gamma: Tensor
    sigma_xhat: Tensor
    sigma_n: Tensor
    spread: Tensor  # relative units of rstd

    @classmethod
    def of(cls, h_nH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor) -> NormTrial:
        x_nH = wide(h_nH) + b_H
        n_nH, (mean_n1, rstd_n1) = layernorm.forward(x_nH, gamma_H, beta_H)
        xhat_nH = (x_nH - mean_n1).mul_(rstd_n1)
        lost_nH = (x_nH.abs() + x_nH.square().mean(1, True).sqrt()).mul_(rstd_n1)
        size_nH = xhat_nH.abs()
        spread_n1 = (size_nH * lost_nH).mean(1, True) + 2
        sigma_xhat = (lost_nH + size_nH * spread_n1).mul_(UNIT)
        sigma_n = sigma_xhat * gamma_H.abs() + UNIT * ((xhat_nH * gamma_H).abs() + n_nH.abs())
        return cls(xhat_nH, rstd_n1, n_nH, gamma_H, sigma_xhat, sigma_n, spread_n1)

    def activated(self, active: bool) -> tuple[Tensor, Tensor]:
        """What follows, and σ of it."""
        y_nH = gelu.forward(self.n)[0] if active else self.n
        return y_nH, STEEPEST * self.sigma_n + FUNCTIONS * UNIT * self.n.abs()

    def backward(
        self, dy_nH: Tensor, sigma_dy: Tensor, active: bool, sums: VectorSums
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dh_nH, σ of it, and what dy itself contributes to it, entry by entry; adds to the parameters' gradients."""
        if active:
            slope_nH = gelu.backward(torch.ones_like(dy_nH), None, self.n)
            sigma_dn = sigma_dy * slope_nH.abs() + dy_nH.abs() * (self.sigma_n + 2 * FUNCTIONS * UNIT)
            dn_nH = dy_nH * slope_nH
        else:
            dn_nH, sigma_dn = dy_nH, sigma_dy
        dxhat_nH, sigma_dxhat = dn_nH * self.gamma, (sigma_dn + UNIT * dn_nH.abs()) * self.gamma.abs()
        size_nH = self.xhat.abs()
        along_nH = dxhat_nH * self.xhat
        mean_n1, along_n1 = dxhat_nH.mean(1, True), along_nH.mean(1, True)
        sigma_mean = _mean_sigma(sigma_dxhat, dxhat_nH)
        sigma_along = _mean_sigma(sigma_dxhat * size_nH, along_nH) + _mean_sigma(dxhat_nH * self.sigma_xhat, along_nH)
        dh_nH = (dxhat_nH - mean_n1 - self.xhat * along_n1).mul_(self.rstd)
        own_nH = dxhat_nH.abs() + mean_n1.abs() + size_nH * along_n1.abs()
        sigma_nH = sigma_dxhat + sigma_mean + size_nH * sigma_along + along_n1.abs() * self.sigma_xhat + UNIT * own_nH
        sigma_nH = sigma_nH.mul_(self.rstd) + dh_nH.abs() * (UNIT * self.spread)
        flip_nH = dxhat_nH.abs_().mul_(self.rstd)
        sums.add(0, dh_nH, sigma_nH, flip_nH)
        sums.add(1, dn_nH * self.xhat, sigma_dn * size_nH + dn_nH.abs() * self.sigma_xhat)
        sums.add(2, dn_nH, sigma_dn)
        return dh_nH, sigma_nH, flip_nH


def _mean_sigma(sigma_nH: Tensor, terms_nH: Tensor) -> Tensor:
    """σ of a mean of numbers that have σ, and of its own sum."""
    H = sigma_nH.shape[1]
    return norm(sigma_nH, 1)[:, None] / H + UNIT * norm(terms_nH, 1)[:, None] / math.sqrt(H)


class VectorSums:
    """db = Σ dh, dγ = Σ dn·x̂, dβ = Σ dn over chunks of rows, and σ of each: with the sizes of their terms."""

    NAMES = ("linear.{}.bias", "norm.{}.weight", "norm.{}.bias")

    def __init__(self, width: int, device: torch.device):
        self.totals = torch.zeros(3, width, device=device, dtype=torch.float64)
        self.squares, self.errors = torch.zeros(2, 3, width, device=device, dtype=torch.float64)
        self.most = torch.zeros(3, width, device=device)

    def add(self, i: int, terms_nH: Tensor, sigma_nH: Tensor, flip_nH: Tensor | None = None) -> None:
        """Rows of one of the three; `flip` is what one number of dy makes of a term, where that is not all of it."""
        if not len(terms_nH):
            return
        self.totals[i] += terms_nH.sum(0, dtype=torch.float64)
        self.squares[i] += norm(terms_nH, 0).double().square()
        self.errors[i] += norm(sigma_nH, 0).double().square()
        most_H = (terms_nH if flip_nH is None else flip_nH).abs().amax(0)
        self.most[i] = torch.maximum(self.most[i], most_H)

    def scaled(self, safety: float, times: float) -> VectorSums:
        """The errors of so many times the rows; the sums are still to come."""
        more = VectorSums(self.totals.shape[1], self.totals.device)
        more.squares, more.errors = safety * times * self.squares, safety * times * self.errors
        more.most = safety * self.most
        return more

    def take(self, dh_nH: Tensor, dgamma_H: Tensor, dbeta_H: Tensor) -> None:
        """Rows of dh, and sums that torch has made of the others."""
        self.totals[0] += dh_nH.sum(0, dtype=torch.float64)
        self.totals[1] += dgamma_H
        self.totals[2] += dbeta_H

    def vectors(self, rows: int) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """Each with its name, its σ and the largest term."""
        sigma = (max(rows, 1) * UNIT**2 * self.squares + self.errors).sqrt()
        for i, name in enumerate(self.NAMES):
            yield name, self.totals[i].float(), sigma[i].float(), self.most[i]
