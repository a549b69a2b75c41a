"""Plots of an ablation study: scores and differences with intervals, learning curves, accuracy against cost, use of
experts.
"""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from gradproof.report.plots.canvas import (
    BLUE,
    FOREGROUND,
    GREEN,
    GREY,
    ORANGE,
    SERIES,
    cut,
    cut_apart,
    legend,
    sheet,
    svg,
)

SIZE = (4.6, 2.9)  # inches; two in a row on a wide page
MOST = 24  # groups in a heat map


def scores(record: dict[str, Any]) -> Markup:
    """The accuracy of every row of the table with its interval and seeds, and the best possible accuracy if it is
    known.
    """
    rows = record["rows"]
    figure, (axes,) = sheet(10.0, 0.9 + 0.34 * len(rows))
    for y, row in enumerate(rows):
        colour = _colour(record, row["name"])
        axes.plot(
            [100 * score for score in row["scores"]], [y] * len(row["scores"]), "|", color=colour, ms=7, alpha=0.55
        )
        _interval(axes, row["accuracy"], y, colour)
    if record["study"]["bayes"] is not None:
        best = 100 * record["study"]["bayes"]
        axes.axvline(best, color=GREEN, ls="--", lw=1.2, label=f"best possible: {best:.1f}%")
        legend(axes, 1)
    _named(axes, [row["label"] for row in rows])
    axes.set_xlabel("accuracy on the test rows, %", fontsize=9)
    return svg(figure)


def differences(record: dict[str, Any]) -> Markup:
    """Every comparison in percentage points, with its interval. An interval that crosses the line may be chance."""
    comparisons = record["comparisons"]
    if not comparisons:
        return Markup("")
    labels = {row["name"]: row["label"] for row in record["rows"]}
    figure, (axes,) = sheet(10.0, 0.9 + 0.34 * len(comparisons))
    axes.axvline(0, color=FOREGROUND, lw=1, alpha=0.6)
    for y, comparison in enumerate(comparisons):
        better = comparison["difference"]["mean"] > 0
        colour = GREY if not comparison["significant"] else GREEN if better else ORANGE
        _interval(axes, comparison["difference"], y, colour)
    _named(axes, [f"{labels[comparison['first']]} − {labels[comparison['second']]}" for comparison in comparisons], 52)
    axes.set_xlabel("difference in accuracy, percentage points", fontsize=9)
    return svg(figure)


def curves(record: dict[str, Any]) -> Markup:
    """Validation accuracy over steps: the mean of the seeds, and their range."""
    from matplotlib.ticker import MaxNLocator

    if not record["curves"]:
        return Markup("")
    figure, (axes,) = sheet(10.0, 3.4)
    for curve in record["curves"]:
        colour = _colour(record, curve["name"])
        low, high, mean = ([100 * value for value in curve[key]] for key in ("low", "high", "mean"))
        axes.fill_between(curve["steps"], low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(curve["steps"], mean, color=colour, lw=1.7, marker="o", ms=2.5, label=cut(curve["label"], 34))
    _plain(axes, "step", "validation accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(axes, 4)
    return svg(figure)


def against(record: dict[str, Any], key: str, label: str) -> Markup:
    """Accuracy over a cost, on a log axis. Contestants without that cost are horizontal lines."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    rows = record["rows"]
    known = [row for row in rows if row[key]]
    if not known:
        return Markup("")
    figure, (axes,) = sheet(*SIZE)
    marks = "osD^vP*X"
    for i, row in enumerate(rows):
        colour, mean = _colour(record, row["name"]), 100 * row["accuracy"]["mean"]
        style = {"color": colour, "label": cut(row["label"], 24)}
        if not row[key]:
            axes.axhline(mean, ls=":", lw=1.3, **style)
            continue
        low, high = row["accuracy"]["low"], row["accuracy"]["high"]
        spread = None if low is None else [[mean - 100 * low], [100 * high - mean]]
        axes.errorbar([row[key]], [mean], yerr=spread, fmt=marks[i % len(marks)], ms=5, lw=1.4, **style)
    axes.set_xscale("log")
    costs = [row[key] for row in known]
    axes.set_xlim(min(costs) / 2.2, max(costs) * 2.2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(costs) / min(costs) < 30 else (1,), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _amount(x)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _plain(axes, label, "accuracy, %")
    legend(axes, 2)
    return svg(figure)


def shares(grouping: dict[str, Any]) -> Markup:
    """Which expert serves which group. The stronger the colour, the larger the expert's share of the group."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    order = sorted(range(len(grouping["groups"])), key=lambda g: -grouping["rows"][g])[:MOST]
    kept = sorted(order)
    names = cut_apart([grouping["groups"][g] for g in kept])
    share = [grouping["share"][g] for g in kept]
    experts = len(share[0])
    figure, (axes,) = sheet(4.6, 0.8 + 0.27 * len(kept))
    squares, colours = [], []
    for y, row in enumerate(share):
        for x, part in enumerate(row):
            squares.append([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)])
            colours.append((*to_rgb(BLUE), 0.04 + 0.71 * part))
            if experts <= 10:
                style = {"ha": "center", "va": "center", "fontsize": 8, "in_layout": False}
                axes.text(x + 0.5, y + 0.52, f"{100 * part:.0f}", **style)
    axes.add_collection(PolyCollection(squares, facecolors=colours, linewidths=0))
    axes.set(xlim=(0, experts), ylim=(len(kept), 0))
    axes.set_xticks([e + 0.5 for e in range(experts)], [str(e) for e in range(experts)], fontsize=8)
    axes.set_yticks([y + 0.5 for y in range(len(kept))], names, fontsize=8, parse_math=False)
    axes.set_xlabel("expert", fontsize=9)
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    return svg(figure)


def energy(energy_and_error: dict[str, Any]) -> Markup:
    """The error rate in each tenth of the rows, ordered by gluing energy."""
    figure, (axes,) = sheet(*SIZE)
    tenths = range(1, len(energy_and_error["error"]) + 1)
    axes.bar(list(tenths), [100 * rate for rate in energy_and_error["error"]], color=BLUE, alpha=0.8, width=0.8)
    _plain(axes, "decile of gluing energy", "errors, %")
    axes.set_xticks(list(tenths))
    return svg(figure)


def _interval(axes: Any, estimate: dict[str, Any], y: float, colour: str) -> None:
    if estimate["low"] is not None:
        axes.hlines(y, 100 * estimate["low"], 100 * estimate["high"], color=colour, lw=2)
    axes.plot([100 * estimate["mean"]], [y], "o", color=colour, ms=6)


def _named(axes: Any, names: list[str], most: int = 34) -> None:
    axes.set_yticks(range(len(names)), [cut(name, most) for name in names], fontsize=9, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.15, color=FOREGROUND)
    axes.tick_params(labelsize=9)


def _plain(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(axis="y", alpha=0.15, color=FOREGROUND)


def _colour(record: dict[str, Any], name: str) -> str:
    """The colour of a contestant, the same in every plot."""
    names = [row["name"] for row in record["rows"]]
    return SERIES[names.index(name) % len(SERIES)]


def _amount(x: float) -> str:
    if x <= 0 or not math.isfinite(x):
        return ""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:g}{unit}"
    return f"{x:g}"
