"""Attribution: the contribution of each column to a logit, by integrated gradients with the model's own backward.

    x(t) = b + t·Δ, Δ = x − b, b the baseline, f the logit of one class
    column c gets  Σ_{i∈c} Δ_i ∫ ∂f/∂x_i(x(t)) dt,  and what all columns get adds up to f(x) − f(b)

A router makes f jump where the path crosses from one choice of experts to another, and the gradient knows nothing of
that. Each crossing is bracketed by halving, by the router alone. The smooth stretches between crossings are integrated
by Gauss's rule and halved while the integral misses the difference of the logit at their ends. A jump goes to the
columns that pushed the router over the edge, in proportion to their push

    p_c = Σ_{i∈c} Δ_i ∂(Σ z of the experts that come − Σ z of those that go)/∂x_i,  where p_c > 0

since the columns that pulled the other way did not cause it. The exact limit of ever steeper smooth routers would
divide by Σ_c p_c of both signs, which may be near 0: large contributions that cancel, and explain nothing.

S points, stretches or jumps of all paths, E experts of all members, C columns, Q nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.models.model import Model

NUMBERS = 1 << 22  # inputs in memory at a time
STRETCHES = 16  # of a path, at whose ends the router is asked first
HALVINGS = 30  # of a stretch, until a jump is bracketed
NODES = 2  # of Gauss's rule: most stretches are short, since crossings divide them
ROUNDS = 12  # of halving stretches that are not smooth enough
TOLERANCE = 2e-3  # of the difference of logits, that the integral may miss
FLOOR = 1e-10  # below that a difference of logits is rounding


class Attribution(NamedTuple):
    """Of T rows. What the columns get adds up to logit − baseline."""

    column_TC: Tensor
    logit_T: Tensor
    baseline_T: Tensor  # the logit of the baseline
    jumps_TC: Tensor  # the part of column_TC that comes from jumps
    missed_T: Tensor  # what the integrals missed, before it was shared out: the sum of absolute values


class Stretches(NamedTuple):
    """Of paths: the row of each, and from where to where."""

    row_S: Tensor
    start_S: Tensor
    stop_S: Tensor

    def where(self, mask_S: Tensor) -> Stretches:
        return Stretches(*(part[mask_S] for part in self))

    def halved(self) -> Stretches:
        middle_S = (self.start_S + self.stop_S) / 2
        return Stretches(self.row_S.repeat(2), torch.cat([self.start_S, middle_S]), torch.cat([middle_S, self.stop_S]))


def attribute(
    model: Model, x_TI: Tensor, class_T: Tensor, baseline_I: Tensor, column_I: Tensor, columns: int
) -> Attribution:
    """Of the logits of `class_T`. `column_I` says which of the columns each input belongs to. All in float64."""
    rows = max(1, NUMBERS // (x_TI.shape[1] * STRETCHES * 4))
    parts = [
        _attribute(Paths(model, x_TI[i : i + rows], class_T[i : i + rows], baseline_I, column_I, columns))
        for i in range(0, len(x_TI), rows)
    ]
    return Attribution(*map(torch.cat, zip(*parts, strict=True)))


class Paths:
    """The paths from the baseline to each row, and the model along them."""

    def __init__(self, model: Model, x_TI: Tensor, class_T: Tensor, baseline_I: Tensor, column_I: Tensor, columns: int):
        self.model, self.class_T, self.column_I, self.columns = model, class_T, column_I, columns
        self.baseline_I, self.delta_TI = baseline_I, x_TI - baseline_I
        self.rows = len(x_TI)

    def chosen(self, row_S: Tensor, t_S: Tensor) -> Tensor:
        """chosen_SE at these points."""
        return self._chunked(lambda row, t: self.model.chosen(self.model.params, self._x(row, t)), row_S, t_S)

    def logit(self, row_S: Tensor, t_S: Tensor) -> Tensor:
        """f_S."""

        def part(row_S: Tensor, t_S: Tensor) -> Tensor:
            logits_SO = self.model.apply(self.model.params, self._x(row_S, t_S))[0].logits_TO
            return logits_SO.gather(1, self.class_T[row_S, None])[:, 0]

        return self._chunked(part, row_S, t_S)

    def slope(self, row_S: Tensor, t_S: Tensor) -> Tensor:
        """df/dt, as the sum over columns of slope_SC."""

        def part(row_S: Tensor, t_S: Tensor) -> Tensor:
            output, tape = self.model.forward(self._x(row_S, t_S))
            d_SO = torch.zeros_like(output.logits_TO).scatter(1, self.class_T[row_S, None], 1.0)
            return self._by_column(row_S, self.model.backward(d_SO, tape))

        return self._chunked(part, row_S, t_S)

    def push(self, row_S: Tensor, t_S: Tensor, dz_SE: Tensor) -> Tensor:
        """push_SC: how much faster the logits of the experts that come (dz = 1) grow than those of the others (−1)."""
        dx_SI = self.model.pull_router(self.model.params, dz_SE, self._x(row_S, t_S))
        return self._by_column(row_S, dx_SI)

    def _x(self, row_S: Tensor, t_S: Tensor) -> Tensor:
        return torch.addcmul(self.baseline_I, self.delta_TI[row_S], t_S[:, None])

    def _by_column(self, row_S: Tensor, dx_SI: Tensor | None) -> Tensor:
        assert dx_SI is not None  # tables have inputs that can move
        return dx_SI.new_zeros(len(row_S), self.columns).index_add_(1, self.column_I, dx_SI * self.delta_TI[row_S])

    def _chunked(self, of: Callable[[Tensor, Tensor], Tensor], row_S: Tensor, t_S: Tensor) -> Tensor:
        chunk = max(1, NUMBERS // self.delta_TI.shape[1])
        parts = [of(row_S[i : i + chunk], t_S[i : i + chunk]) for i in range(0, len(row_S), chunk)]
        return torch.cat(parts)


@torch.no_grad()
def _attribute(paths: Paths) -> Attribution:
    row_T, T = torch.arange(paths.rows), paths.rows
    baseline_T, logit_T = (paths.logit(row_T, torch.full((T,), end, dtype=torch.float64)) for end in (0.0, 1.0))
    smooth_TC, jumps_TC = (torch.zeros(T, paths.columns, dtype=torch.float64) for _ in range(2))
    missed_T = torch.zeros(T, dtype=torch.float64)
    work = Stretches(row_T, torch.zeros(T, dtype=torch.float64), torch.ones(T, dtype=torch.float64))
    for last in [False] * (ROUNDS - 1) + [True]:
        jumps, chosen_S2E, pieces = _apart(paths, work)
        integral_SC, missed_S = _integrals(paths, pieces)
        allowed_S = TOLERANCE * (logit_T - baseline_T).abs()[pieces.row_S] * (pieces.stop_S - pieces.start_S) + FLOOR
        done_S = (missed_S.abs() <= allowed_S) | last
        smooth_TC.index_add_(0, pieces.row_S[done_S], _completed(integral_SC[done_S], missed_S[done_S]))
        missed_T.index_add_(0, pieces.row_S[done_S], missed_S[done_S].abs())
        if len(jumps.row_S):
            jumps_TC.index_add_(0, jumps.row_S, _shared_jumps(paths, jumps, chosen_S2E))
        if done_S.all():
            break
        work = pieces.where(~done_S).halved()
    return Attribution(smooth_TC + jumps_TC, logit_T, baseline_T, jumps_TC, missed_T)


def _apart(paths: Paths, work: Stretches) -> tuple[Stretches, Tensor, Stretches]:
    """The jumps in these stretches, the choices before and after each, and the pieces between them."""
    S, G = len(work.row_S), STRETCHES
    share_G = torch.linspace(0, 1, G + 1, dtype=torch.float64)
    t_SG = work.start_S[:, None] + (work.stop_S - work.start_S)[:, None] * share_G
    t_SG[:, -1] = work.stop_S
    chosen_SGE = paths.chosen(work.row_S.repeat_interleave(G + 1), t_SG.flatten()).view(S, G + 1, -1)
    s, g = torch.nonzero((chosen_SGE[:, 1:] != chosen_SGE[:, :-1]).any(2), as_tuple=True)
    low_S, high_S, before_SE, after_SE = t_SG[s, g], t_SG[s, g + 1], chosen_SGE[s, g], chosen_SGE[s, g + 1]
    for _ in range(HALVINGS if len(s) else 0):
        middle_S = (low_S + high_S) / 2
        chosen_SE = paths.chosen(work.row_S[s], middle_S)
        left, right = (before_SE != chosen_SE).any(1), (chosen_SE != after_SE).any(1)
        s = torch.cat([s[left], s[right]])
        low_S, high_S = torch.cat([low_S[left], middle_S[right]]), torch.cat([middle_S[left], high_S[right]])
        before_SE, after_SE = (
            torch.cat([before_SE[left], chosen_SE[right]]),
            torch.cat([chosen_SE[left], after_SE[right]]),
        )
    jumps = Stretches(work.row_S[s], low_S, high_S)
    return jumps, torch.stack([before_SE, after_SE], 1), _between(work, s, jumps)


def _between(work: Stretches, s: Tensor, jumps: Stretches) -> Stretches:
    """What is left of the stretches without their jumps, which are in stretch s each."""
    of_S = torch.cat([torch.arange(len(work.row_S)), s])
    start_S, stop_S = torch.cat([work.start_S, jumps.stop_S]), torch.cat([work.stop_S, jumps.start_S])
    ordered = [torch.from_numpy(np.lexsort((t_S.numpy(), of_S.numpy()))) for t_S in (start_S, stop_S)]
    return Stretches(work.row_S[of_S[ordered[0]]], start_S[ordered[0]], stop_S[ordered[1]])


def _integrals(paths: Paths, pieces: Stretches) -> tuple[Tensor, Tensor]:
    """integral_SC, and what its sum misses of the difference of f."""
    node_Q, weight_Q = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(NODES))
    half_S, middle_S = (pieces.stop_S - pieces.start_S) / 2, (pieces.stop_S + pieces.start_S) / 2
    t_SQ = middle_S[:, None] + half_S[:, None] * node_Q
    slope_SQC = paths.slope(pieces.row_S.repeat_interleave(NODES), t_SQ.flatten()).view(*t_SQ.shape, -1)
    integral_SC = half_S[:, None] * (slope_SQC * weight_Q[:, None]).sum(1)
    return integral_SC, _difference(paths, pieces) - integral_SC.sum(1)


def _difference(paths: Paths, of: Stretches) -> Tensor:
    f_2S = paths.logit(of.row_S.repeat(2), torch.cat([of.start_S, of.stop_S])).view(2, -1)
    return f_2S[1] - f_2S[0]


def _shared_jumps(paths: Paths, jumps: Stretches, chosen_S2E: Tensor) -> Tensor:
    before_SE, after_SE = chosen_S2E.double().unbind(1)
    push_SC = paths.push(jumps.row_S, jumps.start_S, after_SE - before_SE)
    return _difference(paths, jumps)[:, None] * _shares(push_SC.clamp(min=0))


def _completed(integral_SC: Tensor, missed_S: Tensor) -> Tensor:
    """The integrals with what they miss, in proportion to their size."""
    return integral_SC + missed_S[:, None] * _shares(integral_SC.abs())


def _shares(size_SC: Tensor) -> Tensor:
    """Sizes as shares of their sum; equal shares where all are 0."""
    total_S1 = size_SC.sum(1, keepdim=True)
    return torch.where(
        total_S1 > 0, size_SC / total_S1.clamp(min=torch.finfo(torch.float64).tiny), 1 / size_SC.shape[1]
    )
