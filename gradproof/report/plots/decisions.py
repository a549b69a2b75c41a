"""Plots of a model's decisions on held-out rows: the confusion matrix and the calibration curve."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from gradproof.report.plots.canvas import BLUE, FOREGROUND, GREY, ORANGE, cut_apart, sheet, svg

MOST = 20  # classes in the confusion matrix
HALF = 12  # up to this many fit into half the width of the page


def confusion(test: dict[str, Any], most: int = MOST) -> Markup:
    """Counts by true and predicted class, coloured by the share of the row; only the most confused classes if there are
    many.
    """
    import numpy as np

    counts = np.asarray(test["confusion"], dtype=np.int64)
    if not counts.size:
        return Markup("")
    shown = most_confused(counts, most)
    names = cut_apart([test["classes"][i]["name"] for i in shown])
    totals = counts[shown].sum(1, keepdims=True)
    cells = counts[np.ix_(shown, shown)]
    columns = list(names)
    if len(shown) < len(counts):
        cells = np.hstack([cells, totals - cells.sum(1, keepdims=True)])
        columns.append("all others")
    n = len(shown)
    figure, (axes,) = sheet(4.6, 4.1) if n <= HALF else sheet(10.0, 1.3 + 0.26 * n)
    _cells(axes, cells, cells / np.maximum(totals, 1))
    upright = max(map(len, columns)) > 3
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, fontsize=8, parse_math=False, rotation=90 if upright else 0)
    axes.set_yticks(np.arange(n) + 0.5, names, fontsize=8, parse_math=False)
    axes.set_xlabel("predicted class", fontsize=9)
    axes.set_ylabel("true class", fontsize=9)
    return svg(figure)


def most_confused(counts: Any, most: int = MOST) -> list[int]:
    """The classes with the most errors, as true or as predicted class, in class order."""
    wrong = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    return sorted((-wrong).argsort(kind="stable")[:most].tolist())


def pairs(test: dict[str, Any], most: int = 10) -> list[dict[str, Any]]:
    """The most common errors: true class, predicted class, rows, share of the true class's rows."""
    import numpy as np

    counts = np.array(test["confusion"], dtype=np.int64)
    if not counts.size:
        return []
    totals = counts.sum(1)
    np.fill_diagonal(counts, 0)
    commonest = []
    for place in (-counts.ravel()).argsort(kind="stable")[:most].tolist():
        true, predicted = divmod(place, len(counts))
        if rows := int(counts[true, predicted]):
            true_name, predicted_name = test["classes"][true]["name"], test["classes"][predicted]["name"]
            commonest.append(
                {"true": true_name, "predicted": predicted_name, "rows": rows, "share": rows / totals[true]}
            )
    return commonest


def calibration(test: dict[str, Any]) -> Markup:
    """Accuracy at each confidence with 95% intervals, above a histogram of the confidences."""
    bins = [b for b in test["calibration"] if b["count"] and b["confidence"] is not None and b["accuracy"] is not None]
    if not bins:
        return Markup("")
    figure, (curve, histogram) = sheet(4.6, 3.0, 1.1)
    curve.plot([0, 100], [0, 100], color=FOREGROUND, lw=1, ls="--", alpha=0.6)
    x, y = [100 * b["confidence"] for b in bins], [100 * b["accuracy"] for b in bins]
    ends = [_interval(b["accuracy"], b["count"]) for b in bins]
    curve.vlines(x, [100 * low for low, _ in ends], [100 * high for _, high in ends], color=BLUE, alpha=0.5, lw=1.5)
    curve.plot(x, y, "o-", color=BLUE, lw=1.6, ms=4)
    curve.set(xlim=(0, 100), ylim=(0, 102))
    curve.set_ylabel("right, %", fontsize=9)
    for b in bins:
        histogram.bar(100 * b["low"], b["count"], 100 * (b["high"] - b["low"]) - 0.8, align="edge", color=GREY)
    histogram.set_ylabel("rows", fontsize=9)
    histogram.set_xlabel("confidence (probability of the predicted class), %", fontsize=9)
    histogram.yaxis.set_major_formatter("{x:,.0f}")
    histogram.locator_params(axis="y", nbins=3)
    for axes in (curve, histogram):
        axes.tick_params(labelsize=9)
        axes.grid(axis="y", alpha=0.15, color=FOREGROUND)
    return svg(figure)


def _cells(axes: Any, counts: Any, shares: Any) -> None:
    """One square per cell, blue if right, orange if wrong. The larger the share of the row, the stronger the colour."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    rows, columns = counts.shape
    squares, colours = [], []
    style = {"ha": "center", "va": "center", "fontsize": 11 if rows < 6 else 8, "in_layout": False}
    for y in range(rows):
        for x in range(columns):
            if not counts[y, x]:
                continue
            squares.append([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)])
            # Translucent, so that the number stays readable in light and in dark mode.
            colours.append((*to_rgb(BLUE if x == y else ORANGE), 0.06 + 0.69 * float(shares[y, x])))
            axes.text(x + 0.5, y + 0.52, _short(int(counts[y, x])), **style)
    axes.add_collection(PolyCollection(squares, facecolors=colours, linewidths=0))
    axes.hlines(range(rows + 1), 0, columns, color=FOREGROUND, alpha=0.12, lw=0.6)
    axes.vlines(range(columns + 1), 0, rows, color=FOREGROUND, alpha=0.12, lw=0.6)
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)


def _interval(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a proportion of `count`."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return middle - half, middle + half


def _short(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1e3:.0f}k" if count < 1e6 else f"{count / 1e6:.1f}M"
