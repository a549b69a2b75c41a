"""The witness that only needs the forward: finite differences with an error estimate.

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
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from gradproof.contract import Outputs, Status, Subject
from gradproof.proof.probing import Direction, Probe, Prober, extrapolated
from gradproof.proof.recorder import AS_IT_IS, Promotion

DIRECTIONS = 8
SCREEN_FORWARDS = 40
PROVEN_AT = 1e-2  # a resolution above this proves nothing
ENOUGH = 1e-4  # a finer one is not worth more forwards
NOISE_FACTOR = 10.0
SPREAD_SHARE = (1 / 64, 2.0)
HIDDEN_UNIT = 2.0**-24
PIECE_STEP = 2.0**-15  # a step within a piece that still moves what rounds to HIDDEN_UNIT
RAISED = "a displaced forward raised"
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


def judge(
    subject: Subject,
    cotangents: Outputs,
    grads: Mapping[str, Tensor | None],
    *,
    seed: int = 0,
    quick: bool = False,
    promote: Promotion = AS_IT_IS,
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
        self.names = prober.finite
        log_unit = math.log2(prober.unit)
        self.taus = [2.0 ** (share * log_unit) for share in (0.15, 0.34, 0.53, 0.72)]
        self.tau_c, self.cap, self.bend = self.taus[0], self.taus[0], 0.0
        # The backward may round too: 4e-11 in float64, 2e-5 in float32.
        self.backward_floor = prober.unit**0.65
        self.switches: list[str] = []
        self.judged = 0  # how many tensors have been judged by name, this one included
        self.in_pieces: set[str] = set()  # tensors for which a step by themselves changed a decision
        self.screen: list[Direction] = []
        self.exceeding: list[Direction] = []  # those of them that leave their bound

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
                self.judged = len(self.names)
                judged |= self.judge_by_screen()
            else:
                for name in self.names:
                    self.progress(self.judged, len(self.names))
                    self.judged += 1
                    judged[name] = self.judge_value(name)
                judged |= self.unnamed_culprit(judged)
        judged |= {name: self._switch(name) for name in self.switches}
        ordered = [judged[name] for name in prober.grads]
        failed = prober.failure
        notes = [f"{RAISED} {type(failed).__name__}: {failed}"] if failed else []
        return Verdict(overall(ordered), ordered, prober.forwards, len(self.screen), prober.seed, notes)

    # The joint screen.

    def screened(self, directions: int | None = None) -> dict[str, Judgement]:
        """The screen alone, of at most so many directions."""
        if not math.isfinite(self.prober.base.loss) or not self.names:
            return {name: self._cannot(name, "the forward is not finite at this input") for name in self.prober.grads}
        self.run_screen(directions or DIRECTIONS)
        self.judged = len(self.names)
        judged = self.judge_by_screen()
        return judged | {name: self._switch(name) for name in self.switches}

    def run_screen(self, directions: int = DIRECTIONS) -> None:
        """A ladder of steps along the first direction finds noise and best step; the other directions use them."""
        prober = self.prober
        ladder = [prober.pair(self.names, tau, 0) for tau in self.taus]
        if not ladder[-1].clean and (prober.settle() or self.set_aside_switches()):
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
            self.screen.append(min((extrapolated(a, b, 0) for a, b in rungs), key=self._bound))
        quiet_step = self._quiet_step(bend)
        for number in range(1, directions):
            if prober.forwards + 4 > SCREEN_FORWARDS:
                break
            # The first three directions take steps at which noise is all that differs, and so measure it.
            quiet = number <= 3
            tau = min(cap, max(quiet_step if quiet else self._best_step(bend), self.taus[-1]))
            direction = prober.direction(self.names, tau, number)
            if direction is None:
                cap = tau / 16
                continue
            self.screen.append(direction)
            if quiet:
                prober.sample_odd_noise(direction)
            else:
                bend = max(bend, self._bend(direction))
        self.bend, self.cap = bend, cap
        self.exceeding = [d for d in self.screen if self._exceeds(d, self.names, self.screen)]

    def set_aside_switches(self) -> bool:
        """Inputs without a claimed gradient that change a decision when they move by a few units in the last place (a
        mask of 0.0 and 1.0, say) are switches, not variables: they are taken out of the screen. Whether there were
        any."""
        inputs = [name for name in self.names if name in self.prober.subject.inputs and self.prober.grads[name] is None]
        self.switches = [name for name in inputs if not self.prober.pair([name], 8 * self.prober.unit, 0).clean]
        self.names = [name for name in self.names if name not in self.switches]
        return bool(self.switches and self.names)

    def _switch(self, name: str) -> Judgement:
        return Judgement(name, "unused", 0.0, 0.0, None, "it only switches decisions and has no gradient")

    def judge_by_screen(self) -> dict[str, Judgement]:
        """Each tensor by the screen's resolution; the culprits of a screen that failed by bisection."""
        if self.exceeding:
            worst = max(self.exceeding, key=lambda d: abs(d.residual) / self._bound(d))
            judged = self.bisect(self.names, worst)
            return judged | self.unnamed_culprit(judged)
        judged = {name: self.by_group(name, self.screen) for name in self.names}
        unresolved = [name for name, judgement in judged.items() if judgement.status == "inconclusive"]
        return judged | {name: j or judged[name] for name, j in self.judge_flat(unresolved).items()}

    def by_group(self, name: str, directions: Sequence[Direction]) -> Judgement:
        """What directions within their bounds, of a group that this tensor belongs to, say of it."""
        weight = self.prober.weight([name])
        if not weight or not directions:
            return self._unresolved(name, math.nan, math.inf, None)
        return self._passed(name, self._worst(directions, [name], weight), [self._bound(d) for d in directions])

    def bisect(self, names: Sequence[str], worst: Direction) -> dict[str, Judgement]:
        """Splits a group that left its bound along one direction of the screen. The residuals of the parts add up to
        its own, so that one of them must leave its bound too, unless the error is spread too thin."""
        if len(names) == 1:
            return {names[0]: self.confirm(names[0], worst)}
        judged = {}
        for part in (names[: len(names) // 2], names[len(names) // 2 :]):
            if not self._affordable(4):
                judged |= {
                    name: self._cannot(name, "the bisection stopped before this tensor; run without --quick")
                    for name in part
                }
                continue
            direction = self.prober.direction(part, 2 * worst.tau, worst.number)
            if direction is None:
                judged |= {name: self.conclude(name, []) for name in part}
            elif self._exceeds(direction, part, [direction]):
                judged |= self.bisect(part, direction)
            else:
                judged |= {name: self.by_group(name, [direction]) for name in part}
        return judged

    # Each tensor by name.

    def judge_value(self, name: str) -> Judgement:
        """A direction of this tensor alone, and a second one unless the first and the screen say enough. At most 8
        forwards."""
        prober = self.prober
        weight = prober.weight([name])
        # A tensor that matters less also bends the loss less, and can take larger steps.
        usual_bend = self.bend * weight / (prober.weight(self.names) or 1.0)
        best = self._best_step(usual_bend)
        steps = [min(self.cap, best), min(self.cap, best) / 32]
        # Alone it may also go further than all together without changing a decision; tried where the screen saw little.
        if best > self.cap and self._seen_by_screen(name) > ENOUGH:
            steps[:0] = [best] if weight else [best, PIECE_STEP]
        tried = (prober.direction([name], tau, 100 + i) for i, tau in enumerate(steps))
        number, first = next(((i, direction) for i, direction in enumerate(tried) if direction), (0, None))
        if first is None:
            return self.conclude(name, [])
        if number:
            self.in_pieces.add(name)
        if self._exceeds(first, [name], [first]):
            return self.confirm(name, first)
        if max(weight, abs(first.slope)) <= self._bound(first):
            flat = self.judge_flat([name])[name] if self._affordable(4) else None
            return flat or self.flat_in_piece(name, first) or self.conclude(name, [first])
        alone = self.conclude(name, [first])
        if (alone.status == "proven" and (alone.resolution or 0.0) <= ENOUGH) or not self._affordable(4):
            return alone
        tau = min(2 * first.tau, max(self._best_step(max(self._bend(first), usual_bend)), first.tau / 32))
        second = prober.direction([name], tau, 110)
        if second and self._exceeds(second, [name], [first, second]):
            return self.confirm(name, second)
        return self.conclude(name, [first, second] if second else [first])

    def _seen_by_screen(self, name: str) -> float:
        """The resolution that the screen alone has for this tensor."""
        weight = self.prober.weight([name])
        if not weight or not self.screen or self.exceeding:
            return math.inf
        return _resolution([self._bound(d) for d in self.screen]) / weight

    def _affordable(self, forwards: int) -> bool:
        """Whether this many more stay within the promised cost."""
        return self.prober.forwards + forwards <= SCREEN_FORWARDS + 8 * self.judged

    def confirm(self, name: str, seen: Direction) -> Judgement:
        """Refutes what is still there at a much smaller step. Where the differences have not converged (a step beyond
        the period of the loss, say), what large steps show is not."""
        if not self._affordable(2):
            return self._cannot(name, "an error was seen, but too rarely to be certain")
        noisy = 40 * self.prober.floor / abs(seen.residual)
        small = self.prober.pair([name], min(seen.tau / 2, max(self.taus[-1], noisy)), seen.number)
        if not (small.clean and abs(small.residual) > abs(seen.residual) / 2):
            return self._cannot(name, "the differences do not converge: large and small steps contradict each other")
        weight, slope = self.prober.weight([name]), abs(seen.slope)
        scale = slope if slope > 1e-3 * weight else weight
        error, bound = self._worst([seen], [name], scale)
        return Judgement(name, "refuted", error, bound, None)

    def conclude(self, name: str, directions: Sequence[Direction]) -> Judgement:
        """Proven when directions within their bounds, with those of the screen, resolve enough."""
        if not directions:
            return self._cannot(name, "a decision (kink, top-k, comparison) changed at every step size that was tried")
        weight = self.prober.weight([name])
        seen = [*directions, *([] if self.exceeding else self.screen)]
        return self._passed(name, self._worst(directions, [name], weight), [self._bound(d) for d in seen])

    def judge_flat(self, names: Sequence[str]) -> dict[str, Judgement | None]:
        """A gradient below the noise is proven only where the loss does not move even for macroscopic steps; its
        resolution is then relative to the whole gradient. None where the loss moves. Four forwards."""
        prober = self.prober
        for number, tau in enumerate(MACROSCOPIC if names else ()):
            pair = prober.pair(names, tau, 200 + number)
            if not pair.clean:
                self.in_pieces.update(names)
                continue
            moved, bound = abs(pair.second) / 2 + tau * abs(pair.slope), 64 * prober.noise
            if max(moved / tau, abs(pair.residual)) <= bound:
                return {name: self._flat(name, moved, abs(pair.residual), bound) for name in names}
            break
        if len(names) <= 1:
            return dict.fromkeys(names)
        return {name: self.judge_flat([name])[name] for name in names}

    def flat_in_piece(self, name: str, direction: Direction) -> Judgement | None:
        """Where larger steps change a decision (a rounding, a dead ReLU), a gradient of exactly zero is proven by a
        forward that does not move by a bit. Its resolution is relative to the whole gradient, or else to the loss."""
        prober, grad, tau = self.prober, self.prober.grads[name], direction.tau
        if name not in self.in_pieces or direction.slope != 0.0 or (grad is not None and bool(grad.any())):
            return None
        scale = prober.weight(self.names) or prober.base.terms
        bound = NOISE_FACTOR * prober.noise / (tau * scale) if scale else 0.0
        # A forward that rounds to float32 where the recorder cannot see would not move either.
        resolution = max(_resolution([bound]), HIDDEN_UNIT / tau, self.backward_floor)
        note = "the loss does not move until a decision changes; errors are relative to the whole gradient, or the loss"
        return Judgement(name, "proven", 0.0, bound, resolution, note) if resolution <= PROVEN_AT else None

    def _flat(self, name: str, moved: float, residual: float, bound: float) -> Judgement:
        grad, whole = self.prober.grads[name], self.prober.weight(self.names)
        if moved == 0.0 and (grad is None or not bool(grad.any())):
            return Judgement(name, "unused", 0.0, 0.0, None, "the output does not depend on it at this input")
        if not whole:
            return self._cannot(name, "every gradient is zero at this input: there is nothing to judge")
        note = "the loss does not depend on it at any step; errors are relative to the whole gradient"
        judged = self._passed(name, (residual / whole, bound / whole), [bound], whole)
        return dataclasses.replace(judged, note=note) if judged.status == "proven" else judged

    def unnamed_culprit(self, judged: Mapping[str, Judgement]) -> dict[str, Judgement]:
        """Where the screen failed though no tensor can be accused, nothing is proven."""
        if not self.exceeding or any(j.status == "refuted" for j in judged.values()):
            return {}
        note = "the joint screen shows an error that cannot be attributed to a single tensor"
        clear = {name: j for name, j in judged.items() if j.status == "proven"}
        return {name: dataclasses.replace(j, status="inconclusive", note=note) for name, j in clear.items()}

    def _passed(
        self, name: str, nearest: tuple[float, float], bounds: Sequence[float], scale: float | None = None
    ) -> Judgement:
        """Within its bounds: proven if they are narrow enough."""
        scale = self.prober.weight([name]) if scale is None else scale
        resolution = max(_resolution(bounds) / scale, self.backward_floor) if scale else math.inf
        if not resolution <= PROVEN_AT:
            return self._unresolved(name, *nearest, resolution)
        return Judgement(name, "proven", *nearest, resolution)

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
        return not abs(direction.residual) <= bound + self.backward_floor * self.prober.weight(names)

    def _worst(self, directions: Sequence[Direction], names: Sequence[str], scale: float) -> tuple[float, float]:
        """Residual and bound, relative to `scale`, of the direction that came nearest to its bound."""
        floor = self.backward_floor * self.prober.weight(names)
        near = max(directions, key=lambda d: abs(d.residual) / (self._bound(d) + floor or 1.0))
        return (abs(near.residual) / scale, (self._bound(near) + floor) / scale) if scale else (0.0, math.inf)

    def _unresolved(self, name: str, error: float, bound: float, resolution: float | None) -> Judgement:
        note = "the gradient is too small compared with the noise of the forward; try another input"
        return Judgement(name, "inconclusive", error, bound, resolution, note)

    def _cannot(self, name: str, note: str) -> Judgement:
        return Judgement(name, "inconclusive", math.nan, math.nan, None, note)


def _resolution(bounds: Sequence[float]) -> float:
    """The error that the m best directions show with 99% confidence: P(all miss) ≈ Π(0.8·bound/‖e‖) = 1%."""
    logs = sorted(math.log(max(bound, 1e-300)) for bound in bounds)
    return min(0.8 * math.exp(statistics.fmean(logs[:m])) / 0.01 ** (1 / m) for m in range(1, len(logs) + 1))


def overall(judgements: Sequence[Judgement]) -> Status:
    """Any refuted, refuted; else any inconclusive, or nothing judged at all, inconclusive; else proven."""
    statuses = {judgement.status for judgement in judgements}
    if "refuted" in statuses:
        return "refuted"
    return "proven" if "proven" in statuses and "inconclusive" not in statuses else "inconclusive"
