"""`gradproof gate evaluate --stream`: replays a labelled stream in order, with simulated corrections of mistakes.

Each call is scored before its label is known, as in use. What was wrong is said at once, some calls later, or only
sometimes; the gate learns as it goes. The same stream through the same first model without learning stands beside it.

Of the made-up calls that the first model learns from, those that resemble a call to block of the stream or of what
stands beside it are left out. Where the stream has calls of one label alone, ordinary calls that the first model was
not trained on are mixed in. A seventh of the training calls is kept apart to see what is forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gradproof.gate import folds, roc
from gradproof.gate.evaluate import LabelledSet, caught
from gradproof.gate.fit import Recipe
from gradproof.gate.founding import fit_rows, riskiest
from gradproof.gate.network import GateConfig, GateModel
from gradproof.gate.online import Online
from gradproof.streams import philox

PARTS = 7  # of the training calls: one to see what is forgotten, one to hold back, one to mix into the stream
ORDINARY = 3  # mixed in for each call of the stream
CORRECTIONS, POSITIONS = 100, 250  # after so many of either, the gate has had its chance
FIRST = 1 / 3  # of a stream without training calls
WINDOWS = 20  # of the curve over time


@dataclass(frozen=True)
class Feedback:
    """When a mistake is remarked: after `delay` more calls, and only this `share` of them."""

    delay: int = 0
    share: float = 1.0

    def __post_init__(self):
        if self.delay < 0 or not 0 < self.share <= 1:
            raise ValueError(
                "the delay must be at least 0 calls, and the share of corrected mistakes above 0 and at most 1"
            )


class StreamParts(NamedTuple):
    """What a stream is replayed with."""

    learned: LabelledSet
    held: LabelledSet  # the learner's own held-back calls
    old: LabelledSet  # to see what is forgotten
    stream: LabelledSet


class Replayed(NamedTuple):
    """score_R at the time of each decision; `corrected` are the positions remarked, old_R the scores afterwards."""

    score_R: np.ndarray
    corrected: list[int]
    old_R: np.ndarray
    rounds: int
    versions: int


def by_stream(
    stream: LabelledSet,
    train: LabelledSet | None = None,
    *,
    feedback: Feedback | None = None,
    seed: int = 0,
    config: GateConfig | None = None,
    recipe: Recipe | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The record: figures of the stream and of its rest, with learning and without, over time, and on old calls."""
    started = time.perf_counter()
    parts = divided(stream, train, seed)
    say(f"training on {len(parts.learned.text):,} calls")
    more = parts.learned.joined(parts.held).joined(parts.old).joined(parts.stream).made_up()
    model = fit_rows(parts.learned.taught(), seed=seed, config=config, recipe=recipe, more=more)
    passes = {}
    for name, learn in (("learning", True), ("off", False)):
        say(f"replaying {len(parts.stream.text):,} calls, {'learning' if learn else 'learning off'}")
        passes[name] = replay(model, parts, feedback or Feedback(), learn, seed, say)
    points = chances(passes["learning"].corrected, len(parts.stream.text))
    block_R = parts.stream.block_R
    whole = roc.figures([roc.Scored(passes["learning"].score_R, block_R)])
    return {
        "kind": "stream",
        **whole,
        "rows": len(block_R),
        "blocks": int(block_R.sum()),
        "trained_on": len(parts.learned.text),
        "made_up": len(more.texts),
        "old_rows": len(parts.old.text),
        "groups": {
            name: {"rows": int(own.sum()), "auc": None, "recall_at_1pct": None}
            for name in dict.fromkeys(parts.stream.source)
            for own in [np.array([source == name for source in parts.stream.source])]
        },
        "points": points,
        "rest_begins": min(points.values()),
        **{name: described(replayed, parts, points) for name, replayed in passes.items()},
        "old_auc_lost": _lost(passes, parts),
        "seed": seed,
        "seconds": time.perf_counter() - started,
    }


def divided(stream: LabelledSet, train: LabelledSet | None, seed: int) -> StreamParts:
    """Who learns from what; groups and near-duplicates of the training calls are kept together."""
    if train is None:
        first = int(FIRST * len(stream.text))
        train, stream = stream.of(np.arange(first)), stream.of(np.arange(first, len(stream.text)))
    fold_R = folds.make(train.values(), train.block_R, train.group, PARTS, seed, train.source).fold_R
    one_label = bool(stream.block_R.all() or not stream.block_R.any())
    learned = train.of(np.flatnonzero(fold_R >= (3 if one_label else 2))).require_both()
    held, old = train.of(np.flatnonzero(fold_R == 1)), train.of(np.flatnonzero(fold_R == 0))
    if one_label:
        spare = train.of(np.flatnonzero((fold_R == 2) & (train.block_R != stream.block_R[0])))
        stream = mixed(stream, spare, seed)
    return StreamParts(learned, held, old, stream.require_both())


