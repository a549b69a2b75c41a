"""What all plots share: figures, legends, shortened names, and conversion to inline SVG.

Colours follow the page (`currentColor`), so plots are readable in light and in dark mode.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

from markupsafe import Markup

FOREGROUND = "#010203"  # replaced by currentColor
BLUE, ORANGE, GREEN, GREY = "#3d85c6", "#e0803a", "#2a9d5c", "#8a8f98"
SERIES = (BLUE, ORANGE, GREEN, "#9b6fc4", "#c9a227", "#d0568c", "#35a3a8", GREY)  # readable on white and on black


def sheet(width: float, *heights: float) -> tuple[Any, list[Any]]:
    """A figure with one axes per height (in inches), stacked, with a shared x axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes in grid[:, 0]:
        axes.set_facecolor("none")
        axes.tick_params(colors=FOREGROUND)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(FOREGROUND)
    return figure, list(grid[:, 0])


def legend(axes: Any, columns: int) -> None:
    """A legend above the axes, where it covers no curve."""
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=1.6,
        columnspacing=1.4,
    )


def cut(name: Any, most: int = 18) -> str:
    """The name on one line, shortened in the middle: names differ most often at their ends."""
    name = " ".join(str(name).split())
    return name if len(name) <= most else f"{name[: most * 2 // 3 - 1]}…{name[-(most // 3) :]}"


def cut_apart(names: list[Any]) -> list[str]:
    """Names shortened by `cut`. If two become equal, their common prefix and suffix are removed first."""
    short = [cut(name) for name in names]
    if len(set(short)) == len(names):
        return short
    whole = [" ".join(str(name).split()) for name in names]
    start = _shared_words(whole)
    end = _shared_words([name[start:][::-1] for name in whole])
    return [cut(f"{'…' * (start > 0)}{name[start : len(name) - end]}{'…' * (end > 0)}") for name in whole]


def svg(figure: Any) -> Markup:
    """The figure as an SVG element that has no external references and scales with the page."""
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if text.get_color() == "black":
            text.set_color(FOREGROUND)
    buffer = io.StringIO()
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gradproof", "font.family": "sans-serif"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser draws the text
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    drawn = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    drawn = re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
    return Markup(re.sub(r"<[^>]+>", lambda tag: _tidy(tag[0]), drawn))  # text is escaped, so only tags match


def _shared_words(names: list[str]) -> int:
    """The length of the common prefix of all names, up to the end of a word."""
    shared = 0
    for i, letters in enumerate(zip(*names, strict=False)):
        if len(set(letters)) > 1:
            break
        if not letters[0].isalnum():
            shared = i + 1
    return shared


def _tidy(tag: str) -> str:
    if tag.startswith("<svg"):
        view = re.search(r'viewBox="[^"]*"', tag)
        return f'<svg {view[0] if view else ""} role="img" style="width:100%;height:auto;max-width:60rem">'
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)  # matplotlib reuses ids across the figures of a page
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    return tag.replace(FOREGROUND, "currentColor").replace("xlink:href", "href")
