"""What a record of benchmarks/tables.py says, as text: means by table, then a verdict on each figure to be met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from table_contestants import CONTESTANTS
from table_record import commits
from table_search import CHOSEN
from table_sets import FOLDS, REGRESSION, TABLES, repeats

BEHIND_ROWS, BEHIND_POINTS = 1_000, 0.4  # no table of more rows may be further behind
TIMED_ROWS, TIME_LIMIT = 50_000, 60.0
CALIBRATED = 6  # of the nine
RMSE_RATIO, COVERAGE = 1.02, (0.87, 0.93)
COLUMNS = {  # title, format
    "accuracy": ("accuracy", "{:.2%}"),
    "auc": ("AUC", "{:.4f}"),
    "log_loss": ("log loss", "{:.4f}"),
    "brier": ("Brier", "{:.4f}"),
    "ece": ("ECE", "{:.4f}"),
    "seconds": ("seconds", "{:.1f}"),
}
REGRESSION_COLUMNS = {
    "rmse": ("RMSE", "{:.4f}"),
    "coverage": ("in 90% interval", "{:.1%}"),
    "width": ("width", "{:.3f}"),
    "seconds": ("seconds", "{:.1f}"),
}


class Means(NamedTuple):
    """A table's mean figures by contestant, over the folds that all of its contestants have."""

    rows: int
    folds: int
    figures: dict[str, dict[str, float]]
    slowest: float  # fold of ours
    comparable: bool  # its seconds
    noise: float | None


def show(record: Mapping[str, Any]) -> str:
    """Everything a record has."""
    parts = [
        _classification(record["folds"]),
        _search(record["search"], record["folds"]),
        _sizes(record["sizes"]),
        _regression(record["regression"]),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) or "the record has no figures"


def means(entries: Sequence[Mapping[str, Any]], order: Sequence[str]) -> dict[str, Means]:
    """By table, in this order."""
    known = {}
    for name in order:
        own = [entry for entry in entries if entry["table"] == name]
        by = {c: {(e["repeat"], e["fold"]): e for e in own if e["contestant"] == c} for c in CONTESTANTS}
        by = {contestant: folds for contestant, folds in by.items() if folds}
        common = sorted(set.intersection(*(set(folds) for folds in by.values()))) if by else []
        if not common:
            continue
        chosen = {contestant: [folds[key] for key in common] for contestant, folds in by.items()}
        ours = chosen.get("ours", [])
        known[name] = Means(
            own[0]["rows"],
            len(common),
            {contestant: _mean(folds) for contestant, folds in chosen.items()},
            max((entry["seconds"] for entry in ours), default=0.0),
            all(entry["seconds_comparable"] for entry in ours),
            own[0].get("noise"),
        )
    return known


def verdicts(tables: Mapping[str, Means]) -> list[str]:
    """Ours against HistGradientBoosting on the tables that have both; empty where none has."""
    both = {name: t for name, t in tables.items() if {"ours", "hist"} <= set(t.figures)}
    if not both:
        return []
    lines = [f"against HistGradientBoosting on {len(both)} of {len(TABLES)} tables{_incomplete(both)}:"]
    for metric, title, shown in (("accuracy", "mean accuracy", "{:.2%}"), ("auc", "mean AUC", "{:.4f}")):
        ours, hist = (float(np.mean([t.figures[c][metric] for t in both.values()])) for c in ("ours", "hist"))
        lines.append(_verdict(ours > hist, f"{title} {shown.format(ours)}, theirs {shown.format(hist)}"))
    ratio = float(np.mean([t.figures["ours"]["log_loss"] / t.figures["hist"]["log_loss"] for t in both.values()]))
    lines.append(_verdict(ratio < 1, f"log loss {ratio:.3f} of theirs, the mean of the tables' ratios"))
    return [*lines, *_behind(both), _calibrated(both), *_slowest(tables)]


def _behind(both: Mapping[str, Means]) -> list[str]:
    points = {
        name: 100 * (t.figures["ours"]["accuracy"] - t.figures["hist"]["accuracy"])
        for name, t in both.items()
        if t.rows > BEHIND_ROWS
    }
    if not points:
        return []
    worst = min(points, key=points.__getitem__)
    said = f"worst table above {BEHIND_ROWS:,} rows: {worst}, {points[worst]:+.2f} points of accuracy"
    return [_verdict(points[worst] >= -BEHIND_POINTS, f"{said}; at least {-BEHIND_POINTS}")]


def _calibrated(both: Mapping[str, Means]) -> str:
    good = [name for name, t in both.items() if t.figures["ours"]["ece"] <= t.figures["hist"]["ece"]]
    said = f"calibration error no worse on {len(good)} of {len(both)} tables; at least {CALIBRATED} of {len(TABLES)}"
    return _verdict(len(good) * len(TABLES) >= CALIBRATED * len(both), said)


