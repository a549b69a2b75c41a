"""The verdict on each tensor, from the runs of one format.

What leaves the band of noise is explained by what happened: decisions that flipped, values that left the format's
range, or else neither, which is a bug: rounding to nearest that drifts where unbiased rounding does not (a sum that
stagnates), a dtype in which the module computes something else, a device that does something else in this format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from gradproof.diagnosis.measure import Measured, Taken, band_of, flipped, rest_of
from gradproof.diagnosis.specimen import plain
from gradproof.precision.band import Band, Standing, floor
from gradproof.precision.compared import Compared, ratio
from gradproof.precision.formats import Format
from gradproof.precision.watching import Place, Watching

Finding = Literal["bug", "overflow", "underflow", "routing", "noise", "clean", "inconclusive"]
WORST_FIRST: tuple[Finding, ...] = ("bug", "overflow", "underflow", "routing", "inconclusive", "noise", "clean")
FLIPS = 0.5  # times the error of arithmetic, from where on flips are what a tensor's error is put down to
LOST = 0.5  # of a gradient, vanished in the format's range and not outside it: underflow whatever the noise


@dataclass
class TensorVerdict:
    """One tensor in one format. `noise` and `rel_error` are relative to the reference gradient."""

    name: str
    verdict: Finding
    norm_ratio: float
    cosine: float
    rel_error: float
    noise: float
    z: float
    bias: float  # the mean signed error in its standard deviations: about N(0, 1) for errors of random sign
    note: str = ""


@dataclass
class RoutingVerdict:
    """The decisions of a format's run beside the reference's."""

    decisions: int = 0
    flips: int = 0
    margin_explained: float | None = None
    error_from_flips: float = 0.0
    error_from_arithmetic: float = 0.0
    cross: float = 0.0
    flipped: list[dict[str, Any]] = field(default_factory=list)
    margins: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class FormatVerdict:
    """One format: the worst of its tensors, and what explains it."""

    format: str
    verdict: Finding
    summary: str
    unit: float
    policy: str
    scale: float
    replicas: int
    simulated_only: str
    rel_error: float
    noise: float
    parameters: list[TensorVerdict]
    inputs: list[TensorVerdict]
    routing: RoutingVerdict
    range: list[dict[str, Any]]
    first_divergence: dict[str, Any] | None
    critical_z: float
    unstable: dict[str, Any] | None = None  # a part that must not be computed in this format


def judge_format(
    reference: Watching, measured: Measured, wrong: Mapping[str, TensorVerdict], inputs: frozenset[str], device: str
) -> FormatVerdict:
    """Every tensor of one format. `wrong` are those that step 1 has refuted: a bug in every format."""
    run, format = measured.real or measured.nearest, measured.format
    band = band_of(format, measured.replicas)
    routing = judge_routing(reference, run.watch, measured)
    lost = _range(measured.nearest.watch)
    judged = {
        name: wrong.get(name) or _judge(name, measured, band, routing, lost, device)
        for name in measured.nearest.tensors
    }
    judged = {name: replace(j, name=plain(name)) for name, j in {**wrong, **judged}.items()}
    worst = overall([j.verdict for j in judged.values()])
    divergence = first_divergence(reference, measured, worst) if worst in ("bug", "overflow", "underflow") else None
    return FormatVerdict(
        format=format.name,
        verdict=worst,
        summary=_sentence(worst, list(judged.values()), divergence),
        unit=format.unit,
        policy=measured.policy,
        scale=measured.scale,
        replicas=len(measured.replicas),
        simulated_only=measured.unreal,
        rel_error=together(run),
        noise=max((together(r) for r in measured.replicas if r.finite), default=math.nan),
        parameters=[j for name, j in judged.items() if name not in inputs],
        inputs=[j for name, j in judged.items() if name in inputs],
        routing=routing,
        range=lost,
        first_divergence=divergence,
        critical_z=band.critical,
    )


def with_rest(judged: FormatVerdict, rest: FormatVerdict) -> FormatVerdict:
    """A format of operands rounds all that its rest does, and more: what is a bug or unstable there is so here, even
    where the coarser operands' noise covers it."""
    verdict = rest.verdict if rest.verdict == "bug" or rest.unstable else "clean"
    known = {j.name: j for j in (*rest.parameters, *rest.inputs) if j.verdict == verdict != "clean"}
    if not known or WORST_FIRST.index(judged.verdict) <= WORST_FIRST.index(verdict):
        return judged

    def inherited(verdicts: list[TensorVerdict]) -> list[TensorVerdict]:
        notes = {name: f"as in {rest.format}: {j.note}" for name, j in known.items()}
        return [replace(j, verdict=verdict, note=notes[j.name]) if j.name in known else j for j in verdicts]

    return replace(
        judged,
        verdict=verdict,
        summary=f"as in {rest.format}: {rest.summary}",
        parameters=inherited(judged.parameters),
        inputs=inherited(judged.inputs),
        first_divergence=rest.first_divergence,
        unstable=rest.unstable,
    )


