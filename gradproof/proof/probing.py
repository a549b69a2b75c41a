"""Probes of a forward around a point: residuals of a claimed gradient, and the forward's own noise.

For a direction v and a step τ, with the displacements as they were rounded,

    R(τ) = [L(θ + τv) − L(θ − τv) − ⟨g, (θ + τv) − (θ − τv)⟩]/2τ  =  ⟨∇L − g, v⟩ + aτ² + noise/τ

The entries of v are normal, times the size of the tensor or, where its columns differ in scale, of the column.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Outputs, Subject
from gradproof.proof.recorder import AS_IT_IS, Promotion, Recorder
from gradproof.proof.value_sizes import sizes_of
from gradproof.streams import seeded


class Pair(NamedTuple):
    """Two probes at ±τ: the residual, the directional derivative, the second difference. Not clean when a decision
    changed or a value was not finite."""

    tau: float
    residual: float
    slope: float
    second: float
    clean: bool


class Direction(NamedTuple):
    """One judged direction: the extrapolated residual and slope, and how far the two steps disagreed. τ is the smaller
    step, `number` says which direction it was."""

    tau: float
    residual: float
    slope: float
    spread: float
    number: int


class Probe(NamedTuple):
    """One forward: L, the decisions it took, the coarsest rounding on the way, the norm of the terms that L sums."""

    loss: float
    signature: int
    coarsest: float
    terms: float

    @classmethod
    def of(cls, outputs: Outputs, cotangents: Outputs, recorder: Recorder) -> Probe:
        pairs = zip(outputs, cotangents, strict=True)
        terms = torch.cat([(output.detach().double() * cotangent.double()).flatten() for output, cotangent in pairs])
        return cls(float(terms.sum()), recorder.signature, recorder.coarsest, float(terms.norm()))


class Prober:
    """Evaluates L = Σ⟨cotangent, output⟩ around the base point, and counts the forwards."""

    def __init__(
        self,
        subject: Subject,
        cotangents: Outputs,
        grads: Mapping[str, Tensor | None],
        seed: int,
        promote: Promotion = AS_IT_IS,
        base: Probe | None = None,
        spent: int = 0,
    ):
        self.subject, self.cotangents, self.seed, self.promote = subject, cotangents, seed, promote
        self.values = {name: value.detach() for name, value in subject.values.items()}
        self.grads = {name: None if grad is None else self._judged(name, grad.double()) for name, grad in grads.items()}
        self.sizes = sizes_of({name: self._judged(name, value) for name, value in self.values.items()})
        self._weights = {
            name: 0.0 if grad is None else float((self.sizes[name] * grad).norm()) for name, grad in self.grads.items()
        }
        self.forwards = spent
        self.base = base or self._evaluate({})
        self.unit = max(self.base.coarsest, torch.finfo(torch.float64).eps) / 2
        # Rounding acts on L's terms, and on what they are computed from: θ to 1 part in u moves L by about u·|θ∘g|.
        self.finite = [name for name, weight in self._weights.items() if math.isfinite(weight)]
        self.floor = self.unit * max(self.base.terms, self.weight(self.finite))
        self.failure: BaseException | None = None
        self._even_noise: list[float] = []
        self._odd_noise: list[float] = []

    @property
    def noise(self) -> float:
        """The forward's own noise: even and odd in the step (rounding can be either), at least that of L's terms."""
        return max(self.floor, rms(self._even_noise), 1.5 * statistics.median(self._odd_noise or [0.0]))

    def weight(self, names: Sequence[str]) -> float:
        """The typical size of ⟨g, v⟩."""
        return math.hypot(*(self._weights[name] for name in names))

    def pair(self, names: Sequence[str], tau: float, number: int) -> Pair:
        """Probes both sides along direction `number` of the tensors `names`."""
        loss, predicted, clean = [], 0.0, True
        for sign in (1.0, -1.0):
            moved = {name: self._moved(name, sign * tau, number) for name in names}
            probe = self._evaluate(moved)
            loss.append(probe.loss)
            clean = clean and probe.signature == self.base.signature and math.isfinite(probe.loss)
            for name, tensor in moved.items():
                grad = self.grads[name]
                if grad is not None:
                    moved_by = self._judged(name, tensor.double() - self.values[name].double())
                    predicted += sign * float((grad * moved_by).sum())
        clean = clean and math.isfinite(predicted)
        slope = (loss[0] - loss[1]) / (2 * tau)
        return Pair(tau, slope - predicted / (2 * tau), slope, loss[0] + loss[1] - 2 * self.base.loss, clean)

    def direction(self, names: Sequence[str], tau: float, number: int) -> Direction | None:
        """Two steps, extrapolated; None when a decision changed on the way. Four forwards."""
        wide = self.pair(names, tau, number)
        narrow = self.pair(names, tau / 2, number) if wide.clean else wide
        if not narrow.clean:
            return None
        # L(θ±τv), L(θ±τv/2), L(θ) with weights 1, 1, −4, −4, 6: no slope, no curvature, only noise.
        self._even_noise.append(abs(wide.second - 4 * narrow.second) / math.sqrt(70))
        return extrapolated(wide, narrow, number)

    def settle(self) -> bool:
        """Whether the first forward took other steps than a second one at the same point (something was cached); the
        second one is then the base."""
        if self.failure:
            return False
        again = self._evaluate({})
        settled, self.base = again.signature != self.base.signature, again
        return settled

    def sample_odd_noise(self, direction: Direction) -> None:
        """The spread of a direction whose steps were too small for aτ²."""
        self._odd_noise.append(direction.spread * direction.tau / 0.79)

    def sample_noise(self, ladder: Sequence[Pair]) -> None:
        """Noise from the two smallest steps of a ladder, the curvature seen at the step before taken off."""
        *_, wide, narrow, tiny = ladder
        if tiny.clean:
            self._even_noise.append(abs(tiny.second) / math.sqrt(6))
        if narrow.clean and wide.clean:
            curved = wide.second * (narrow.tau / wide.tau) ** 2
            self._even_noise.append(abs(narrow.second - curved) / math.sqrt(6))
        # A forward that rounds where the recorder cannot see (numpy, C++) moves in steps: nothing at all for tiny
        # displacements, and about what the gradient says for large ones.
        for i, flat in enumerate(ladder):
            claimed = abs(flat.slope - flat.residual) * 2 * flat.tau
            still = abs(flat.slope) * 2 * flat.tau <= 4 * self.floor
            if flat.clean and still and claimed > 64 * self.floor:
                agrees = [p for p in ladder[:i] if p.clean and abs(p.residual) < 0.1 * abs(p.slope)]
                if agrees:
                    self._odd_noise.append(claimed)
                return

    def _moved(self, name: str, step: float, number: int) -> Tensor:
        value = self.values[name]
        v = torch.randn(value.shape, generator=seeded(self.seed, number, name), dtype=torch.float64).to(value.device)
        return (value.double() + step * self.sizes[name] * self._judged(name, v)).to(value.dtype)

    def _judged(self, name: str, tensor: Tensor) -> Tensor:
        """`tensor` without the entries that are fixed by definition."""
        fixed = self.subject.fixed.get(name)
        return tensor if fixed is None else tensor.masked_fill(fixed, 0.0)

    def _evaluate(self, moved: Mapping[str, Tensor]) -> Probe:
        self.forwards += 1
        try:
            with Recorder(self.promote) as recorder:
                outputs, _ = self.subject.run({**self.values, **moved}, None)
        except (Exception, SystemExit) as error:
            if not moved:
                raise
            # A displaced point may lie outside the module's domain: this probe says nothing.
            self.failure = error
            return Probe(math.nan, 0, 0.0, 0.0)
        return Probe.of(outputs, self.cotangents, recorder)


def extrapolated(wide: Pair, narrow: Pair, number: int) -> Direction:
    """Takes aτ² off two steps of one direction."""
    share = (narrow.tau / wide.tau) ** 2
    residual = (narrow.residual - share * wide.residual) / (1 - share)
    slope = (narrow.slope - share * wide.slope) / (1 - share)
    return Direction(narrow.tau, residual, slope, abs(wide.residual - narrow.residual), number)


def rms(numbers: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(n * n for n in numbers)) if numbers else 0.0