def _slowest(tables: Mapping[str, Means]) -> list[str]:
    timed = {name: t for name, t in tables.items() if t.rows <= TIMED_ROWS and "ours" in t.figures}
    if not timed:
        return []
    slowest = max(timed, key=lambda name: timed[name].slowest)
    of_it = timed[slowest]
    said = (
        f"slowest table of up to {TIMED_ROWS:,} rows: {slowest}, {of_it.figures['ours']['seconds']:.1f} s on average, "
        f"{of_it.slowest:.1f} s in its slowest fold; at most {TIME_LIMIT:.0f} s"
    )
    if others := [name for name, t in timed.items() if not t.comparable]:
        return [f"  unclear  {said}; not measured alone on two threads: {', '.join(others)}"]
    return [_verdict(of_it.slowest <= TIME_LIMIT, said)]


def _incomplete(tables: Mapping[str, Means]) -> str:
    short = [f"{name} has {t.folds} folds" for name, t in tables.items() if t.folds < FOLDS * repeats(t.rows)]
    return f" (incomplete: {', '.join(short)})" if short else ""


def _verdict(met: bool, said: str) -> str:
    return f"  {'met' if met else 'MISSED':<9}{said}"


def _classification(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    tables = means(entries, TABLES)
    if not tables:
        return []
    verdict = verdicts(tables)
    return [*_grid(tables, COLUMNS), *([""] if verdict else []), *verdict, "", *_origin(entries)]


def _regression(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    tables = means(entries, REGRESSION)
    if not tables:
        return []
    lines = _grid(tables, REGRESSION_COLUMNS)
    lines += [f"{name}: no model can expect an RMSE below {t.noise:.4f}" for name, t in tables.items() if t.noise]
    for name, t in tables.items():
        if not {"ours", "hist"} <= set(t.figures):
            continue
        ratio = t.figures["ours"]["rmse"] / t.figures["hist"]["rmse"]
        coverage, (low, high) = t.figures["ours"]["coverage"], COVERAGE
        lines.append(_verdict(ratio <= RMSE_RATIO, f"{name}: RMSE {ratio:.3f} of theirs; at most {RMSE_RATIO}"))
        said = f"{name}: 90% intervals cover {coverage:.1%}; {low:.0%} to {high:.0%}"
        lines.append(_verdict(low <= coverage <= high, said))
    return [*lines, "", *_origin(entries)]


def _search(entries: Sequence[Mapping[str, Any]], folds: Sequence[Mapping[str, Any]]) -> list[str]:
    chosen = [entry for entry in entries if entry["trial"] == CHOSEN]
    if not chosen:
        return []
    lines = [f"{'random search, fold 0':<24}{'trials':>8}{'accuracy':>10}{'AUC':>9}{'log loss':>10}{'ECE':>9}"]
    for entry in chosen:
        default = [e for e in folds if all(e[key] == entry[key] for key in ("table", "contestant"))]
        default = [e for e in default if e["repeat"] == e["fold"] == 0]
        for trials, figures in [(str(entry["trials"]), entry), *(("default", e) for e in default)]:
            lines.append(
                f"{entry['table'] + ' ' + entry['contestant']:<24}{trials:>8}{figures['accuracy']:>10.2%}"
                f"{figures['auc']:>9.4f}{figures['log_loss']:>10.4f}{figures['ece']:>9.4f}"
            )
    return [*lines, *_origin(entries)]


def _sizes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    if not entries:
        return []
    lines = [f"{'generated rows':>16}{'seconds':>10}{'peak MiB':>10}"]
    for entry in sorted(entries, key=lambda entry: entry["rows"]):
        lines.append(f"{entry['rows']:>16,}{entry['seconds']:>10.1f}{entry['peak_mib']:>10,.0f}")
    return [*lines, *_origin(entries)]


def _grid(tables: Mapping[str, Means], columns: Mapping[str, tuple[str, str]]) -> list[str]:
    """A line for each table and contestant."""
    titles = [title for title, _ in columns.values()]
    widths = [max(10, len(title) + 2) for title in titles]
    heading = "".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    lines = [f"{'table':<16}{'rows':>8}{'folds':>7}  {'':<10}{heading}"]
    for name, t in tables.items():
        begin = f"{name:<16}{t.rows:>8,}{t.folds:>7}"
        for contestant, figures in t.figures.items():
            cells = [shown.format(figures[key]) if key in figures else "" for key, (_, shown) in columns.items()]
            line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(f"{begin:<31}  {contestant:<10}{line}".rstrip())
            begin = ""
    return lines


def _origin(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which commit made the figures, and whether their seconds can be compared."""
    made = commits(entries)
    dates = sorted(entry["date"][:10] for entry in entries)
    lines = [f"commit{'s' if len(made) > 1 else ''} {', '.join(made)}; {dates[0]} to {dates[-1]}"]
    if not all(entry["seconds_comparable"] for entry in entries):
        lines.append("some seconds are not comparable: not measured alone on two threads")
    return lines


def _mean(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    entries = list(entries)
    metrics = [key for key in (*COLUMNS, *REGRESSION_COLUMNS) if key in entries[0]]
    return {key: float(np.mean([entry[key] for entry in entries])) for key in metrics}
