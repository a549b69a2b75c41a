"""Plots for `verify`: errors of tensors and claims against their bounds."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from gradproof.report.plots.canvas import FOREGROUND, sheet, svg

STATUS_COLOURS = {"proven": "#2a9d5c", "refuted": "#d33a2c", "inconclusive": "#d99a00", "unused": "#8a8f98"}


def tensors(subject: dict[str, Any], most: int = 40) -> Markup:
    """The measured error, bound and resolution of each tensor; the worst `most` if there are more."""
    judged = [j for j in (*subject["parameters"], *subject["inputs"]) if j["error"] is not None and j["bound"]]
    judged = sorted(judged, key=lambda j: j["error"] / j["bound"], reverse=True)[:most][::-1]
    if not judged:
        return Markup("")
    figure, (axes,) = sheet(8.5, 0.9 + 0.24 * len(judged))
    for y, j in enumerate(judged):
        colour = STATUS_COLOURS[j["status"]]
        axes.plot(j["bound"], y, "|", color=FOREGROUND, ms=13, mew=1.4, label="bound" if not y else None)
        axes.plot(max(j["error"], 1e-18), y, "o", color=colour, ms=5.5, label="measured error" if not y else None)
        if j["resolution"]:
            axes.plot(j["resolution"], y, "|", color=colour, ms=9, mew=2, label="resolution" if not y else None)
    axes.set_yticks(range(len(judged)), [j["name"] for j in judged], fontsize=8, parse_math=False)
    axes.set_ylim(-0.7, len(judged) - 0.3)
    axes.set_xscale("log")
    axes.set_xlabel("relative to the gradient")
    axes.grid(axis="x", alpha=0.15, color=FOREGROUND)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
    return svg(figure)


def claims(subjects: list[dict[str, Any]]) -> Markup:
    """Measured error over bound for each claim, over all subjects. Dots left of 1 hold."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for subject in subjects:
        for e in subject["evidence"]:
            if e["bound"] and e["measured"] is not None:
                ratio = max(e["measured"] / e["bound"], 1e-9)
                ratios.setdefault(e["claim"], []).append((ratio, STATUS_COLOURS[e["status"]]))
    if not ratios:
        return Markup("")
    figure, (axes,) = sheet(8.5, 0.9 + 0.34 * len(ratios))
    names = list(ratios)[::-1]
    for y, name in enumerate(names):
        dots = ratios[name]
        axes.scatter([r for r, _ in dots], [y] * len(dots), c=[c for _, c in dots], s=22, alpha=0.75, linewidths=0)
    axes.axvline(1.0, color=FOREGROUND, lw=1.2)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel("measured error / bound, worst example of each subject")
    axes.grid(axis="x", alpha=0.15, color=FOREGROUND)
    return svg(figure)
