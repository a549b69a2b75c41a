"""Finds noise that is due to one part of the computation, which must not run in the format.

Replicas explain every error that rounding makes, also that of a formulation which rounding ruins: angles of large
positions, a long sum that is rounded at every step, a variance as the difference of two squares. So large noise is held
against that of replicas which round less:

    all        every result, as in the format: the noise of the band
    products   inputs, weights, and products with their operands; everything else is fp32
    entry      inputs and weights alone: what the function itself does with rounding

In the last two, what the code itself casts to a narrower type is left as it is. A formulation is unstable where `all`
is far above both, and the output is off too. (Where it is not, as with 1 − tanh² of a saturated unit, the derivatives
of a stable formulation cancel.) Of what deep modules do, entry does as much: there is nothing to keep in fp32. Products
that do as much as all are no more than noise, unless they cancel, as in |a|² + |b|² − 2ab: then all that is left is
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from gradproof.diagnosis.measure import UNROUNDED, Laboratory, Measured, Taken
from gradproof.diagnosis.specimen import plain
from gradproof.diagnosis.verdict import Finding, FormatVerdict, TensorVerdict, percent, together, where_of
from gradproof.precision.band import floor
from gradproof.precision.formats import Format
from gradproof.precision.mode import ENTERING, PRODUCTS, Rounds
from gradproof.precision.watching import Unrepeatable, WatchedComparison
from gradproof.proof.runner import CannotRun

Key = tuple[str, str, str]  # path, phase, op

# Measured on tests/zoo: what is unstable has 1.5 times each of these or more; what is right lacks a third of one.
UNITS = 20.0  # of the format
OVER_PRODUCTS = 5.0
OVER_ENTRY = 6.5
OUTPUT = 4.0  # units in the output
CANCELLED = 100.0  # units in gradient and output, where products do it
RUNS = 2  # of each kind: noise concentrates


@dataclass
class Unstable:
    """A part that must not be computed in the format. Noises are those of all gradients together."""

    path: str
    phase: str
    op: str
    noise: float
    products: float
    entry: float
    flips: int  # of comparisons, where these are what the noise comes through
    comparisons: int
    tensors: dict[str, float]  # noise of those concerned, over what it would be

    @property
    def cancels(self) -> bool:
        """Whether products do it."""
        return self.noise < OVER_PRODUCTS * self.products

    @property
    def least(self) -> float:
        """The noise of what had better not be in fp32."""
        return self.entry if self.cancels else self.products


def unstable(lab: Laboratory, measured: Measured) -> Unstable | None:
    """What is unstable in one format, if something is."""
    format, rounded = measured.format, [run for run in measured.replicas if run.finite]
    if format.operands or format.mantissa >= 23 or measured.policy != "cast" or lab.specimen.native or not rounded:
        return None
    noise, unit, run = median(together(run) for run in rounded), format.unit, measured.real or measured.nearest
    output = median(run.output for run in rounded)
    if noise < UNITS * unit or output < OUTPUT * unit or together(run) < floor(format):
        return None
    trials = Trials(lab, measured)
    with suppress(Unrepeatable, CannotRun):
        less = trials.runs(lambda key: key[2] in PRODUCTS)
        products = trials.noise(less, unit)
        if cancels := noise < OVER_PRODUCTS * products:
            if min(noise, output) < CANCELLED * unit:
                return None
            less = trials.runs(lambda key: False)
        entry = trials.noise(less if cancels else trials.runs(lambda key: False), unit)
        if noise < OVER_ENTRY * entry:
            return None
        tensors = {name: _times(name, rounded, less, unit) for name, c in run.tensors.items() if c.relative > unit}
        most = max(tensors.values(), default=0.0)
        concerned = {plain(name): times for name, times in tensors.items() if times >= min(OVER_PRODUCTS, most)}
        return trials.decided(Unstable(*trials.place(cancels), noise, products, entry, 0, 0, concerned))
    return None


def _times(name: str, rounded: list[Taken], less: list[Taken], unit: float) -> float:
    """How far a tensor's noise is above what rounding less does to it."""
    kept = max(run.tensors[name].error for run in less)
    size = rounded[0].tensors[name].size
    return median(run.tensors[name].error for run in rounded) / max(kept, unit * size, math.ulp(0.0))


