"""The batches of the learner: half new signals, half replay, balanced by class.

Replay is what was learned before, with costly mistakes pinned in it. The gate's own unremarked decisions, its echo, are
at most a quarter of a batch, and only those older than the review window are offered here at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradproof.gate.journal import Journal, LabelledText
from gradproof.gate.signals import signal

MOST_ECHO = 4  # one in so many of a batch
PINNED = 4  # one in so many of the replayed half, at most as many as there are
WEIGHT = 20_000.0  # of a class that is replayed, at most: more calls of it are a better sample, and count no more
OFFERED = 2000  # echoes, the newest of those whose review is over


def compose(
    new: Sequence[LabelledText],
    kept: Sequence[LabelledText],
    pinned: Sequence[LabelledText],
    echo: Sequence[LabelledText],
    size: int,
    draws: np.random.Generator,
) -> list[LabelledText]:
    """A batch of `size`; what one part lacks, another fills."""
    fresh = size // 2 if new and (kept or pinned) else size if new else 0
    rest = size - fresh
    held = min(len(pinned), -(-rest // PINNED)) if kept else rest if pinned else 0
    share = len(echo) / max(1, len(echo) + len(kept))
    own = min(size // MOST_ECHO, int(share * (rest - held)))
    parts = ((new, fresh), (pinned, held), (echo, own), (kept, rest - held - own))
    return [example for pool, count in parts for example in balanced(pool, count, draws)]


def balanced(pool: Sequence[LabelledText], count: int, draws: np.random.Generator) -> list[LabelledText]:
    """`count` drawn with replacement, both classes equally often where both are there."""
    classes = [[example for example in pool if (example.target > 0.5) == allow] for allow in (True, False)]
    classes = [members for members in classes if members]
    if not classes:
        return []
    first = int(draws.integers(len(classes)))  # who gets the odd one
    chosen = [classes[(first + i) % len(classes)] for i in range(count)]
    return [members[int(draws.integers(len(members)))] for members in chosen]


def even(kept: Sequence[LabelledText]) -> dict[str, float]:
    """The mass of each text: its weight, times what gives both classes the same total, that of the commoner one or
    WEIGHT."""
    total = {
        allow: sum(example.signal.weight for example in kept if (example.target > 0.5) == allow)
        for allow in (True, False)
    }
    most = min(max(total.values()), WEIGHT)
    return {example.text: example.signal.weight * most / total[example.target > 0.5] for example in kept}


def quarter(echo: Sequence[LabelledText], mass: Mapping[str, float]) -> list[LabelledText]:
    """The newest echoes of texts that have no mass yet, as many as make up at most a quarter of it all."""
    most = int(sum(mass.values()) / (MOST_ECHO - 1))
    distinct = {example.text: example for example in echo if example.text not in mass}
    return list(distinct.values())[-most:] if most else []


def echo(journal: Journal, review_hours: float) -> list[LabelledText]:
    """The gate's own decisions that nobody remarked in the review window."""
    before = journal.clock() - 3600 * review_hours
    decided = journal.decisions(OFFERED, unremarked=True, before=before)
    own = []
    for decision in decided:
        if decision["decision"] != "ask":
            worst = decision["worst"]
            texts = decision["texts"] if decision["decision"] == "allow" else decision["texts"][worst : worst + 1]
            given = signal(decision["decision"])
            own += [LabelledText(decision["id"].encode(), text, given) for text in texts]
    return own