def _judge(
    name: str, measured: Measured, band: Band, routing: RoutingVerdict, lost: list[dict[str, Any]], device: str
) -> TensorVerdict:
    run = (measured.real or measured.nearest).tensors[name]
    simulated = band.stands(name, measured.replayed.tensors[name])
    real = band.stands(name, measured.real_replayed.tensors[name]) if measured.real_replayed else simulated
    verdict, note = _category(name, measured, band, routing, lost, simulated, real, device)
    z = min(99.0, max(-99.0, simulated.z, real.z))
    return TensorVerdict(
        name, verdict, run.norm_ratio, run.cosine, run.relative, ratio(band.noise(name), run.size), z, run.bias, note
    )


def _category(
    name: str,
    measured: Measured,
    band: Band,
    routing: RoutingVerdict,
    lost: list[dict[str, Any]],
    simulated: Standing,
    real: Standing,
    device: str,
) -> tuple[Finding, str]:
    """The verdict on one tensor and the sentence for it."""
    format, narrow = measured.format, rest_of(measured.format).exponent < 8
    near, run = measured.nearest.tensors[name], (measured.real or measured.nearest).tensors[name]
    overflows = next((place for place in lost if place["overflow"]), None)
    if not near.finite:
        return _not_finite(format, overflows, lost)
    if not run.finite and narrow:
        return "overflow", f"the {device} run is not finite: {_overflowed(format, overflows)}"
    if not run.finite:
        return "bug", f"the {device} run in {format.name} is not finite, although the simulated rounding is harmless"
    unrounded = measured.unrounded.tensors[name] if measured.unrounded else None
    # Where nothing is rounded there is no noise either: an error as large as the format's is something else.
    if unrounded and unrounded.finite and unrounded.error > band.noise(name) and unrounded.relative > 4 * format.unit:
        return "bug", (
            f"off by {percent(unrounded.relative)} in {format.name} even without rounding: in this dtype "
            "the module computes something else, or a part of it uses a narrower format"
        )
    boundless = measured.boundless.tensors[name] if measured.boundless else None
    if simulated.outside:
        if boundless and not band.stands(name, boundless).outside:
            if overflows:
                return "overflow", f"off by {percent(near.relative)}: {_overflowed(format, overflows)}"
            return "underflow", _underflowed(near, measured)
        return "bug", (
            f"rounded to nearest, the gradient is off by {percent(near.relative)}, {simulated.excess:.0f} times what "
            "unbiased rounding of the same unit does: it drifts, as a sum that stagnates does"
        )
    if boundless and near.lost > LOST * near.size > boundless.lost:
        return "underflow", _underflowed(near, measured)
    if real.outside and boundless and near.error > 1.5 * boundless.error:
        return "underflow", _underflowed(near, measured)
    if real.outside:
        return "bug", (
            f"the {device} run in {format.name} is off by {percent(run.relative)}, {real.excess:.0f} times what "
            f"rounding to {format.name} does: not rounding"
        )
    return _routed(name, measured, routing, overflows)


def _not_finite(format: Format, overflows: dict[str, Any] | None, lost: list[dict[str, Any]]) -> tuple[Finding, str]:
    """What a format's range does to a gradient that is finite outside of it."""
    if overflows or not any(place["underflow"] and place["phase"] == "forward" for place in lost):
        return "overflow", f"not finite: {_overflowed(format, overflows)}"
    place = next(place for place in lost if place["underflow"] and place["phase"] == "forward")
    return "underflow", (
        f"not finite, although nothing overflows: values vanish at {where_of(place)} and are probably divided by"
    )