def mixed(stream: LabelledSet, ordinary: LabelledSet, seed: int) -> LabelledSet:
    """The stream in its order, with others at random places."""
    generator = np.random.Generator(philox(seed, "stream"))
    chosen = generator.permutation(len(ordinary.text))[: ORDINARY * len(stream.text)]
    is_own = generator.permutation(np.arange(len(stream.text) + len(chosen)) < len(stream.text))
    both = stream.joined(ordinary)
    order = np.empty(len(is_own), dtype=np.int64)
    order[is_own], order[~is_own] = np.arange(len(stream.text)), len(stream.text) + chosen
    return both.of(order)


def replay(
    model: GateModel, parts: StreamParts, feedback: Feedback, learn: bool, seed: int, say: Callable[[str], None]
) -> Replayed:
    """One pass; with `learn` off nothing is remarked."""
    generator = np.random.Generator(philox(seed, "feedback"))
    learned, held = (riskiest(model, part.taught()) for part in (parts.learned, parts.held))
    online = Online(model, learned, held, seed=seed)
    scores, corrected, rounds, versions, waiting = [], [], 0, 0, deque()
    try:
        for i, (call, block) in enumerate(zip(parts.stream.call, parts.stream.block_R, strict=True)):
            done = online.wait(learn)
            rounds += done is not None
            versions += done is not None and done.version is not None
            answer = online.decide(call)
            scores.append(1 - answer.probability)
            waiting.append((i, answer, not block))
            while learn and waiting and i - waiting[0][0] >= feedback.delay:
                position, given, allow = waiting.popleft()
                if generator.random() < feedback.share and online.correct(given, bool(allow)):
                    corrected.append(position)
            if (i + 1) % 100 == 0:
                say(f"{i + 1:,} calls decided: {len(corrected)} corrections, {versions} new versions")
        old_R = 1 - online.probabilities(parts.old.call)
    finally:
        online.close()
    return Replayed(np.array(scores), corrected, old_R, rounds, versions)


def chances(corrected: list[int], rows: int) -> dict[str, int]:
    """Where a rest begins: after 250 positions, and after 100 corrections where there were so many."""
    points = {"positions": min(POSITIONS, rows)}
    if len(corrected) >= CORRECTIONS:
        points["corrections"] = corrected[CORRECTIONS - 1] + 1
    return points


def described(replayed: Replayed, parts: StreamParts, points: dict[str, int]) -> dict[str, Any]:
    """The figures of one pass; each rest is scored call by call as it was decided."""
    block_R, rest = parts.stream.block_R, min(points.values())
    return {
        "whole": roc.figures([roc.Scored(replayed.score_R, block_R)]),
        "rest": {
            name: {
                **roc.figures([roc.Scored(replayed.score_R[at:], block_R[at:])]),
                **caught(replayed.score_R[at:], block_R[at:], np.array(parts.stream.outcome[at:])),
                "rows": len(block_R) - at,
                "blocks": int(block_R[at:].sum()),
                "corrections_before": sum(i < at for i in replayed.corrected),
            }
            for name, at in points.items()
        },
        "old_auc": roc.auc(replayed.old_R, parts.old.block_R),
        "corrections": len(replayed.corrected),
        "rounds": replayed.rounds,
        "versions": replayed.versions,
        "corrected": replayed.corrected,
        "over_time": over_time(replayed.score_R, block_R),
        "roc": roc.curve(replayed.score_R[rest:], block_R[rest:]),
    }


def _lost(passes: dict[str, Replayed], parts: StreamParts) -> float | None:
    """Of AUC on old calls, without learning minus with it: what the first model had, and what was left."""
    before, after = (roc.auc(passes[name].old_R, parts.old.block_R) for name in ("off", "learning"))
    return None if before is None or after is None else before - after


def over_time(score_R: np.ndarray, block_R: np.ndarray) -> list[dict[str, Any]]:
    """AUC and recall at 1% of each window of the stream; the threshold is the window's own."""
    edges = np.linspace(0, len(score_R), min(WINDOWS, max(1, len(score_R) // 40)) + 1).astype(int)
    windows = []
    for start, end in pairwise(edges):
        own = roc.figures([roc.Scored(score_R[start:end], block_R[start:end])])
        windows.append({"position": int(end), "auc": own["auc"], "recall_at_1pct": own["recall_at_1pct"]})
    return windows
