"""Labelled calls of our own making: what the gate learns from beside the calls that people have judged.

Each family writes benign calls and adversarial twins of the same form: the same script with one harmful line, the same
edit of another file, the same statement without its WHERE, the same request to another host, the same payment to
another account. What an agent in a project may do without asking is `allow`; what a reviewer would refuse is `block`;
what depends on whom one asks is left out. The rules were written without the sets that are scored, and
`copies.without_copies` removes whatever repeats those by chance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from gradproof.gate.calls import Call
from gradproof.gate.made import cloud, databases, edits, http, mail, payments, scripts, shell, words
from gradproof.gate.made.copies import plain
from gradproof.gate.made.dress import LISTED, dressed, extras
from gradproof.gate.made.grammar import Draws, Filled, Form, Slots, Twins, weight

WITH_FOLDER = 0.5  # of the calls that do not name the project's folder say where they run
CANDIDATES = 8  # drawn for a twin: the one whose length fits best is taken
UNEVEN = 60  # characters of difference that count as much as making the same label longer once more
PATIENCE = 50  # failed draws in a row after which a family has nothing new


class MadeCall(NamedTuple):
    """A call, whether it is to be allowed, and the name that it shares with its twin: family/template/number."""

    call: Call
    allow: bool
    family: str
    twin: str


# Each family with its share of the calls.
FAMILIES: dict[str, tuple[tuple[Form, ...], int]] = {
    "shell": (shell.FORMS, 5),
    "scripts": (scripts.FORMS, 4),
    "edits": (edits.FORMS, 3),
    "databases": (databases.FORMS, 3),
    "http": (http.FORMS, 3),
    "cloud": (cloud.FORMS, 3),
    "mail": (mail.FORMS, 2),
    "payments": (payments.FORMS, 2),
}
VOCABULARIES = (words, shell, scripts, edits, databases, http, cloud, mail, payments)
SLOTS: Slots = {name: entries for module in VOCABULARIES for name, entries in module.SLOTS.items()}


def made(seed: int, count: int) -> list[MadeCall]:
    """`count` distinct calls in pairs of twins, benign first; the first ones of a longer list are those of a shorter.
    ValueError if there are not as many."""
    most = max(share for _, share in FAMILIES.values())
    turns = [name for turn in range(most) for name, (_, share) in FAMILIES.items() if turn < share]
    streams = {name: _pairs(name, seed) for name in FAMILIES}
    calls: list[MadeCall] = []
    seen: set[tuple[bool, str]] = set()
    while len(calls) < count:
        family = turns[len(calls) // 2 % len(turns)]
        for _ in range(PATIENCE):
            pair = next(streams[family])
            keys = {(one.allow, plain(_written(one.call))) for one in pair}
            if len(keys) == 2 and not keys & seen and pair[0].call != pair[1].call:
                break
        else:
            raise ValueError(f"the family {family} has no new calls after {len(calls):,}; ask for fewer")
        seen |= keys
        calls += pair
    return calls[:count]


def _pairs(family: str, seed: int) -> Iterator[tuple[MadeCall, MadeCall]]:
    """Pairs of twins without end, from all templates of a family in turn."""
    draws, number, lean = Draws("made", family, seed), 0, 0
    forms = FAMILIES[family][0]
    while True:
        deck = [i for i, form in enumerate(forms) for _ in range(weight(form.arguments.get(form.shell, "")))]
        while deck:
            form = deck.pop(draws.below(len(deck)))
            number += 1
            benign, harmful = _twins(forms[form], draws, lean)
            lean += _sign(len(_written(harmful)) - len(_written(benign)))
            twin = f"{family}/{form}/{number}"
            yield MadeCall(benign, True, family, twin), MadeCall(harmful, False, family, twin)


def _twins(form: Form, draws: Draws, lean: int) -> tuple[Call, Call]:
    """A benign call and its twin: one is drawn, the other is the candidate of the nearest length. `lean` says which of
    them have been longer so far (positive: the harmful ones); a candidate that evens it out is preferred."""
    twins = Twins(form, SLOTS, draws)
    from_harm = draws.chance(0.5)
    anchor = twins.settled(from_harm)
    length = len(_values(anchor))

    def unfit(candidate: Filled) -> int:
        longer = (len(_values(candidate)) - length) * (-1 if from_harm else 1)  # by how much the harmful one is longer
        return abs(longer) + (UNEVEN if longer * lean > 0 else 0)

    other = min((twins.settled(not from_harm) for _ in range(CANDIDATES)), key=unfit)
    benign, harmful = (other, anchor) if from_harm else (anchor, other)
    if form.shell:
        benign, harmful = _as_shell(form.shell, twins, draws, benign, harmful)
    root = twins.root or (twins.fill("‹root›") if draws.chance(WITH_FOLDER) else "")
    return Call(benign.tool, benign.arguments, root), Call(harmful.tool, harmful.arguments, root)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _as_shell(name: str, twins: Twins, draws: Draws, benign: Filled, harmful: Filled) -> tuple[Filled, Filled]:
    """Both calls with their commands dressed alike."""
    commands: tuple[Any, Any] = dressed(twins, draws, (benign.arguments[name], harmful.arguments[name]))
    if draws.chance(LISTED):
        commands = (["bash", "-lc", commands[0]], ["bash", "-lc", commands[1]])
    more = extras(twins, draws)
    benign, harmful = (
        own._replace(arguments={**own.arguments, name: command, **more})
        for own, command in zip((benign, harmful), commands, strict=True)
    )
    return benign, harmful


def _values(filled: Filled) -> str:
    return json.dumps(filled.arguments)


def _written(call: Call) -> str:
    return call.tool + json.dumps(call.arguments, ensure_ascii=False)
