"""The status of a gate, as one record."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from gradproof.gate.drift import errors, histogram, shifted, stability
from gradproof.gate.store import Store
from gradproof.gate.trust import Trust

RECENT = 1000  # decisions


def protected(store: Store) -> bool:
    """Whether the store belongs to another user than the one who asks, as it does where the gate runs apart."""
    return store.folder.stat().st_uid != os.getuid()


def status(store: Store) -> dict[str, Any]:
    """Versions, alignment, drift, counts."""
    judged, trust, serving = store.journal.judged(), store.journal.trust(), store.versions.serving()
    return {
        "store": str(store.folder),
        "serving": serving,
        "converged": judged.converged,
        "trusted": trust.given,
        "trust": trust._asdict(),
        "protected": protected(store),
        "shadow": store.settings.shadow,
        "shadowed": _shadowed(store),
        "alignment": judged.alignment,
        "judged": judged._asdict(),
        "drift": drift_of(store),
        "counts": store.journal.counts(),
        "used": store.journal.used(),
        "versions": versions_of(store),
    }


def versions_of(store: Store) -> list[dict[str, Any]]:
    """Those kept, oldest first."""
    serving = store.versions.serving()
    return [
        {"version": version.number, "serving": version.number == serving, **_told(version.record)}
        for version in store.versions.all()
    ]


def _told(record: dict[str, Any]) -> dict[str, Any]:
    names = ("time", "came_from", "signals", "held_error", "pinned_wrong")
    allow_at, block_below = record["policy"]
    return {name: record[name] for name in names} | {"allow_at": allow_at, "block_below": block_below}


def _shadowed(store: Store) -> dict[str, int]:
    """What would have been decided: of the recent decisions those that were made in shadow mode."""
    outcomes = Counter(decision["shadow"] for decision in store.journal.decisions(RECENT) if "shadow" in decision)
    return {"decisions": outcomes.total(), "ask": outcomes["ask"], "block": outcomes["block"]}


def drift_of(store: Store) -> dict[str, Any]:
    """Of the error rate over what was judged; of the inputs, by the scores that the serving version gave."""
    serving = store.versions.serving()
    state = errors(store.journal.errors())
    recent = [decision["model"] for decision in store.journal.decisions(RECENT) if decision["version"] == serving]
    edges = store.versions.get(serving).record.get("edges", []) if serving else []
    counts, even = histogram(recent, edges), [len(recent)] * (len(edges) + 1)
    return {
        "errors": {"judged": state.count, "rate": state.mean, "risen": state.risen, "drift": state.drift},
        "inputs": {"decisions": len(recent), "index": stability(even, counts), "drift": shifted(even, counts)},
    }


def lines(record: dict[str, Any]) -> Iterator[str]:
    """The record for a person."""
    judged = record["judged"]
    count = judged["allow"] + judged["block"]
    yield f"{record['store']}: version {record['serving']} serves; {Trust(**record['trust'])}"
    if record["shadow"]:
        shadowed = record["shadowed"]
        yield (
            f"shadow mode: nothing is blocked; of {shadowed['decisions']:,} recent calls,"
            f" the gate would have asked about {shadowed['ask']:,} and blocked {shadowed['block']:,}"
        )
    if not record["protected"]:
        yield (
            "unprotected: an agent that runs as this user can write the store through any program;"
            " run the gate as a separate user"
        )
    by_kind = f"{judged['allow']:,} allow, {judged['block']:,} block"
    yield f"alignment {record['alignment']:.1%} of {count:,} judged ({by_kind})" if count else "no call judged yet"
    wrong, inputs = record["drift"]["errors"], record["drift"]["inputs"]
    rising = ", rising" if wrong["drift"] else ""
    yield (
        (f"errors {wrong['rate']:.1%} of {wrong['judged']:,} judged decisions{rising}; " if wrong["judged"] else "")
        + ("input distribution: shifted" if inputs["drift"] else "input distribution: stable")
        + f" (stability index {inputs['index']:.2f})"
    )
    counts = record["counts"]
    yield (
        f"{_count(counts['decisions'], 'decision')}, {_count(counts['signals'], 'signal')},"
        f" {counts['pending']:,} of them waiting to be learned, {_count(counts['pinned'], 'mistake')} pinned;"
        f" {record['used']:.0%} of the journal used"
    )
    for version in record["versions"]:
        when = datetime.fromtimestamp(version["time"]).strftime("%Y-%m-%d %H:%M")
        yield (
            f"{'*' if version['serving'] else ' '} version {version['version']}  {when}"
            f"  {_count(version['signals'], 'signal')}  held-back error {version['held_error']:.4f}"
            f"  allow at p ≥ {version['allow_at']:.3g}, block below {version['block_below']:.3g}"
        )


def _count(number: int, noun: str) -> str:
    """`1 signal`, `1,200 signals`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
