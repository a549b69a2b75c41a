"""The runs of a diagnosis: the same state and input at several precisions, compared with float64."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradproof.diagnosis.specimen import Prepared, Specimen
from gradproof.precision.band import Band
from gradproof.precision.compared import Compared, compare, ratio
from gradproof.precision.decisions import Decision
from gradproof.precision.formats import Format, format_named
from gradproof.precision.mode import NARROW, CastPolicy, Rounding, autocasts, rounding
from gradproof.precision.probe import check_bf16_on_cpu
from gradproof.precision.watching import Unrepeatable, Watching, sample
from gradproof.proof.runner import CannotRun, one_line

LARGEST_SCALE = 16  # log2
REPLICAS = ((0.1, 16), (1.0, 8), (8.0, 4), (math.inf, 3))  # by the seconds that one run takes
MORE = 4  # times as many, where something leaves their band
UNROUNDED = format_named((8, 20))
SWEEP = ("e8m4", "bf16", "e8m10", "e8m15", "fp32")


@dataclass
class Taken:
    """One run."""

    tensors: dict[str, Compared]
    watch: Watching
    output: float  # its relative error, in a sample
    output_finite: bool
    scale: float
    seconds: float
    grads: dict[str, Tensor]  # times the scale

    @property
    def finite(self) -> bool:
        return self.output_finite and all(c.finite for c in self.tensors.values())


@dataclass
class ErrorParts:
    """Where a run's error comes from, tensor by tensor: low − ref = (low − replayed) + (replayed − ref)."""

    flips: float
    arithmetic: float
    cross: float  # ⟨low − replayed, replayed − ref⟩


@dataclass
class Measured:
    """All runs of one format. `replayed` is the nearest run with the reference's decisions, itself where none flipped;
    the replicas take these too."""

    format: Format
    policy: CastPolicy
    scale: float
    nearest: Taken
    replayed: Taken
    replicas: list[Taken]
    real: Taken | None
    real_replayed: Taken | None
    unreal: str  # why there is no real run
    diverged: str  # why decisions could not be replayed
    boundless: Taken | None  # to nearest with fp32's range, where the format's own may be what is wrong
    unrounded: Taken | None  # what the module computes when it is told this dtype, all but unrounded
    parts: dict[str, ErrorParts] = field(default_factory=dict)


