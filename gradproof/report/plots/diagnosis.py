"""Plots for `diagnose`: error and noise of low-precision gradients, the sweep over units, and decision margins."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from gradproof.report.plots.canvas import FOREGROUND, GREY, cut, legend, sheet, svg

COLOURS = {  # worst first, as in base.html
    "bug": "#d33a2c",
    "overflow": "#d0568c",
    "underflow": "#9b6fc4",
    "routing": "#3d85c6",
    "inconclusive": "#b07c00",
    "noise": "#1f8f95",
    "clean": "#2a9d5c",
}
MOST = 40  # tensors in a plot
LARGEST = 1e2  # relative errors above this are clipped
Edge = tuple[float, int]  # where to draw, and −1, 0 or 1: below, within or above the axis


def worst_first(precisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The formats, worst verdict first; formats with the same verdict keep their order."""
    return sorted(precisions, key=lambda p: _rank(p["verdict"]))


def judged(precision: dict[str, Any]) -> list[dict[str, Any]]:
    """Every tensor of a format with its kind and error/noise, worst verdict first, then by z."""
    judgements = [
        {**j, "kind": kind, "excess": _excess(j["rel_error"], j["noise"]), "z": _z(j)}
        for kind, of in (("parameter", "parameters"), ("input", "inputs"))
        for j in precision[of]
    ]
    return sorted(judgements, key=lambda j: (_rank(j["verdict"]), -j["z"]))


