"""Plot of predicted against true values."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from gradproof.report.plots.canvas import BLUE, FOREGROUND, ORANGE, sheet, svg

BARS = 150  # intervals drawn; more would overlap


def against(test: dict[str, Any]) -> Markup:
    """Predicted against true values, with the intervals of some rows, orange where they miss the true value."""
    points = [point for point in test["points"] if None not in point]
    if not points:
        return Markup("")
    figure, (axes,) = sheet(4.6, 4.1)
    for colour, missed in ((BLUE, False), (ORANGE, True)):
        shown = [p for p in points[:: -(-len(points) // BARS)] if (not p[2] <= p[0] <= p[3]) == missed]
        axes.vlines(
            [p[0] for p in shown], [p[2] for p in shown], [p[3] for p in shown], color=colour, lw=0.8, alpha=0.5
        )
    axes.plot([p[0] for p in points], [p[1] for p in points], ".", color=BLUE, ms=3, alpha=0.6)
    ends = [min(min(p[:2]) for p in points), max(max(p[:2]) for p in points)]
    axes.plot(ends, ends, color=FOREGROUND, ls="--", lw=1)
    axes.set_xlabel("true value", fontsize=9)
    axes.set_ylabel("predicted value", fontsize=9)
    return svg(figure)