def _routed(
    name: str, measured: Measured, routing: RoutingVerdict, overflows: dict[str, Any] | None
) -> tuple[Finding, str]:
    """What is within its band once the reference's decisions are replayed."""
    run, part = (measured.real or measured.nearest).tensors[name], measured.parts.get(name)
    if part and part.flips > FLIPS * part.arithmetic:
        if overflows:
            return "overflow", f"decisions flipped: {_overflowed(measured.format, overflows)}"
        unexplained = routing.flips * (1 - (routing.margin_explained or 0.0))
        share = f"{routing.flips} of {routing.decisions} decisions flipped"
        if not routing.flips:
            return "routing", "the same items were chosen in a different order, and the order matters here"
        if unexplained > max(2.0, routing.flips / 2):
            return "bug", f"{share}, {unexplained:.0f} of them with margins that rounding does not explain"
        return "routing", f"{share}, which makes {_share(part.flips, part.arithmetic):.0%} of the error"
    return ("clean" if run.relative <= measured.format.unit else "noise"), ""


def judge_routing(reference: Watching, run: Watching, measured: Measured) -> RoutingVerdict:
    """Flipped rows, and whether their margins in the reference are within what noise does to the scores, or they
    follow an earlier flip."""
    flipped_rows = flipped(reference, run)
    # Python reads many truth values, and much is sorted, where nothing is decided: these count where they flipped.
    chosen = {number for number, d in enumerate(reference.choices) if d is not None and d.index_RK is not None}
    rows = sum(d.rows for d in reference.decisions) + sum(
        len(rows) for number, rows in flipped_rows if number not in chosen
    )
    listed = [flip for number, rows_F in flipped_rows for flip in _flips(reference, measured, number, rows_F.tolist())]
    size = math.hypot(*(c.size for c in measured.nearest.tensors.values()))
    flips, arithmetic = (math.hypot(*(getattr(p, a) for p in measured.parts.values())) for a in ("flips", "arithmetic"))
    if not measured.parts:
        arithmetic = together(measured.real or measured.nearest) * size
    return RoutingVerdict(
        decisions=rows,
        flips=len(listed),
        margin_explained=sum(f["explained"] for f in listed) / len(listed) if listed else None,
        error_from_flips=ratio(flips, size),
        error_from_arithmetic=ratio(arithmetic, size),
        cross=ratio(sum(p.cross for p in measured.parts.values()), size**2),
        flipped=listed[:MOST_LISTED],
        margins=_margins(reference, measured),
    )


MOST_LISTED = 1000


def _flips(reference: Watching, measured: Measured, number: int, rows: list[int]) -> list[dict[str, Any]]:
    """The flipped rows of one decision. Python's own branches have no scores, and so no margin."""
    if number < 0:
        return [dict(decision=number, path="", op="branch", row=0, margin=None, noise=None, explained=False)]
    before = reference.choices[number]
    assert before is not None
    margin_R, noise_R = before.margin_R(), _score_noise(reference, measured, number)
    again = (measured.real_replayed or measured.replayed).watch.choices[number]
    follows_R = ~before.flipped_R(again) if again is not None else None
    listed = []
    for row in rows:
        margin, noise = float(margin_R[row]), float(noise_R[row])
        explained = margin <= 2 * noise or (follows_R is not None and bool(follows_R[row]))
        figures = dict(margin=margin, noise=noise, explained=explained)
        listed.append(dict(decision=number, path=before.path, op=before.op, row=row, **figures))
    return listed


def _score_noise(reference: Watching, measured: Measured, number: int) -> torch.Tensor:
    """The largest error of each row's scores among the replicas."""
    before = reference.choices[number]
    assert before is not None
    worst_R = torch.zeros(before.rows, dtype=torch.float64, device=before.scores_Rn.device)
    for replica in measured.replicas:
        now = replica.watch.choices[number] if number < len(replica.watch.choices) else None
        if now is not None and now.scores_Rn.shape == before.scores_Rn.shape:
            error_Rn = (now.sign * now.scores_Rn - before.sign * before.scores_Rn).abs().nan_to_num(nan=math.inf)
            worst_R = torch.maximum(worst_R, error_Rn.amax(1))
    return worst_R


def _margins(reference: Watching, measured: Measured, most: int = 400) -> list[dict[str, Any]]:
    """A sample of all decisions, flipped or not: margin beside score noise."""
    listed = []
    for number, decision in enumerate(reference.choices):
        if decision is None or decision.index_RK is None:
            continue
        margin_R, noise_R = decision.margin_R(), _score_noise(reference, measured, number)
        step = max(1, math.ceil(decision.rows * len(reference.decisions) / most))
        listed += [dict(margin=float(margin_R[r]), noise=float(noise_R[r])) for r in range(0, decision.rows, step)]
    return listed[: 2 * most]


