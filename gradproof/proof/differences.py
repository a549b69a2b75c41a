"""The witness that needs nothing but the forward: differences, with their own error estimate.

The claimed gradient g is judged along a random direction v by the residual

    R(τ) = [L(θ + τv) − L(θ − τv) − ⟨g, (θ + τv) − (θ − τv)⟩]/2τ  =  ⟨∇L − g, v⟩ + aτ² + noise/τ,

with the displacements as they were rounded, so that a tiny step costs nothing. Two steps give the extrapolated
R* = (4R(τ/2) − R(τ))/3 and, by how much they disagree, its error: of the next order, so smaller than their spread by
(τ/τ_c)², τ_c the largest step at which a ladder of steps still saw the law aτ². The noise η of the forward is measured
where the gradient, right or wrong, cancels: in second differences L(θ + τv) + L(θ − τv) − 2L(θ), and in R(τ) − R(τ/2)
at steps so small that aτ² is nothing. Then

    bound = 10·η/τ + share·|R(τ) − R(τ/2)| + a floor for the backward's own rounding,  share = 8(τ/τ_c)² in [1/64, 2].

An error e of the gradient of one tensor adds N(0, ‖e‖²) to the residual of every Gaussian direction, so m directions
within their bounds exclude, with 99% confidence, ‖e‖ above 0.8·mean(bounds)/0.01^(1/m): the resolution, taken over the
m best directions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Outputs, Status, Subject
from gradproof.proof.recorder import Recorder

DIRECTIONS = 8
PROVEN_AT = 1e-2  # a resolution above this proves nothing
NOISE_FACTOR = 10.0
SPREAD_SHARE = (1 / 64, 2.0)
MACROSCOPIC = (16.0, 2.0)  # steps, in units of the tensor's own size, at which a flat function is still flat


@dataclass
class Judgement:
    """One tensor: error and bound are relative to its gradient, as is the resolution."""

    name: str
    status: Status
    error: float
    bound: float
    resolution: float | None
    note: str = ""


@dataclass
class Verdict:
    """What differences say of a subject."""

    status: Status
    judgements: list[Judgement]
    forwards: int
    directions: int
    seed: int
    notes: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    """Two probes at ±τ: the residual, the directional derivative, the second difference. Not clean when a decision
    changed or a value was not finite."""

    tau: float
    residual: float
    slope: float
    second: float
    clean: bool


class Direction(NamedTuple):
    """One judged direction: the extrapolated residual and slope, and how far the two steps disagreed."""

    tau: float
    residual: float
    slope: float
    spread: float


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
        promote: bool = False,
        base: Probe | None = None,
        spent: int = 0,
    ):
        self.subject, self.cotangents, self.seed, self.promote = subject, cotangents, seed, promote
        self.values = {name: value.detach() for name, value in subject.values.items()}
        self.grads = {name: None if grad is None else self._judged(name, grad.double()) for name, grad in grads.items()}
        self.sizes = _sizes(self.values)
        self.forwards = spent
        self.base = base or self._evaluate({})
        self.unit = max(self.base.coarsest, torch.finfo(torch.float64).eps) / 2
        # Rounding acts on L's terms, and on what they are computed from: θ to 1 part in u moves L by about u·|θ∘g|.
        finite = [name for name, grad in self.grads.items() if grad is not None and bool(grad.isfinite().all())]
        self.floor = self.unit * max(self.base.terms, self.weight(finite))
        self.failure: Exception | None = None
        self._even_noise: list[float] = []
        self._odd_noise: list[float] = []

    @property
    def noise(self) -> float:
        """The forward's own noise: even and odd in the step (rounding can be either), at least that of L's terms."""
        return max(self.floor, _rms(self._even_noise), 1.5 * statistics.median(self._odd_noise or [0.0]))

    def weight(self, names: Sequence[str]) -> float:
        """The typical size of ⟨g, v⟩."""
        grads = [(self.sizes[name], self.grads[name]) for name in names]
        return math.sqrt(sum((size * float(grad.norm())) ** 2 for size, grad in grads if grad is not None))

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
                    predicted += sign * float((grad * (tensor.double() - self.values[name].double())).sum())
        slope = (loss[0] - loss[1]) / (2 * tau)
        return Pair(tau, slope - predicted / (2 * tau), slope, loss[0] + loss[1] - 2 * self.base.loss, clean)

    def direction(self, names: Sequence[str], tau: float, number: int) -> Direction | None:
        """Two steps, extrapolated; None when a decision changed on the way. Four forwards."""
        wide, narrow = self.pair(names, tau, number), self.pair(names, tau / 2, number)
        if not (wide.clean and narrow.clean):
            return None
        # L(θ±τv), L(θ±τv/2), L(θ) with weights 1, 1, −4, −4, 6: no slope, no curvature, only noise.
        noise = abs(wide.second - 4 * narrow.second) / math.sqrt(70)
        self._even_noise.append(noise)
        return _extrapolated(wide, narrow)

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
        key = hashlib.sha256(f"{self.seed}:{number}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little", signed=True))
        v = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
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
        except Exception as error:
            if not moved:
                raise
            # A displaced point may lie outside the module's domain: this probe says nothing.
            self.failure = error
            return Probe(math.nan, 0, 0.0, 0.0)
        return Probe.of(outputs, self.cotangents, recorder)


def _sizes(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The root mean square of each tensor; one that is zero moves like the others do."""
    rms = {name: float(value.double().square().mean().sqrt()) for name, value in values.items() if value.numel()}
    known = [size for size in rms.values() if 0 < size < math.inf]
    usual = statistics.median(known) if known else 1.0
    return {name: size if 0 < (size := rms.get(name, 0.0)) < math.inf else usual for name in values}


