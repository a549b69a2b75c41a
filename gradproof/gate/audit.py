"""`gradproof gate audit`: recorded decisions, newest first, with their feedback and counts.

The journal holds no secrets, so none can be shown. Texts that an agent chose are printed without control characters:
one decision is one line, whatever the call contains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

from gradproof.gate.acts.act import EFFECTS
from gradproof.gate.corrections import restored, safe
from gradproof.gate.database import time_of
from gradproof.gate.signals import Outcome
from gradproof.gate.store import Store

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
PARTS = ("floor", "rule", "correction", "policy", "model")
AGO = re.compile(r"(\d{1,9})([hd])", re.ASCII)
SECONDS = {"h": 3600, "d": 86400}


class AuditQuery(NamedTuple):
    """Which decisions are meant; an empty field matches all. `decision` is the gate's own, also in shadow mode."""

    decision: str = ""
    since: str = ""
    session: str = ""
    actor: str = ""
    effect: str = ""

    def start(self, now: float) -> float:
        """When `since` is, in seconds since 1970: so many hours or days before `now`, or an ISO date or time."""
        ago = AGO.fullmatch(self.since)
        if ago:
            return now - int(ago[1]) * SECONDS[ago[2]]
        try:
            return datetime.fromisoformat(self.since).timestamp() if self.since else 0.0
        except (ValueError, OverflowError, OSError):
            raise ValueError(
                f"--since must be an ISO date or time, or hours or days as in 24h and 7d, not {self.since!r}"
            ) from None

    def check(self) -> None:
        """ValueError where it names a decision or an effect that there is not."""
        if self.decision not in ("", *OUTCOMES):
            raise ValueError(f"--decision must be one of {', '.join(OUTCOMES)}, not {self.decision!r}")
        if self.effect not in ("", *EFFECTS):
            raise ValueError(f"there is no effect {self.effect!r}; the effects are {', '.join(EFFECTS)}")

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Whether a record of the journal is meant."""
        named = (
            (self.decision, record["decision"]),
            (self.session, record.get("session", "")),
            (self.actor, record.get("actor", "")),
        )
        effects = {act.get("effect") for act in record["acts"]} if self.effect else {""}
        return all(wanted in ("", there) for wanted, there in named) and self.effect in effects


def audit(store: Store, query: AuditQuery, limit: int) -> dict[str, Any]:
    """The newest `limit` decisions that match, and counts of all that do."""
    query.check()
    start = query.start(store.clock())
    # Names are stored without secrets, and so they are compared.
    query = query._replace(session=safe(query.session, store.key), actor=safe(query.actor, store.key))
    said = {record["decision"]: record for record in store.journal.correction_records()}
    shown: list[dict[str, Any]] = []
    counted: Counter[tuple[str, str]] = Counter()
    shadowed = 0
    for record in store.journal.newest_first(start):
        if query.matches(record):
            counted[record["decision"], record["by"]] += 1
            shadowed += "shadow" in record
            if len(shown) < limit:
                shown.append(told_decision(record, said.get(record["id"])))
    return {"decisions": shown, "counts": {**_counts(counted), "shadow": shadowed}}


def _counts(counted: Counter[tuple[str, str]]) -> dict[str, Any]:
    """Of each decision: in all, and by the part of the gate that made it."""
    by_outcome = {outcome: {part: counted[outcome, part] for part in PARTS} for outcome in OUTCOMES}
    return {
        "total": counted.total(),
        **{outcome: {"total": sum(parts.values()), **parts} for outcome, parts in by_outcome.items()},
    }


def told_decision(record: Mapping[str, Any], correction: Mapping[str, Any] | None) -> dict[str, Any]:
    """A decision for people; `correction` is the newest one about it that holds."""
    when = datetime.fromtimestamp(time_of(record["id"]), UTC).isoformat(timespec="milliseconds")
    names = ("decision", "by", "reason", "probability", "version", "text")
    own = {name: record[name] for name in names} | {"because": record.get("because", ""), "worst": record["worst"]}
    own |= {name: record[name] for name in ("shadow", "would_block") if name in record}
    who = {name: record.get(name, "") for name in ("session", "actor")}
    acts = [restored(act).plain() for act in record["acts"]]
    what = {"acts": acts, "ran": record.get("ran", False), "said": _said(record, correction)}
    return {"id": record["id"], "time": when, **own, **who, **what}


def _said(record: Mapping[str, Any], correction: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a person said of a decision, and the correction that holds because of it; that is None once retracted."""
    if correction is not None:
        return {
            "kind": correction["kind"],
            "actor": correction["actor"],
            "correction": f"c{correction['sequence']}",
        }
    return {"kind": record["remarked"], "actor": "", "correction": None} if "remarked" in record else None


def lines(record: dict[str, Any]) -> Iterator[str]:
    """The report for a person: a line for each decision, and one of counts."""
    for decision in record["decisions"]:
        yield _printable("  ".join(_columns(decision)))
    counts, shown = record["counts"], len(record["decisions"])
    if not counts["total"]:
        yield "no decision matches"
        return
    told = []
    for outcome in OUTCOMES:
        parts = ", ".join(f"{part} {counts[outcome][part]:,}" for part in PARTS if counts[outcome][part])
        told.append(f"{counts[outcome]['total']:,} {outcome}{f' ({parts})' if parts else ''}")
    yield (
        f"{counts['total']:,} decision{'s' if counts['total'] > 1 else ''}: {', '.join(told)}"
        + (f"; {counts['shadow']:,} in shadow mode, where every call is allowed" if counts["shadow"] else "")
        + (f"; showing the newest {shown:,}" if shown < counts["total"] else "")
    )


def _columns(decision: Mapping[str, Any]) -> Iterator[str]:
    yield datetime.fromisoformat(decision["time"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    yield decision["id"]
    yield f"{decision['decision']:<5}"
    softened = "; allowed in shadow mode" if decision.get("shadow", "allow") != "allow" else ""
    yield f"{decision['reason']} ({decision['by']}{softened})"
    for name in ("session", "actor"):
        if decision[name]:
            yield f"{name} {decision[name]}"
    said = decision["said"]
    if said and said["correction"]:
        yield f"corrected: {said['kind']} by {said['actor'] or '?'}, {said['correction']}"
    elif said:
        yield f"corrected: {said['kind']}, retracted"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in text)