class Laboratory:
    """Runs a specimen and keeps what the reference gave."""

    def __init__(self, specimen: Specimen, seed: int, progress: Callable[[str], None] = lambda what: None):
        self.specimen, self.seed, self.progress = specimen, seed, progress
        prepared = specimen.reference()
        self.watch = Watching(places=specimen.places, trace=True)
        started = time.perf_counter()
        with self.watch:
            outputs, grads = prepared.run(prepared.values, specimen.cotangents)
        self.seconds = time.perf_counter() - started
        self.grads = {name: grad.double() for name, grad in grads.items() if grad is not None}
        self.unused = [name for name, grad in grads.items() if grad is None]
        self.finite = all(bool(y.isfinite().all()) for y in outputs) and _all_finite(self.grads)
        self.values = {name: _compact(value) for name, value in prepared.values.items()}
        self.output = _sampled(outputs)
        self.device = next((y.device for y in outputs), torch.device("cpu"))
        self.repeats = self._repeats(prepared)

    def _repeats(self, prepared: Prepared) -> bool:
        """Whether the same run gives the same gradients again."""
        with Watching(like=self.watch, routing=True):
            try:
                _, again = prepared.run(prepared.values, self.specimen.cotangents)
            except Unrepeatable:
                return False
        grads = {name: grad for name, grad in again.items() if grad is not None}
        size = {name: float(g.norm()) for name, g in self.grads.items()}
        least = 1e-3 * math.hypot(*size.values())  # what cancels to less is rounding, in an order that may change
        return grads.keys() == self.grads.keys() and all(
            float((grad - self.grads[name]).norm()) <= 1e-6 * max(size[name], least) for name, grad in grads.items()
        )

    def measure(self, format: Format, policy: CastPolicy, replicas: int | None = None) -> Measured:
        """Every run of one format."""
        scale, nearest = self._scaled(format, policy)
        replayed, diverged = self._replayed(nearest, lambda: self.take(format, policy, scale, routing=True))
        real, unreal = self._real(format, policy, scale)
        real_replayed = real
        if real is not None and not diverged:
            at = real.scale
            real_replayed, _ = self._replayed(real, lambda: self.take(format, policy, at, routing=True, real=True))
        parts = self._parts(real or nearest, (real_replayed if real else replayed) or nearest)
        judged = [run for run in (replayed, real_replayed) if run is not None]
        for run in (nearest, real, *judged):
            if run is not None:
                run.grads = {}
        unrounded = self._unrounded(format, policy, not diverged)
        count = replicas or next(n for most, n in REPLICAS if nearest.seconds <= most)
        taken = self._replicas(format, policy, scale, not diverged, unrounded, count, judged)
        boundless = self._nearest_boundless(format, policy, scale, not diverged, replayed, taken)
        return Measured(
            format,
            policy,
            scale,
            nearest,
            replayed,
            taken,
            real,
            real_replayed,
            unreal,
            diverged,
            boundless,
            unrounded,
            parts,
        )

    def _unrounded(self, format: Format, policy: CastPolicy, routing: bool) -> Taken | None:
        """The module told that it runs in the format's dtype, and all but unrounded."""
        dtype = rest_of(format).dtype
        if policy == "autocast" or dtype not in NARROW or self.specimen.native:
            return None
        return self.take(UNROUNDED, policy, 1.0, routing=routing, seen=dtype)

    def _replicas(
        self,
        format: Format,
        policy: CastPolicy,
        scale: float,
        routing: bool,
        unrounded: Taken | None,
        count: int,
        judged: Sequence[Taken],
    ) -> list[Taken]:
        """`count` stochastically rounded runs; more while one that is judged leaves their band: a kink that one
        rounding in fifty crosses is noise too."""
        self.progress(f"{format.name}: {count} replicas")
        seen, wide = rest_of(format).dtype, self.boundless(format, policy)
        taken: list[Taken] = []
        while len(taken) < count or (len(taken) < MORE * count and leave(band_of(format, taken), judged)):
            seed = 1 + len(taken) + 1000 * self.seed
            run = self.take(wide, policy, scale, routing=routing, seed=seed, seen=seen, beside=unrounded)
            run.grads = {}
            taken.append(run)
        if unrounded is not None:
            unrounded.grads = {}
        return taken

    def _nearest_boundless(
        self, format: Format, policy: CastPolicy, scale: float, routing: bool, replayed: Taken, taken: list[Taken]
    ) -> Taken | None:
        """To nearest with fp32's range, where the format's own may be what is wrong."""
        rest, same_range = rest_of(format), self.boundless(format, policy) is format
        if rest.exponent >= 8 or not (same_range or leave(band_of(format, taken), [replayed])):
            return None
        with suppress(CannotRun):
            wide = format_named((8, rest.mantissa))
            run = self.take(wide, "cast", scale, routing=routing, seen=rest.dtype)
            run.grads = {}
            return run
        return None

    def boundless(self, format: Format, policy: CastPolicy) -> Format:
        """The format with fp32's range, where it has less: what rounding alone does, without over- and underflow."""
        if format.operands or format.exponent >= 8 or policy == "autocast" or self.specimen.native:
            return format
        return format_named((8, format.mantissa))

    def policy(self, format: Format) -> CastPolicy:
        """ "cast" where the module runs in the format's dtype; "autocast" where types then clash, as in modules that
        make fp32 tensors of their own, or that refuse others."""
        dtype = rest_of(format).dtype
        if dtype not in (torch.bfloat16, torch.float16) or self.specimen.native:
            return "cast"
        try:
            prepared = self.specimen.narrow(dtype)
            with torch.no_grad(), Watching(like=self.watch):
                prepared.run(prepared.values, None)
        except Exception as error:
            return "cast" if "not implemented for" in str(error) else "autocast"
        return "cast"

    def sweep(self, measured: Mapping[str, Measured]) -> list[tuple[Format, Taken]]:
        """To nearest over formats of one range and ever smaller unit, with the reference's decisions."""
        points = []
        for name in SWEEP:
            self.progress(f"sweep: {name}")
            format = format_named(name)
            known = measured.get(name)
            try:
                real = format.dtype is torch.float32  # every device computes in fp32 itself
                taken = known.replayed if known else self.take(format, "cast", 1.0, routing=True, real=real)
                taken.grads = {}
                points.append((format, taken))
            except (Unrepeatable, CannotRun):
                continue
        return points

    def take(
        self,
        format: Format,
        policy: CastPolicy,
        scale: float,
        *,
        routing: bool = False,
        seed: int | None = None,
        real: bool = False,
        seen: torch.dtype | None = None,
        beside: Taken | None = None,
        **more: Any,
    ) -> Taken:
        """One run: to nearest, stochastically rounded where there is a seed, or `real`. The module is told that it runs
        in `seen`, or the format's own dtype; its scatter is measured `beside` another run too. `more` is for the mode:
        `rounds`, `compares`, `compared`."""
        rest, specimen = rest_of(format), self.specimen
        native = rest.dtype in (torch.bfloat16, torch.float16) and (specimen.native or real) and policy == "cast"
        prepared = specimen.narrow(rest.dtype if native and rest.dtype else torch.float32)
        watching: dict[str, Any] = dict(like=self.watch, routing=routing, places=specimen.places, trace=True)
        watching |= more
        if real:
            mode = Watching(within=autocasts(rest) if policy == "autocast" else (), **watching)
        else:
            mode = _mode(format, policy, seed, native, {"seen": seen, **watching})
        enters = isinstance(mode, Rounding) and policy == "cast" and not specimen.native
        values = {
            name: (mode.round(value, rest) if enters else value).to(at.dtype)  # pyright: ignore
            for (name, at), value in zip(prepared.values.items(), self.values.values(), strict=True)
        }
        started = time.perf_counter()
        try:
            with mode, self._attention():
                outputs, grads = prepared.run(values, tuple(c * scale for c in specimen.cotangents))
        except (CannotRun, Unrepeatable):
            raise
        except (Exception, SystemExit) as error:
            how = "real" if real else "simulated"
            raise CannotRun(f"in {format.name} ({how}) it raised {one_line(error)}") from error
        seconds = time.perf_counter() - started
        # What the reference has a gradient for and this run has not, is a gradient of zero.
        low_grads = {n: torch.zeros_like(g) if (low := grads.get(n)) is None else low for n, g in self.grads.items()}
        finite = all(bool(y.isfinite().all()) for y in outputs)
        near = beside.grads if beside else {}
        tensors = {name: compare(low, self.grads[name], scale, near.get(name)) for name, low in low_grads.items()}
        return Taken(tensors, mode, self._output_error(outputs), finite, scale, seconds, low_grads)

    def _output_error(self, outputs: Sequence[Tensor]) -> float:
        output = _sampled(outputs)
        if output.shape != self.output.shape:
            return math.inf
        return ratio(float((output - self.output).norm()), float(self.output.norm()))

    def _attention(self) -> AbstractContextManager[Any]:
        """Fused attention draws its dropout where nobody can draw it again."""
        return sdpa_kernel(SDPBackend.MATH) if self.watch.draws else nullcontext()

    def _scaled(self, format: Format, policy: CastPolicy) -> tuple[float, Taken]:
        """The loss scale and the run to nearest with it: for fp16 the run's own, or the largest power of two up to 2¹⁶
        without overflow; 1 where even that overflows."""
        if rest_of(format).exponent >= 8 or self.specimen.scale is not None:
            scale = self.specimen.scale if rest_of(format).exponent < 8 and self.specimen.scale else 1.0
            return scale, self.take(format, policy, scale)
        taken = self.take(format, policy, 2.0**LARGEST_SCALE)
        if taken.finite:
            return 2.0**LARGEST_SCALE, taken
        low, best = 0, self.take(format, policy, 1.0)
        if not best.finite:
            return 1.0, best
        high = LARGEST_SCALE
        while high - low > 1:
            middle = (low + high) // 2
            taken = self.take(format, policy, 2.0**middle)
            low, high, best = (middle, high, taken) if taken.finite else (low, middle, best)
        return 2.0**low, best

    def _replayed(self, run: Taken, again: Callable[[], Taken]) -> tuple[Taken, str]:
        """The run with the reference's decisions: itself where it took the same ones. And why not, if it cannot."""
        if same_decisions(self.watch, run.watch):
            return run, ""
        try:
            return again(), ""
        except Unrepeatable as reason:
            return run, str(reason)

    def _real(self, format: Format, policy: CastPolicy, scale: float) -> tuple[Taken | None, str]:
        """The run in the device's own arithmetic, or why there is none."""
        rest = rest_of(format)
        device = self.device
        if format.operands and not (format.name == "tf32" and device.type == "cuda"):
            return None, f"{format.name} products are not run on this {device.type}"
        if rest.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            return None, f"no device computes in {format.name}"
        try:
            if rest.dtype is torch.bfloat16 and device.type == "cpu":
                check_bf16_on_cpu()
            taken = self.take(format, policy, scale, real=True)
            while not taken.finite and scale > 1:  # the device may overflow where the simulation just does not
                scale /= 4
                taken = self.take(format, policy, max(scale, 1.0), real=True)
            return taken, ""
        except (ValueError, Unrepeatable) as error:
            return None, str(error)

    def _parts(self, run: Taken, replayed: Taken) -> dict[str, ErrorParts]:
        """Flips and arithmetic, where the two runs are not the same one."""
        if replayed is run:
            return {}
        parts = {}
        for name, g in self.grads.items():
            low, with_replay = run.grads[name].double() / run.scale, replayed.grads[name].double() / replayed.scale
            flips, arithmetic = low - with_replay, with_replay - g
            parts[name] = ErrorParts(float(flips.norm()), float(arithmetic.norm()), float((flips * arithmetic).sum()))
        return parts