class Trials:
    """Stochastically rounded runs of the same format in which not everything is rounded."""

    def __init__(self, lab: Laboratory, measured: Measured):
        self.lab, self.measured = lab, measured

    def take(self, format: Format, **more: Any) -> Taken:
        measured = self.measured
        routing, seen = not measured.diverged, measured.format.dtype
        run = self.lab.take(format, measured.policy, measured.scale, routing=routing, seen=seen, **more)
        run.grads = {}
        return run

    def replica(self, number: int = 0, **more: Any) -> Taken:
        wide = self.lab.boundless(self.measured.format, self.measured.policy)
        return self.take(wide, seed=1 + number + 1000 * self.lab.seed, **more)

    def runs(self, rounds: Rounds, count: int = RUNS) -> list[Taken]:
        """Replicas in which only the ops that it is true of round."""
        return [self.replica(number, rounds=rounds) for number in range(count)]

    def noise(self, runs: list[Taken], least: float) -> float:
        return max(least, *(together(run) if run.finite else math.inf for run in runs))

    def place(self, products: bool) -> Key:
        """The op of the forward, one of the `products` or none of them, whose rounding does most: by halving."""
        places = [place for place in self.measured.replicas[0].watch.samples if place.phase == "forward"]
        entering = [(path, "forward", ENTERING) for path in dict.fromkeys(place.path for place in places)]
        ops = dict.fromkeys(place[:3] for place in places if (place.op in PRODUCTS) == products)
        keys = [*(() if products else entering), *ops]
        while len(keys) > 1:
            halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
            keys = max(halves, key=lambda half: self._does(frozenset(half)))
        return keys[0]

    def _does(self, keys: Collection[Key]) -> float:
        """The noise of rounding these alone; a run that is not finite has more than any other."""
        return self.noise(self.runs(keys.__contains__, 1), 0.0)

    def decided(self, part: Unstable) -> Unstable:
        """Blames comparisons instead, where the noise is gone once they come out as without rounding."""
        right = self.take(UNROUNDED, compares=True).watch.comparisons
        if not right:
            return part
        with suppress(Unrepeatable):
            run = self.replica(compares=True, compared=right)
            differ = [int((a.result != b.result).sum()) for a, b in zip(right, run.watch.comparisons, strict=False)]
            if run.finite and 2 * together(run) < part.noise and any(differ):
                return _through(part, right, differ)
        return part


def _through(part: Unstable, compared: list[WatchedComparison], differ: list[int]) -> Unstable:
    """The same, by way of comparisons that came out otherwise."""
    part.flips, part.comparisons = sum(differ), sum(c.result.numel() for c in compared)
    worst = compared[max(range(len(differ)), key=differ.__getitem__)]
    part.path, part.op = worst.path, worst.op
    return part


def with_unstable(judged: FormatVerdict, part: Unstable) -> FormatVerdict:
    """The verdict on a format with such a part in it: a bug, or routing where comparisons flipped."""
    verdict: Finding = "routing" if part.flips else "bug"

    def blamed(verdicts: list[TensorVerdict]) -> list[TensorVerdict]:
        return [
            replace(j, verdict=verdict, note=_note(j, judged, part)) if j.name in part.tensors else j for j in verdicts
        ]

    parameters, inputs = blamed(judged.parameters), blamed(judged.inputs)
    like = [j for j in (*parameters, *inputs) if j.verdict == verdict]
    worst = max(like, key=lambda j: part.tensors[j.name])
    more = f" ({len(like) - 1} more like it)" if len(like) > 1 else ""
    place = dict(path=part.path, phase=part.phase, op=part.op)
    return replace(
        judged,
        verdict=verdict,
        summary=f"{worst.name}: {worst.note}{more}",
        parameters=parameters,
        inputs=inputs,
        first_divergence=dict(format=judged.format, run="simulated", error=part.noise, noise=part.least, **place),
        unstable=asdict(part),
    )


def _note(j: TensorVerdict, judged: FormatVerdict, part: Unstable) -> str:
    where = where_of(dict(path=part.path, phase=part.phase, op=part.op))
    kept = "inputs and weights" if part.cancels else "the products"
    less = f"with all but {kept} in fp32, the noise is {part.noise / part.least:.0f} times smaller"
    if part.flips:
        return (
            f"off by {percent(j.rel_error)}, because {part.flips} of {part.comparisons} comparisons change, "
            f"most of them at {where}, on values that {judged.format} cannot distinguish; {less}: keep them in fp32"
        )
    fix = "subtract before multiplying, or keep this part in fp32" if part.cancels else "keep this part in fp32"
    loses = "is large and cancels, leaving mostly rounding error" if part.cancels else "loses too much"
    return f"off by {percent(j.rel_error)}: {where} {loses} in {judged.format}; {less}: {fix}"
