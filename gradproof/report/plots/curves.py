"""Plots of a training run by step: loss, accuracy, learning rate, gradient norm, experts."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from gradproof.report.plots.canvas import BLUE, FOREGROUND, GREEN, GREY, ORANGE, SERIES, cut, legend, sheet, svg

Point = tuple[float, float]
SIZE = (4.6, 2.7)  # inches; two in a row on a wide page


def loss(record: dict[str, Any]) -> Markup:
    """The loss of each logged step, its running mean, and the validation loss."""
    raw, mean, validation = (series(record["history"], k) for k in ("loss", "loss_ema", "validation_loss"))
    if not (raw or mean or validation):
        return Markup("")
    figure, axes = _over_steps("loss")
    _log_where_wide(axes, raw + mean + validation, 30)
    _line(axes, raw, color=BLUE, alpha=0.5, lw=0.8, label="batch")
    _line(axes, mean, color=BLUE, lw=1.8, label="running mean")
    _line(axes, validation, color=ORANGE, lw=1.6, marker="o", ms=2.5, label="validation")
    _mark_best(axes, record)
    legend(axes, 4)
    return svg(figure)


def accuracy(record: dict[str, Any]) -> Markup:
    """The validation accuracy, with horizontal lines for the other rows of the score table."""
    points = [(step, 100 * value) for step, value in series(record["history"], "validation_accuracy")]
    if not points:
        return Markup("")
    figure, axes = _over_steps("accuracy, %")
    _line(axes, points, color=ORANGE, lw=1.6, marker="o", ms=2.5)
    others = [score for score in record["scores"][1:] if score["accuracy"] is not None]
    styles = [(GREEN, "--"), (BLUE, "-."), (GREY, (0, (4, 1, 1, 1))), (GREY, (0, (1, 1)))]
    for i, score in enumerate(others):
        colour, dashes = styles[min(i, len(styles) - 1)]
        value = 100 * score["accuracy"]
        line = axes.axhline(value, color=colour, ls=dashes, lw=1.3)
        line.set_label(f"{cut(score['name'], 26)} {value:.1f}%")
    if others:
        legend(axes, 2)
        _read_as_written(axes)
    _mark_best(axes, record)
    return svg(figure)


def rmse(record: dict[str, Any]) -> Markup:
    """The validation RMSE, with horizontal lines for the other rows of the score table."""
    points = series(record["history"], "validation_rmse")
    if not points:
        return Markup("")
    figure, axes = _over_steps("RMSE")
    _line(axes, points, color=ORANGE, lw=1.6, marker="o", ms=2.5)
    others = [score for score in record["scores"][1:] if score["rmse"] is not None]
    for score, colour, dashes in zip(others, (GREEN, BLUE, GREY), ("--", "-.", ":"), strict=False):
        line = axes.axhline(score["rmse"], color=colour, ls=dashes, lw=1.3)
        line.set_label(f"{cut(score['name'], 26)} {score['rmse']:.4g}")
    if others:
        legend(axes, 2)
        _read_as_written(axes)
    _mark_best(axes, record)
    return svg(figure)


def learning_rate(record: dict[str, Any]) -> Markup:
    """The learning rate."""
    points = series(record["history"], "lr")
    if not points:
        return Markup("")
    figure, axes = _over_steps("learning rate")
    _line(axes, points, color=BLUE, lw=1.8)
    axes.set_ylim(bottom=0)
    return svg(figure)


def gradient_norm(record: dict[str, Any]) -> Markup:
    """The norm of the gradient before clipping."""
    points = series(record["history"], "grad_norm")
    if not points:
        return Markup("")
    figure, axes = _over_steps("gradient norm")
    _log_where_wide(axes, points, 10)
    _line(axes, points, color=BLUE, lw=0.9)
    return svg(figure)


def shares(record: dict[str, Any]) -> Markup:
    """The share of routed rows that each expert received, stacked. Experts are numbered at the right."""
    lines = _share_lines(record["history"])
    if not lines:
        return Markup("")
    experts = len(lines[0][1])
    lines = spread(lines, max(50, min(300, 6000 // experts)))  # one polygon per expert: more experts, fewer points
    if len(lines) == 1:  # an area needs two points
        lines = [(lines[0][0] - 0.5, lines[0][1]), (lines[0][0] + 0.5, lines[0][1])]
    figure, axes = _over_steps("share of routed rows, %")
    bands = [[100 * share[e] for _, share in lines] for e in range(experts)]
    colours = [SERIES[e % len(SERIES)] for e in range(experts)]
    axes.stackplot([step for step, _ in lines], bands, colors=colours, alpha=0.8, lw=0)
    below = 0.0
    for e, band in enumerate(bands):
        if band[-1] >= 5:
            middle = below + band[-1] / 2
            axes.text(1.012, middle, str(e), transform=axes.get_yaxis_transform(), fontsize=8, va="center")
        below += band[-1]
    axes.set_ylim(0, 100)
    axes.margins(x=0)
    return svg(figure)


def entropy(record: dict[str, Any]) -> Markup:
    """The mean entropy of the router's probabilities, and its maximum ln E."""
    points, lines = series(record["history"], "router_entropy"), _share_lines(record["history"])
    if not points or not lines:
        return Markup("")
    experts = len(lines[0][1])
    figure, axes = _over_steps("router entropy, nats")
    _line(axes, points, color=BLUE, lw=1.2, label="mean over the rows")
    most = math.log(experts)
    axes.axhline(most, color=FOREGROUND, ls="--", lw=1.2, label=f"uniform: ln {experts} = {most:.2f}")
    axes.set_ylim(0, 1.06 * max(most, *(value for _, value in points)))
    legend(axes, 2)
    return svg(figure)