def places(precisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where values left the range, in every format: most overflows first, then most underflows."""
    out_of_range = [{"format": p["format"], **place} for p in precisions for place in p["range"]]
    return sorted(out_of_range, key=lambda r: (-r["overflow"], -r["underflow"]))


def power(value: float) -> str:
    """Formats a power of two as 2^n, and any other value as 1.2e-03."""
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2^{exponent:.0f}" if exponent == exponent and exponent == round(exponent) else f"{value:.1e}"


def tensors(precision: dict[str, Any], most: int = MOST) -> Markup:
    """For each of the worst `most` tensors, side by side: error and noise, ratio of norms, 1 − cosine."""
    shown = judged(precision)[:most][::-1]
    if not shown:
        return Markup("")
    figure, (error, ratio, angle) = _side_by_side(10.0, 1.0 + 0.22 * len(shown), 2.4, 1.0, 1.0)
    names = [cut(j["name"], 40) for j in shown]
    error.set_yticks(range(len(shown)), names, fontsize=8, parse_math=False)
    for axes in (ratio, angle):
        axes.set_yticks(range(len(shown)), [])
    edges = _errors(error, shown) | _ratios(ratio, shown) | _angles(angle, shown)
    for axes in (error, ratio, angle):
        axes.set_ylim(-0.7, len(shown) - 0.3)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="both", alpha=0.13, color=FOREGROUND)
    _key(figure, [j["verdict"] for j in shown], edges)
    return _unclipped(figure)


def sweep(swept: dict[str, Any], most: int = MOST) -> Markup:
    """The relative error at each unit, of all tensors together and of those that shrink least."""
    points = sorted((p for p in swept["points"] if p["unit"]), key=lambda p: p["unit"])
    if not any(p["rel_error"] for p in points):
        return Markup("")
    last = points[0]["parameters"]  # at the finest unit
    names = sorted(last, key=lambda name: math.inf if last[name] is None else last[name], reverse=True)[:most]
    together = [(p["unit"], p["rel_error"]) for p in points]
    lines = [[(p["unit"], p["parameters"][name]) for p in points if name in p["parameters"]] for name in names]
    finest, coarsest = points[0]["unit"], points[-1]["unit"]
    low, high = _decades([finest, coarsest, *(e for line in (together, *lines) for _, e in line)], span=12)
    figure, (axes,) = sheet(4.6, 3.2)
    axes.loglog(
        [finest, coarsest], [finest, coarsest], ls="--", lw=1.2, color=FOREGROUND, label="error = unit (slope 1)"
    )
    for i, line in enumerate(lines):
        drawn = [_at(e, low, high)[0] for _, e in line]
        axes.plot([u for u, _ in line], drawn, color=GREY, lw=0.8, alpha=0.5, label=None if i else "single tensor")
    drawn = [_at(e, low, high)[0] for _, e in together]
    axes.plot([u for u, _ in together], drawn, "o-", color="#3d85c6", lw=2, ms=4, label="all tensors")
    _log(axes.yaxis, low, high, 6)
    axes.set_xticks([p["unit"] for p in points], [f"{cut(p['format'], 9)}\n{power(p['unit'])}" for p in points])
    axes.minorticks_off()
    axes.tick_params(labelsize=8)
    axes.set_xlabel("format and its unit u", fontsize=9)
    axes.set_ylabel("relative error", fontsize=9)
    axes.grid(axis="y", alpha=0.15, color=FOREGROUND)
    legend(axes, 3)
    return _unclipped(figure)


def margins(routing: dict[str, Any]) -> Markup:
    """The margin of each sampled decision against the noise of its scores. Flipped decisions are coloured."""
    flips = [f for f in routing["flipped"] if f["op"] != "branch"]
    everything = [*routing["margins"], *flips]
    if not everything:
        return Markup("")
    bottom, top = _decades([d["noise"] for d in everything], most=math.inf, span=12)
    left, right = _decades([d["margin"] for d in everything], most=math.inf, span=12)
    left, right = min(left, top / 10), max(right, 10 * bottom)  # keep part of the line visible
    figure, (axes,) = sheet(4.6, 3.4)
    groups = (
        ("sampled", routing["margins"], dict(color=GREY, ms=3, alpha=0.6)),
        ("flipped", [f for f in flips if f["explained"]], dict(color=COLOURS["routing"], ms=4.5)),
        ("flipped, not explained", [f for f in flips if not f["explained"]], dict(color=COLOURS["bug"], ms=4.5)),
    )
    for label, group, style in groups:
        if group:
            x, y = [_at(d["margin"], left, right)[0] for d in group], [_at(d["noise"], bottom, top)[0] for d in group]
            axes.plot(x, y, "o", mew=0, label=label, **style)
    start, end = max(left, 2 * bottom), min(right, 2 * top)
    axes.plot([start, end], [start / 2, end / 2], "--", lw=1.2, color=FOREGROUND, label="margin = 2 · noise")
    axes.set(xscale="log", yscale="log")
    _log(axes.xaxis, left, right, 6)
    _log(axes.yaxis, bottom, top, 6)
    axes.minorticks_off()
    axes.tick_params(labelsize=8)
    axes.set_xlabel("margin: last chosen score minus the next", fontsize=9)
    axes.set_ylabel("noise in the scores", fontsize=9)
    axes.grid(alpha=0.15, color=FOREGROUND)
    legend(axes, 3 if len(axes.get_lines()) == 3 else 2)
    return _unclipped(figure)


def beyond(values: list[float | None], most: float = math.inf) -> bool:
    """Whether any value cannot be drawn on a log axis up to `most`: 0, too large, or not finite."""
    return any(not v or v > most for v in values)


def _errors(axes: Any, shown: list[dict[str, Any]]) -> set[int]:
    from matplotlib.collections import PolyCollection

    low, high = _decades([j[of] for j in shown for of in ("rel_error", "noise")], span=8)
    axes.set_xscale("log")
    _log(axes.xaxis, low, high, 6)
    left, tall = axes.get_xlim()[0], 0.34
    bands = [(y, _at(j["noise"], low, high)[0]) for y, j in enumerate(shown) if j["noise"] != 0]
    squares = [[(left, y - tall), (end, y - tall), (end, y + tall), (left, y + tall)] for y, end in bands]
    axes.add_collection(PolyCollection(squares, facecolors=GREY, alpha=0.28, linewidths=0))
    axes.vlines([end for _, end in bands], *([y + by for y, _ in bands] for by in (-tall, tall)), color=GREY, lw=1.4)
    edges = _dots(axes, shown, [_at(j["rel_error"], low, high) for j in shown])
    axes.set_title("error, relative to the reference", fontsize=9)
    return edges


def _ratios(axes: Any, shown: list[dict[str, Any]]) -> set[int]:
    from matplotlib.ticker import FuncFormatter

    ratios = [j["norm_ratio"] for j in shown]
    far = min(1.0, max([1e-6, *(abs(r - 1) for r in ratios if r is not None)]))
    edges = _dots(axes, shown, [_at(r, 1 - far, 1 + far) for r in ratios])
    axes.axvline(1, color=FOREGROUND, lw=1.2)
    axes.set_xlim(1 - 1.12 * far, 1 + 1.12 * far)
    axes.set_xticks([1 - _round(far), 1, 1 + _round(far)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.7g}"))
    axes.set_title("‖low‖ / ‖reference‖", fontsize=9)
    return edges


def _angles(axes: Any, shown: list[dict[str, Any]]) -> set[int]:
    angles = [None if j["cosine"] is None else max(0.0, 1 - j["cosine"]) for j in shown]
    low, high = _decades([max(a, 1e-16) for a in angles if a], span=16)
    axes.set_xscale("log")
    edges = _dots(axes, shown, [None if a is None else _at(a, low, high) for a in angles])
    _log(axes.xaxis, low, high, 4)
    axes.set_title("1 − cosine", fontsize=9)
    if all(a is None for a in angles):
        axes.set_xticks([])
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center", fontsize=8, alpha=0.7)
    return edges


def _dots(axes: Any, shown: list[dict[str, Any]], at: list[Edge | None]) -> set[int]:
    """One dot per tensor in the colour of its verdict; an arrow at the edge for values beyond it."""
    drawn = {(j["verdict"], where[1]) for j, where in zip(shown, at, strict=True) if where}
    for verdict, edge in sorted(drawn):
        here = [
            (where[0], y)
            for y, (j, where) in enumerate(zip(shown, at, strict=True))
            if where and (j["verdict"], where[1]) == (verdict, edge)
        ]
        style = dict(color=_colour(verdict), marker="<o>"[edge + 1], ms=5.5, mew=0, ls="")
        axes.plot([x for x, _ in here], [y for _, y in here], **style)
    return {edge for _, edge in drawn}


def _key(figure: Any, verdicts: list[str], edges: set[int]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=GREY, alpha=0.28, label="noise band")]
    for verdict in sorted(set(verdicts), key=_rank):
        handles.append(Line2D([], [], marker="o", ls="", ms=5.5, mew=0, color=_colour(verdict), label=verdict))
    for edge, label in ((-1, "0 or below the axis"), (1, "not finite or above the axis")):
        if edge in edges:
            marker = "<" if edge < 0 else ">"
            handles.append(Line2D([], [], marker=marker, ls="", ms=5.5, mew=0, color=FOREGROUND, label=label))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=8)


def _side_by_side(width: float, height: float, *ratios: float) -> tuple[Any, list[Any]]:
    """Like `sheet`, but with the axes next to each other."""
    figure, (first,) = sheet(width, height)
    first.remove()
    row = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    for axes in row:
        axes.set_facecolor("none")
        axes.tick_params(colors=FOREGROUND, labelsize=8)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(FOREGROUND)
    return figure, list(row)


def _unclipped(figure: Any) -> Markup:
    """Converts to SVG without clip paths: figures share them, and browsers ignore one in a closed <details>."""
    for artist in figure.findobj():
        artist.set_clip_on(False)
    return svg(figure)


def _decades(values: list[float | None], most: float = LARGEST, span: int = 8) -> tuple[float, float]:
    """Powers of ten around the positive values up to `most`, at most `span` decades."""
    known = [math.log10(min(v, most)) for v in values if v is not None and v > 0]
    if not known:
        return 1e-3, 1.0
    high = math.ceil(max(known))
    return 10.0 ** min(high - 1, max(math.floor(min(known)), high - span)), 10.0**high


def _at(value: float | None, low: float, high: float) -> Edge:
    """Where to draw a value. A value that is not finite (null) lies above the axis."""
    if value is None or value > high:
        return high, 1
    return (low, -1) if value < low else (value, 0)


def _log(axis: Any, low: float, high: float, most: int) -> None:
    """At most `most` labelled powers of ten, with room for the markers at both ends."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    first, last = round(math.log10(low)), round(math.log10(high))
    step = max(1, math.ceil((last - first) / (most - 1)))
    axis.set_major_locator(FixedLocator([10.0**e for e in range(first, last + 1, step)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}" if 0.01 <= v <= 100 else f"1e{math.log10(v):.0f}"))
    room = (high / low) ** 0.03
    (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(low / room, high * room)


def _round(far: float) -> float:
    """The largest number of the form 1, 2 or 5 times a power of ten that is at most `far`."""
    power = 10.0 ** math.floor(math.log10(far))
    return next((m * power for m in (5, 2) if m * power <= far * (1 + 1e-9)), power)


def _excess(error: float | None, noise: float | None) -> float | None:
    """error/noise; infinite if the noise is 0, None if it is unknown."""
    if noise is None:
        return None
    if error is None or not noise:
        return 0.0 if error == 0 else math.inf
    return error / noise


def _z(j: dict[str, Any]) -> float:
    """The JSON writes both infinities as null: no error at all, or an error that no noise explains."""
    if j["z"] is not None:
        return j["z"]
    return -math.inf if j["rel_error"] == 0 else math.inf


def _rank(verdict: str) -> int:
    return list(COLOURS).index(verdict) if verdict in COLOURS else len(COLOURS)


def _colour(verdict: str) -> str:
    return COLOURS.get(verdict, GREY)
