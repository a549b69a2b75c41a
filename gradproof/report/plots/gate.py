"""Plots of a gate's quality: the ROC at low false positive rates, and recall over a stream."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from gradproof.report.plots.canvas import BLUE, FOREGROUND, GREY, ORANGE, legend, sheet, svg

SIZE = (4.6, 2.9)  # inches
LEAST = 1e-4  # share of allowed calls; the axis is logarithmic


def roc(curves: dict[str, list[list[float]]]) -> Markup:
    """Recall of `block` over the share of allowed calls blocked, by name; vertical lines at 0.1% and 1%."""
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        return Markup("")
    figure, (axes,) = sheet(*SIZE)
    for share in (0.001, 0.01):
        axes.axvline(share, color=FOREGROUND, ls=":", lw=0.9)
    for (name, points), colour in zip(drawn.items(), (BLUE, ORANGE, GREY), strict=False):
        axes.step(
            [max(LEAST, x) for x, _ in points], [100 * y for _, y in points], where="post", color=colour, label=name
        )
    axes.set_xscale("log")
    axes.set_xlim(LEAST, 1)
    axes.set_ylim(0, 102)
    axes.set_xticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["0.01%", "0.1%", "1%", "10%", "100%"])
    _label(axes, "allowed calls blocked (false positive rate)", "recall of block, %")
    legend(axes, 2)
    return svg(figure)


def over_time(passes: dict[str, list[dict[str, Any]]], key: str, label: str, begins: int) -> Markup:
    """A metric of each window of the stream, by name; the vertical line marks where the evaluated part begins."""
    figure, (axes,) = sheet(*SIZE)
    for (name, windows), colour in zip(passes.items(), (BLUE, ORANGE), strict=False):
        there = [(window["position"], 100 * window[key]) for window in windows if window[key] is not None]
        axes.plot([x for x, _ in there], [y for _, y in there], color=colour, marker="o", ms=3, lw=1.6, label=name)
    axes.axvline(begins, color=FOREGROUND, ls=":", lw=1.0)
    axes.set_ylim(top=101)
    _label(axes, "call", label)
    legend(axes, 2)
    return svg(figure)


def _label(axes: Any, x: str, y: str) -> None:
    axes.tick_params(labelsize=9)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.grid(axis="y", alpha=0.15, color=FOREGROUND)