def flipped(reference: Watching, run: Watching) -> list[tuple[int, Tensor]]:
    """The decisions that came out otherwise, by number, with their rows; a branch of Python's is numbered from −1
    down."""
    rows = []
    for number, before, now in _pairs(reference, run):
        differ_R = before.flipped_R(now)
        if bool(differ_R.any()):
            rows.append((number, differ_R.nonzero()[:, 0]))
    branches = zip(reference.branches, run.branches, strict=False)
    return rows + [(-1 - i, torch.tensor([0])) for i, (before, now) in enumerate(branches) if before != now]


def same_decisions(reference: Watching, run: Watching) -> bool:
    """Whether everything was decided alike, and in the same order."""
    alike = not any(bool(before.reordered_R(now).any()) for _, before, now in _pairs(reference, run))
    return alike and reference.branches == run.branches


def _pairs(reference: Watching, run: Watching) -> Iterator[tuple[int, Decision, Decision]]:
    for number, (before, now) in enumerate(zip(reference.choices, run.choices, strict=False)):
        if before is not None and now is not None and before.order_Rn.shape == now.order_Rn.shape:
            yield number, before, now


def band_of(format: Format, replicas: Sequence[Taken]) -> Band:
    """What rounding to the format does, tensor by tensor."""
    return Band(format, [replica.tensors for replica in replicas])