def first_divergence(reference: Watching, measured: Measured, verdict: Finding) -> dict[str, Any] | None:
    """The first op whose result leaves its band of noise, in the run that left it; the first to overflow, where one
    did."""
    if verdict == "overflow":
        place = next((place for place in _range(measured.nearest.watch) if place["overflow"]), None)
        if place:
            return dict(format=measured.format.name, run="simulated", error=None, noise=None, **place)
    for label, run in (("simulated", measured.replayed), ("real", measured.real_replayed)):
        divergence = _leaves_band(reference, run, measured) if run is not None else None
        if divergence:
            place, error, noise = divergence
            return dict(format=measured.format.name, run=label, error=error, noise=noise, **place._asdict())
    return None


def _leaves_band(reference: Watching, run: Taken, measured: Measured) -> tuple[Place, float, float] | None:
    unit = measured.format.unit
    for place, right in reference.samples.items():
        here = run.watch.samples.get(place)
        if here is None or here.shape != right.shape:
            continue
        size, error = float(right[right.isfinite()].norm()), _distance(here, right)
        replicas = [r.watch.samples.get(place) for r in measured.replicas]
        errors = [_distance(r, right) for r in replicas if r is not None and r.shape == right.shape]
        noise = max([unit * size, *(e for e in errors if math.isfinite(e))])
        if not error <= 8 * noise and not error <= floor(measured.format) * size:
            return place, ratio(error, size), ratio(noise, size)
    return None


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖, where two infinities of one sign are the same."""
    return float(torch.where(a == b, 0.0, a - b).norm())


def _range(watch: Watching) -> list[dict[str, Any]]:
    places = getattr(watch, "ranges", {})
    return [
        dict(path=path, phase=phase, op=op, overflow=r.overflow, underflow=r.underflow)
        for (path, phase, op), r in places.items()
    ]


def overall(verdicts: Sequence[Finding]) -> Finding:
    """The worst."""
    return min(verdicts, key=WORST_FIRST.index) if verdicts else "inconclusive"


def together(run: Taken) -> float:
    """The relative error of all tensors as one."""
    error, size = (math.hypot(*(getattr(c, of) for c in run.tensors.values())) for of in ("error", "size"))
    return ratio(error, size)


def severity(j: TensorVerdict) -> tuple[int, float, float]:
    """Sorts tensors worst first: by verdict, then by how far beyond the noise, then by the error itself, for what is
    wrong in float64 or overflows has the largest z there is."""
    z, error = (0.0 if figure != figure else figure for figure in (j.z, j.rel_error))
    return WORST_FIRST.index(j.verdict), -z, -error


def _sentence(verdict: Finding, judged: Sequence[TensorVerdict], divergence: dict[str, Any] | None) -> str:
    """The worst tensor in words, how many are like it, and where it began."""
    like = sorted((j for j in judged if j.verdict == verdict), key=severity)
    if verdict == "clean":
        return "every gradient is right to one unit of the format"
    if verdict == "noise":
        # A gradient that cancels to nothing has no relative error worth telling.
        far = max(like, key=lambda j: j.rel_error if j.rel_error < 1e3 else 0.0)
        return f"rounding explains the error of every gradient; the largest error is {far.rel_error:.1e}, of {far.name}"
    more = f" ({len(like) - 1} more like it)" if len(like) > 1 else ""
    where = f"; first at {where_of(divergence)}" if divergence and verdict != "overflow" else ""
    return f"{like[0].name}: {like[0].note}{more}{where}" if like else "nothing could be judged"


def percent(relative: float) -> str:
    """A relative error; of a gradient that cancels to nothing it is a large multiple."""
    return f"{relative:.1%}" if relative < 10 else f"{relative:.0e} times its size"


def where_of(place: Mapping[str, Any]) -> str:
    """A place in words."""
    inside = f" in {place['path']}" if place["path"] else ""
    return f"{place['op']}{inside} ({place['phase'] or 'run'})"


def _overflowed(format: Format, place: dict[str, Any] | None) -> str:
    where = f" at {where_of(place)}" if place else ""
    return f"values beyond {rest_of(format).largest:g}{where} overflow in {format.name}"


def _underflowed(c: Compared, measured: Measured) -> str:
    share = f"{c.lost / c.size:.0%} of the gradient is lost" if c.size else "the gradient is lost"
    if c.lost < 0.005 * c.size:
        share = f"the gradient is off by {percent(c.relative)}"
    smallest, scale = rest_of(measured.format).smallest, math.log2(measured.scale)
    return f"{share} below {smallest:.1e}, even at a loss scale of 2^{scale:.0f}"


def _share(a: float, b: float) -> float:
    return a * a / (a * a + b * b) if a or b else 0.0
