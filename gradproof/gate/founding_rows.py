"""FoundingRow: an act of a labelled call for the first model. Imports nothing heavy: several processes do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gradproof.gate import calls
from gradproof.gate.calls import Call
from gradproof.gate.parallel_reading import mapped
from gradproof.gate.reading import act_texts, read


class FoundingCall(NamedTuple):
    """A labelled call; `group` names what must stay together, `number` tells calls apart."""

    call: Call
    allow: bool
    group: str
    number: int


class FoundingRow(NamedTuple):
    """An act of a labelled call; `group` names what must stay together, `call` the call that it belongs to."""

    text: str
    allow: bool
    group: str
    call: int


def read_rows(path: Path) -> list[FoundingRow]:
    """JSON lines with a call, `label` (allow or block) and, if there is one, `group`."""
    labelled = enumerate(calls.read_labelled(path))
    rows = rows_of(FoundingCall(own.call, own.label == "allow", own.group or str(i), i) for i, own in labelled)
    if len({row.allow for row in rows}) < 2:
        raise ValueError(f"{path} needs calls of both labels, allow and block; it has {len(rows)} rows")
    return rows


def rows_of(labelled: Iterable[FoundingCall]) -> list[FoundingRow]:
    """The acts of all calls, in their order."""
    return [row for rows in mapped(act_rows, list(labelled)) for row in rows]


def act_rows(labelled: FoundingCall) -> list[FoundingRow]:
    """The acts of a call. If the call is to be blocked, the act that the policy is strictest with comes first."""
    call, allow, group, number = labelled
    done = read(call)
    texts = act_texts(call, done.acts)
    return [FoundingRow(text, allow, group, number) for text in dict.fromkeys([texts[done.worst], *texts])]
