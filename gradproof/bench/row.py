"""A row of the suite `step`: one case, an entry for each contestant, and derived figures.

Everything but the entries is computed from them, so that a row can be gone on with in another process.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

StepEntry = dict[str, Any]
Row = dict[str, Any]
OURS = "gradproof"
CLOSE = 1.25  # a peer this near to the best of its kind is measured in full
TRIES = 2  # of a peer that the process did not survive
UNFINISHED = "did not finish: the process died during the measurement"


def key(row: Row) -> tuple[str, int, str]:
    """What tells rows of one file apart."""
    return row["size"], row["rows"], row["precision"]


def entries(row: Row) -> dict[str, StepEntry]:
    """By name."""
    return {entry["name"]: entry for entry in row["contestants"]}


def kept(row: Row | None, code: str) -> dict[str, StepEntry]:
    """The entries that this very code has made."""
    return {} if row is None else {name: entry for name, entry in entries(row).items() if entry.get("code") == code}


def missing(
    known: Mapping[str, StepEntry], names: Iterable[str], retry: bool = False, quick: bool = False
) -> list[str]:
    """Of these peers, those that are still to be measured; those that a process did not survive come last."""
    if "error" in known.get(OURS, {}) and not retry:
        return []
    unmeasured = [name for name in names if _unmeasured(known.get(name), known.values(), retry, quick)]
    return sorted(unmeasured, key=lambda name: known.get(name, {}).get("tries", 0))


def whole(known: Mapping[str, StepEntry], names: Iterable[str], retry: bool = False, quick: bool = False) -> bool:
    """Nothing is left to be measured: no peer, and not ours."""
    ours = known.get(OURS, {})
    return not missing(known, names, retry, quick) and ("ms" in ours or "error" in ours)


def close(entry: StepEntry, others: Iterable[StepEntry]) -> bool:
    """Whether a peer may be the best of its kind, captured or not: then a rough figure is not enough."""
    ran = [other for other in others if "ratio" in other and other["name"] not in (OURS, entry["name"])]
    of_its_kind = [other["ratio"] for other in ran if _captured(other) == _captured(entry)]
    return entry["ratio"] <= CLOSE * min(of_its_kind, default=entry["ratio"])


def completed(row: Row, known: Mapping[str, StepEntry], ours: StepEntry, peaks: Mapping[str, float]) -> Row:
    """The row with ours in front, all figures that follow, and the fastest peers."""
    peers = [entry for name, entry in known.items() if name != OURS]
    front = {"name": OURS, **ours, **_beside(peers)}
    contestants = [front, *({**entry} for entry in peers)]
    for entry in contestants:
        if "ms" in entry:
            entry["useful_tflops"] = row["useful_flops"] / (entry["ms"] * 1e-3) / 1e12
            entry["share_of_peak"] = entry["useful_tflops"] / peaks["peak_tflops"] if peaks else None
            entry["memory_ratio"] = entry["peak_bytes"] / front["peak_bytes"]
    return {**row, **peaks, "contestants": contestants, **best(contestants[1:])}


def best(peers: Sequence[StepEntry]) -> dict[str, Any]:
    """The fastest peers, by the ratio to ours in their own turns."""
    ran = [entry for entry in peers if "ratio" in entry]

    def fastest(of_a_kind: list[StepEntry]) -> StepEntry | None:
        best = min(of_a_kind, key=lambda entry: entry["ratio"], default=None)
        return best and {k: best[k] for k in ("name", "ms", "ratio", "ours_ms", "peak_bytes", "memory_ratio")}

    first = fastest(ran)
    return {
        "best_uncaptured": fastest([entry for entry in ran if not _captured(entry)]),
        "best_captured": fastest([entry for entry in ran if _captured(entry)]),
        "speedup": first and first["ratio"],
        "memory_against_best": first and 1 / first["memory_ratio"],
    }


def _unmeasured(entry: StepEntry | None, others: Iterable[StepEntry], retry: bool, quick: bool) -> bool:
    if entry is None:
        return True
    if "error" in entry:
        return retry or entry.get("tries", TRIES) < TRIES
    return bool(entry.get("rough")) and not quick and close(entry, others)


def _captured(entry: StepEntry) -> bool:
    """In whole or in parts."""
    return entry["graphs"] != "none"


def _beside(peers: Sequence[StepEntry]) -> StepEntry:
    """Our own figures from the turns beside the peers: medians over them, rough ones only where there are no others."""
    ran = [entry for entry in peers if "ours_ms" in entry]
    fully = [entry for entry in ran if not entry.get("rough")]
    if not ran:
        return {}
    low, high = (statistics.median(e["ours_quartiles"][i] for e in fully or ran) for i in (0, 1))
    ms = statistics.median(entry["ours_ms"] for entry in fully or ran)
    return {"ms": ms, "quartiles": [low, high], "ratio": 1.0, "rough": not fully}