def judge(
    subject: Subject,
    cotangents: Outputs,
    grads: Mapping[str, Tensor | None],
    *,
    seed: int = 0,
    quick: bool = False,
    promote: bool = False,
    base: Probe | None = None,
    spent: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verdict:
    """Judges `grads`, claimed for ∇L with L = Σ⟨cotangent, output⟩: a joint screen of 8 directions (38 forwards), then
    each tensor by name (8 forwards). `quick` is the screen alone, with culprits found by bisection."""
    prober = Prober(subject, cotangents, grads, seed, promote, base, spent)
    return Judge(prober, progress).verdict(quick)


class Judge:
    """The strategy: which steps to take, and what their residuals mean."""

    def __init__(self, prober: Prober, progress: Callable[[int, int], None]):
        self.prober, self.progress = prober, progress
        self.names = [name for name, grad in prober.grads.items() if grad is None or bool(grad.isfinite().all())]
        log_unit = math.log2(prober.unit)
        self.taus = [2.0 ** (share * log_unit) for share in (0.15, 0.34, 0.53, 0.72)]
        self.tau = self.taus[1]
        self.tau_c, self.cap, self.bend = self.taus[0], self.taus[0], 0.0
        # The backward may round too: 4e-11 in float64, 2e-5 in float32.
        self.backward_floor = prober.unit**0.65
        self.screen: list[Direction] = []

    def verdict(self, quick: bool) -> Verdict:
        prober = self.prober
        judged = {
            name: Judgement(name, "refuted", math.inf, 0.0, None, "the gradient is not finite though the forward is")
            for name in prober.grads
            if name not in self.names
        }
        if not math.isfinite(prober.base.loss):
            judged = {name: self._cannot(name, "the forward is not finite at this input") for name in prober.grads}
        elif self.names:
            self.run_screen()
            if quick:
                judged |= self.judge_by_screen()
            else:
                for done, name in enumerate(self.names):
                    self.progress(done, len(self.names))
                    judged[name] = self.judge_value(name)
                judged |= self.unnamed_culprit(judged)
        ordered = [judged[name] for name in prober.grads]
        failed = prober.failure
        notes = [f"a displaced forward raised {type(failed).__name__}: {failed}"] if failed else []
        return Verdict(overall(ordered), ordered, prober.forwards, DIRECTIONS, prober.seed, notes)

    # The joint screen.

    def run_screen(self) -> None:
        """A ladder of steps along the first direction finds noise and best step; the other directions use them."""
        prober = self.prober
        ladder = [prober.pair(self.names, tau, 0) for tau in self.taus]
        prober.sample_noise(ladder)
        clean = [pair for pair in ladder if pair.clean]
        rungs = [(a, b) for a, b in pairwise(ladder) if a.clean and b.clean]
        # aτ² between two rungs, less what noise alone would give.
        bends = [(abs(a.residual - b.residual) - 8 * prober.noise / b.tau) / a.tau**2 for a, b in rungs]
        bend = max(bends, default=0.0)
        if bend > 0:
            self.tau_c = rungs[bends.index(bend)][0].tau
        if not clean:
            cap = self.taus[-1] / 8
        else:
            cap = clean[0].tau if ladder[0].clean else clean[0].tau / 8
        if rungs:
            self.screen.append(min((_extrapolated(a, b) for a, b in rungs), key=self._bound))
        quiet_step = self._quiet_step(bend)
        for number in range(1, DIRECTIONS):
            # The first three directions take steps at which noise is all that differs, and so measure it.
            quiet = number <= 3
            self.tau = min(cap, max(quiet_step if quiet else self._best_step(bend), self.taus[-1]))
            found = prober.direction(self.names, self.tau, number)
            if found is None:
                cap = self.tau / 16
                continue
            self.screen.append(found)
            if quiet:
                prober.sample_odd_noise(found)
            else:
                bend = max(bend, self._bend(found))
        self.bend, self.cap = bend, cap
        self.tau = min(cap, max(self._best_step(bend), self.taus[-1]))

    def exceeding(self) -> int:
        """How many directions of the screen leave their bound."""
        return sum(self._exceeds(d, self.names, self.screen) for d in self.screen)

    def judge_by_screen(self) -> dict[str, Judgement]:
        """Each tensor by the screen's resolution; the culprits of a screen that failed by bisection."""
        if self.exceeding():
            return self.bisect(self.names)
        judged = {name: self.by_group(name, self.screen) for name in self.names}
        unresolved = [name for name, judgement in judged.items() if judgement.status == "inconclusive"]
        return judged | (self.judge_flat(unresolved, self.screen) if unresolved else {})

    def by_group(self, name: str, found: Sequence[Direction]) -> Judgement:
        """What directions within their bounds, of a group that this tensor belongs to, say of it."""
        weight = self.prober.weight([name])
        if self.prober.grads[name] is None:
            return Judgement(name, "unused", 0.0, 0.0, None, "the output does not depend on it")
        if not weight or not found:
            return self._unresolved(name, math.nan, math.inf, None)
        error, bound = self._worst(found, [name], weight)
        resolution = max(_resolution([self._bound(d) for d in found]) / weight, self.backward_floor)
        if resolution > PROVEN_AT:
            return self._unresolved(name, error, bound, resolution)
        return Judgement(name, "proven", error, bound, resolution)

    def bisect(self, names: Sequence[str]) -> dict[str, Judgement]:
        """Splits until single tensors leave their bound; the groups that stay within theirs are cleared."""
        number = self.prober.forwards  # a direction that was not used before
        found = self.prober.direction(names, self.tau, number) or self.prober.direction(names, self.tau / 32, number)
        if found is None and len(names) == 1:
            return {names[0]: self.conclude(names[0], [])}
        if found and not self._exceeds(found, names, [found]):
            return {name: self.by_group(name, [found]) for name in names}
        if found and len(names) == 1:
            return {names[0]: self.conclude(names[0], [found])}
        middle = len(names) // 2
        return self.bisect(names[:middle]) | self.bisect(names[middle:])

    # Each tensor by name.

    def judge_value(self, name: str) -> Judgement:
        """Two directions of this tensor alone; the second one's step follows from what the first one saw."""
        prober = self.prober
        weight = prober.weight([name])
        # A tensor that matters less also bends the loss less, and can take larger steps.
        usual_bend = self.bend * weight / (prober.weight(self.names) or 1.0)
        tau = min(self.cap, self._best_step(usual_bend))
        first = prober.direction([name], tau, 100)
        if first is None:
            second = prober.direction([name], tau / 32, 101)
            return self.conclude(name, [second] if second else [])
        if self._exceeds(first, [name], [first]):
            tau = tau / 4
        elif max(weight, abs(first.slope)) <= self._bound(first):
            return self.judge_flat([name], [first])[name]
        else:
            tau = min(self.cap, max(self._best_step(max(self._bend(first), usual_bend)), tau / 64))
        second = prober.direction([name], tau, 101)
        return self.conclude(name, [first, second] if second else [first])

    def conclude(self, name: str, found: Sequence[Direction]) -> Judgement:
        """Refuted when a direction leaves its bound, proven when the resolution is fine enough."""
        if not found:
            return self._cannot(name, "a decision (kink, top-k, comparison) changed at every step that was tried")
        weight = self.prober.weight([name])
        slope, residual = _rms([d.slope for d in found]), _rms([d.residual for d in found])
        scale = slope if slope > 1e-3 * weight else weight
        error, bound = self._worst(found, [name], scale)
        if any(self._exceeds(d, [name], found) for d in found):
            return Judgement(name, "refuted", max(bound, residual / scale), bound, None)
        seen = [*found, *([] if self.exceeding() else self.screen)]
        resolution = (
            max(_resolution([self._bound(d) for d in seen]) / weight, self.backward_floor) if weight else math.inf
        )
        if resolution > PROVEN_AT:
            return self._unresolved(name, error, bound, resolution)
        return Judgement(name, "proven", error, bound, resolution)

    def judge_flat(self, names: Sequence[str], found: Sequence[Direction]) -> dict[str, Judgement]:
        """A gradient below the noise is proven only where the loss does not move even for macroscopic steps; its
        resolution is then relative to the whole gradient."""
        prober, whole = self.prober, self.prober.weight(self.names)
        for number, tau in enumerate(MACROSCOPIC):
            pair = prober.pair(names, tau, 200 + number)
            if not pair.clean:
                continue
            moved, bound = abs(pair.second) / 2 + tau * abs(pair.slope), 64 * prober.noise
            if max(moved / tau, abs(pair.residual)) <= bound:
                return {name: self._flat(name, moved, abs(pair.residual), bound, whole) for name in names}
            break
        if len(names) > 1:
            return {name: self.judge_flat([name], found)[name] for name in names}
        return {name: self.conclude(name, found) for name in names}

    def _flat(self, name: str, moved: float, residual: float, bound: float, whole: float) -> Judgement:
        grad = self.prober.grads[name]
        if moved == 0.0 and (grad is None or not bool(grad.any())):
            return Judgement(name, "unused", 0.0, 0.0, None, "the output does not depend on it at this input")
        if not whole:
            return self._cannot(name, "every gradient is zero at this input: there is nothing to judge")
        note = "the loss does not depend on it at any step; errors are relative to the whole gradient"
        return Judgement(name, "proven", residual / whole, bound / whole, _resolution([bound]) / whole, note)

    def unnamed_culprit(self, judged: Mapping[str, Judgement]) -> dict[str, Judgement]:
        """Where most directions of the screen failed though every tensor passed alone, nothing is proven."""
        if 2 * self.exceeding() <= len(self.screen) or any(j.status == "refuted" for j in judged.values()):
            return {}
        note = "the joint screen shows an error that is too small to be seen in any single tensor"
        return {name: dataclasses.replace(j, status="inconclusive", note=note) for name, j in judged.items()}

    # Bounds.

    def _bend(self, direction: Direction) -> float:
        """a, as far as it stands out of the noise."""
        return (direction.spread - 4 * self.prober.noise / direction.tau) / (0.75 * direction.tau**2)

    def _best_step(self, bend: float) -> float:
        """Where the noise and the spread's share are about equal parts of the bound."""
        noise = self.prober.noise
        if bend <= 0 or noise <= 0:
            return self.tau_c / 2
        return min((1.7 * noise * self.tau_c**2 / bend) ** (1 / 5), (1700 * noise / bend) ** (1 / 3), self.tau_c / 2)

    def _quiet_step(self, bend: float) -> float:
        """Where aτ² is far below the noise."""
        return min((0.03 * self.prober.noise / bend) ** (1 / 3) if bend > 0 else self.tau_c, self.tau_c / 2)

    def _bound(self, direction: Direction, usual_spread: float = 0.0) -> float:
        least, most = SPREAD_SHARE
        share = min(most, max(least, 8 * (direction.tau / self.tau_c) ** 2))
        return NOISE_FACTOR * self.prober.noise / direction.tau + share * max(direction.spread, usual_spread)

    def _exceeds(self, direction: Direction, names: Sequence[str], among: Sequence[Direction]) -> bool:
        # Two steps can agree by chance; half the usual spread is believed at least.
        bound = self._bound(direction, 0.5 * statistics.median(d.spread for d in among))
        return abs(direction.residual) > bound + self.backward_floor * self.prober.weight(names)

    def _worst(self, found: Sequence[Direction], names: Sequence[str], scale: float) -> tuple[float, float]:
        """Residual and bound, relative to `scale`, of the direction that came nearest to its bound."""
        floor = self.backward_floor * self.prober.weight(names)
        near = max(found, key=lambda d: abs(d.residual) / (self._bound(d) + floor or 1.0))
        return (abs(near.residual) / scale, (self._bound(near) + floor) / scale) if scale else (0.0, math.inf)

    def _unresolved(self, name: str, error: float, bound: float, resolution: float | None) -> Judgement:
        note = "the gradient is too small against the forward's noise here to be judged; try another input"
        return Judgement(name, "inconclusive", error, bound, resolution, note)

    def _cannot(self, name: str, note: str) -> Judgement:
        return Judgement(name, "inconclusive", math.nan, math.nan, None, note)


def _extrapolated(wide: Pair, narrow: Pair) -> Direction:
    """Takes aτ² off two steps of one direction."""
    share = (narrow.tau / wide.tau) ** 2
    residual = (narrow.residual - share * wide.residual) / (1 - share)
    slope = (narrow.slope - share * wide.slope) / (1 - share)
    return Direction(narrow.tau, residual, slope, abs(wide.residual - narrow.residual))


def _resolution(bounds: Sequence[float]) -> float:
    """The error that the m best directions show with 99% confidence: P(all miss) ≈ Π(0.8·bound/‖e‖) = 1%."""
    logs = sorted(math.log(max(bound, 1e-300)) for bound in bounds)
    return min(0.8 * math.exp(statistics.fmean(logs[:m])) / 0.01 ** (1 / m) for m in range(1, len(logs) + 1))


def _rms(numbers: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(n * n for n in numbers)) if numbers else 0.0


def overall(judgements: Sequence[Judgement]) -> Status:
    """Any refuted, refuted; else any inconclusive, or nothing judged at all, inconclusive; else proven."""
    statuses = {judgement.status for judgement in judgements}
    if "refuted" in statuses:
        return "refuted"
    return "proven" if "proven" in statuses and "inconclusive" not in statuses else "inconclusive"