def series(history: list[dict[str, Any]], key: str) -> list[Point]:
    """(step, value) of the lines that have a finite value."""
    points = ((line.get("step"), line.get(key)) for line in history)
    return [(step, value) for step, value in points if step is not None and value is not None and math.isfinite(value)]


def thin(points: list[Point], most: int = 400) -> list[Point]:
    """At most `most` points: the first, the last, and the minimum and maximum of each interval, so that no spike is
    lost.
    """
    if len(points) <= most:
        return points
    stretches = most // 2 - 1
    ends = [1 + i * (len(points) - 2) // stretches for i in range(stretches + 1)]
    kept = [points[0]]
    for start, end in pairwise(ends):
        stretch = points[start:end]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return [*kept, points[-1]]


def spread(lines: list[Any], most: int) -> list[Any]:
    """At most `most` of the lines, evenly spaced, including the first and the last."""
    if len(lines) <= most:
        return lines
    return [lines[i * (len(lines) - 1) // (most - 1)] for i in range(most)]


def _share_lines(history: list[dict[str, Any]]) -> list[tuple[float, list[float]]]:
    """(step, shares) of the lines that have a share for every expert; empty for a model without experts."""
    lines = [(line.get("step"), line.get("per_expert_share") or []) for line in history]
    experts = max((len(share) for _, share in lines), default=0)
    if experts < 2:
        return []
    return [(s, share) for s, share in lines if s is not None and len(share) == experts and None not in share]


def _over_steps(label: str) -> tuple[Any, Any]:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure, (axes,) = sheet(SIZE[0], SIZE[1])
    axes.tick_params(labelsize=9)
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _steps(x)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _value(y)))
    axes.grid(axis="y", alpha=0.15, color=FOREGROUND)
    return figure, axes


def _line(axes: Any, points: list[Point], **style: Any) -> None:
    points = thin(points)
    if len(points) == 1 or len(points) > 60:  # a single point needs a marker; many would hide the line
        style["marker"] = "o" if len(points) == 1 else None
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], **style)


def _log_where_wide(axes: Any, points: list[Point], factor: float) -> None:
    """Uses a log axis if all values are positive and the largest is more than `factor` times the smallest."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = min(y for _, y in points), max(y for _, y in points)
    if low > 0 and high / low > factor:
        formatter = axes.yaxis.get_major_formatter()
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=8))
        axes.yaxis.set_major_formatter(formatter)
        axes.yaxis.set_minor_formatter(NullFormatter())


def _mark_best(axes: Any, record: dict[str, Any]) -> None:
    best = record["run"]["best_step"]
    if best is not None:
        axes.axvline(best, color=FOREGROUND, ls=":", lw=1.2, label=f"best: step {best:,}")


def _read_as_written(axes: Any) -> None:
    """Draws a $ in a name as a $, not as the start of a formula."""
    for text in axes.get_legend().get_texts():
        text.set_parse_math(False)


def _steps(x: float) -> str:
    if x != int(x):
        return ""
    if abs(x) >= 1e6:
        return f"{x / 1e6:g}M"
    return f"{x / 1e3:g}k" if abs(x) >= 1e4 else f"{x:,.0f}"


def _value(y: float) -> str:
    if y == 0 or 1e-3 <= abs(y) < 1e5:
        return f"{y:,.5g}"
    digits, exponent = f"{y:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"
