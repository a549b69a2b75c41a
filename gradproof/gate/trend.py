"""The trend: alignment, trust and drift over time, one point per hour."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gradproof.gate.status import drift_of
from gradproof.gate.store import Store

HOUR = 3600.0
MOST_POINTS = 24 * 366


def point(store: Store, decisions: Mapping[str, int]) -> dict[str, Any]:
    """How it is now; `decisions` counts those since the point before."""
    judged, trust = store.journal.judged(), store.journal.trust()
    drift = drift_of(store)
    errors = {name: drift["errors"][name] for name in ("rate", "risen", "drift")}
    return {
        "time": store.clock(),
        "alignment": judged.alignment,
        "judged": judged.count,
        "trust": {**trust._asdict(), "given": trust.given},
        "errors": errors,
        "inputs": {name: drift["inputs"][name] for name in ("index", "drift")},
        "decisions": {outcome: decisions.get(outcome, 0) for outcome in ("allow", "ask", "block")},
        "serving": store.versions.serving(),
    }


def keep(store: Store, made: Mapping[str, Any]) -> None:
    """Keeps a point; the oldest go."""
    journal = store.journal

    def write(txn: Any) -> None:
        txn.put(b"%012d" % int(made["time"]), json.dumps(made).encode(), db=journal.db["trend"])
        while txn.stat(journal.db["trend"])["entries"] > MOST_POINTS:
            cursor = txn.cursor(journal.db["trend"])
            if not cursor.first():
                break
            cursor.delete()

    journal.write(write)


def points(store: Store, since: float) -> list[dict[str, Any]]:
    """Those from a time on, oldest first."""
    journal = store.journal
    with journal.env.begin() as txn:
        cursor = txn.cursor(journal.db["trend"])
        if not cursor.set_range(b"%012d" % max(0, int(since))):
            return []
        return [json.loads(value) for _, value in cursor]