def leave(band: Band, runs: Sequence[Taken]) -> bool:
    """Whether some tensor of a run is outside of its band."""
    return any(band.stands(name, c).outside for run in runs for name, c in run.tensors.items())


def rest_of(format: Format) -> Format:
    """The format of everything but the operands of products, if only these are in it."""
    return format_named(format.rest) if format.operands else format


def _mode(format: Format, policy: CastPolicy, seed: int | None, native: bool, watching: dict[str, Any]) -> Rounding:
    """The rounding mode: fp32 tensors carry the format, and code that asks is told the format's dtype; or, `native`,
    tensors of that dtype carry it themselves."""
    operands, rest = format if format.operands else None, rest_of(format)
    seen = watching.pop("seen")
    if rest.dtype is torch.float32:  # these are what the specimen is in already
        carried = NARROW if operands else {**NARROW, torch.float32: rest}
        return Rounding(carried, operands=operands, seed=seed, **watching)
    if native:
        return Rounding(NARROW, operands=operands, seed=seed, **watching)
    return rounding(format, policy, "nearest" if seed is None else "stochastic", seed or 0, seen=seen, **watching)


def _all_finite(grads: Mapping[str, Tensor]) -> bool:
    return all(bool(g.isfinite().all()) for g in grads.values())


def _sampled(outputs: Sequence[Tensor]) -> Tensor:
    return torch.cat([sample(y) for y in outputs])


def _compact(value: Tensor) -> Tensor:
    """The same numbers in half the memory, where float32 holds them."""
    narrow = value.detach().float()
    return narrow if bool((narrow.to(value.dtype) == value).all()) else value.detach().clone()
