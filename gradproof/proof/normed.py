"""Rounding bounds of bias, LayerNorm and GELU in fp32, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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

    def backward(self, dy_nH: Tensor, sigma_dy: Tensor, active: bool) -> tuple[Tensor, Tensor, Tensor, VectorSums]:
        """dh_nH, σ of it, what an entry of dy makes of it at most, its own and the largest of the row, of which the
        means have a share, and the parameters' gradients."""
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
        most_n1, along_n1 = dxhat_nH.abs_().amax(1, True), along_nH.abs_().amax(1, True)
        flip_nH = (dxhat_nH + (most_n1 + size_nH * along_n1).div_(dxhat_nH.shape[1])).mul_(self.rstd)
        dgamma_nH, sigma_dgamma = dn_nH * self.xhat, sigma_dn * size_nH + dn_nH.abs() * self.sigma_xhat
        # One number of dy makes all of a term of dγ and dβ, but less than all of a term of db.
        sums = VectorSums.of((dh_nH, dgamma_nH, dn_nH), (sigma_nH, sigma_dgamma, sigma_dn), (flip_nH, dgamma_nH, dn_nH))
        return dh_nH, sigma_nH, flip_nH, sums


def _mean_sigma(sigma_nH: Tensor, terms_nH: Tensor) -> Tensor:
    """σ of a mean of numbers that have σ, and of its own sum."""
    H = sigma_nH.shape[1]
    return norm(sigma_nH, 1)[:, None] / H + UNIT * norm(terms_nH, 1)[:, None] / math.sqrt(H)


class VectorSums(NamedTuple):
    """db = Σ dh, dγ = Σ dn·x̂, dβ = Σ dn, with Σ of the squares of their terms and of their errors, and the largest that
    one number of dy makes of a term."""

    totals: Tensor
    squares: Tensor
    errors: Tensor
    most: Tensor

    @classmethod
    def of(cls, terms: Sequence[Tensor], sigmas: Sequence[Tensor], flips: Sequence[Tensor]) -> VectorSums:
        """Of the three; `flips` is what one number of dy makes of each term."""
        totals = torch.stack([own.sum(0, dtype=torch.float64) for own in terms])
        squares, errors = (torch.stack([norm(own, 0) for own in group]).double().square_() for group in (terms, sigmas))
        largest = [own.abs().amax(0) if len(own) else own.sum(0) for own in flips]
        return cls(totals, squares, errors, torch.stack(largest))

    def scaled(self, safety: float, times: float) -> VectorSums:
        """The errors of so many times the rows; the sums are still to come."""
        more = safety * times
        return VectorSums(torch.zeros_like(self.totals), more * self.squares, more * self.errors, safety * self.most)

    def take(self, dh_nH: Tensor, dgamma_H: Tensor, dbeta_H: Tensor) -> None:
        """Rows of dh, and sums that torch has made of the others."""
        self.totals.add_(torch.stack([dh_nH.sum(0, dtype=torch.float64), dgamma_H.double(), dbeta_H.double()]))

    def vectors(self, rows: int) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """Each with its name, its σ and the largest term."""
        sigma, totals = (max(rows, 1) * UNIT**2 * self.squares + self.errors).sqrt().float(), self.totals.float()
        for i, name in enumerate(("linear.{}.bias", "norm.{}.weight", "norm.{}.bias")):
            yield name, totals[i], sigma[i], self.most[i]
