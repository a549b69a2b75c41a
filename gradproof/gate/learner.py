"""The learner: trains a copy of the serving model on new signals, and lets it serve only if it is no worse.

A round takes the signals that wait, mixes them half and half with replay, takes a few consolidated steps, solves for
the n-grams' weights near the serving ones, calibrates and chooses thresholds anew on the held-back calls. The
candidate serves if, against the serving version,

    its balanced error on the held-back calls is no higher than chance explains,
    it is wrong on no more of the pinned mistakes,
    and, once the gate has converged, at most 0.1%·n² of known decisions change, n signals being new: one says little of
    others, many say that something is off.

A candidate that fails is taken half of the way, then a quarter; then the serving version stays and the signals wait on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gradproof.gate import fit, proximal, replay
from gradproof.gate.consolidation import STRENGTH, ConsolidatedStep, Consolidation, decayed, fisher
from gradproof.gate.decider import Serving, load_serving
from gradproof.gate.drift import deciles, errors
from gradproof.gate.journal import Example, is_held
from gradproof.gate.network import Calibration, GateModel
from gradproof.gate.packing import described, pack, unpack, weights_of
from gradproof.gate.policy import Policy, calibrate, choose
from gradproof.gate.signals import MISTAKES
from gradproof.gate.store import Settings, Store
from gradproof.streams import philox
from gradproof.train.adamw import AdamW

BATCH, LEAST_STEPS, MOST_STEPS = 32, 12, 60
RATE = 5e-4
CLIP = 1.0
CALLS_OF_FISHER = 48
REPLAYED, MOST_SAID, SAID = 800, 400, 2.0  # calls, signals and their weight when the n-grams are solved for
PLASTIC = 0.1  # of the consolidation's strength, where the error rate has drifted
MOST_LOST = 0.01  # of balanced error, against the best version kept
CHANGES = 0.001  # of known decisions, times the new signals squared
WAYS = (1.0, 0.5, 0.25)  # of the way from the serving weights to the trained ones
KNOWN = 500  # recent decisions that a candidate is held against, beside the held-back calls
ENOUGH, SOON = 8, 20.0  # so many signals, or so many seconds after the first, begin a round
LOOK = 0.5  # seconds between two looks for signals


class Score(NamedTuple):
    """Of a model with its policy: `error` is the mean over the two classes of the share that it leans wrong on;
    `edges` are the deciles of its probabilities for held-back calls to allow."""

    error: float
    pinned_wrong: int
    outcomes: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    wrong: tuple[float, ...] = ()  # of each held-back call, what it adds to the error

    def no_worse(self, than: Score, changes: float, best: float = 1.0) -> bool:
        """Not by more than the calls that are judged differently explain by chance (one standard error), nor by a
        hundredth against the best version: small losses must not add up."""
        differ = [a - b for a, b in zip(self.wrong, than.wrong, strict=True) if a != b]
        chance = math.sqrt(sum(each**2 for each in differ))
        if self.error > min(than.error + chance, best + MOST_LOST) + 1e-12 or self.pinned_wrong > than.pinned_wrong:
            return False
        changed = sum(a != b for a, b in zip(self.outcomes, than.outcomes, strict=True))
        return changed <= changes * len(self.outcomes)


class Round(NamedTuple):
    """What a round did; `version` is the new one, or None where the serving version stayed."""

    signals: int
    steps: int
    version: int | None
    way: float
    before: Score
    after: Score
    seconds: float


class Known(NamedTuple):
    """The calls that a candidate is held against."""

    held: list[Example]
    pinned: list[Example]
    recent: list[str]

    def texts(self) -> list[str]:
        return [each.text for each in (*self.held, *self.pinned)] + self.recent


class Learner:
    """`Learner(store).round()`; the same store, signals and seed give the same version."""

    def __init__(self, store: Store, seed: int = 0):
        torch.set_num_threads(1)
        self.store, self.seed = store, seed
        self.failed: frozenset[bytes] = frozenset()  # the signals of the last candidate that was no good
        self._scored: tuple[int, dict[str, float]] = (0, {})  # the serving version's logits

    def due(self) -> bool:
        """Whether enough signals wait, or one waits long enough, and they are not just those that failed."""
        waiting = self.store.journal.pending()
        new = [each for each in waiting if each.key not in self.failed]
        if not new:
            return False
        oldest = int(new[0].key[:12], 16) / 1000
        return len(new) >= ENOUGH or self.store.clock() - oldest >= SOON

    def round(self) -> Round | None:
        """One round; None where no signal waits."""
        started = time.perf_counter()
        waiting = self.store.journal.pending()
        if not waiting:
            return None
        serving = load_serving(self.store)
        known = self._known()
        before = score(serving.gate, serving.policy, known, self._serving_logits(serving, known))
        new = [each for each in waiting if each.signal.kind in MISTAKES or not is_held(each.text)]
        trained, kept, steps = self._train(serving, new)
        changes = CHANGES * len(waiting) ** 2 if self.store.journal.judged().converged else 1.0
        best = min([before.error, *(each.record["held_error"] for each in self.store.versions.all())])
        for way in WAYS:
            gate = trained.copy()
            gate.network.params.flat_P.lerp_(serving.gate.network.params.flat_P, 1 - way)
            z = logits(gate, known.texts())
            policy = settle(gate, known, z, self.store.settings, serving.policy)
            after = score(gate, policy, known, z)
            if after.no_worse(before, changes, best):
                version = self._promote(serving, gate, policy, after, len(waiting), kept)
                self._scored = (version, z)
                self.store.journal.learned(waiting)
                self.failed = frozenset()
                return Round(len(waiting), steps, version, way, before, after, time.perf_counter() - started)
        self.failed = frozenset(each.key for each in waiting)
        return Round(len(waiting), steps, None, 0.0, before, after, time.perf_counter() - started)

    def _known(self) -> Known:
        journal = self.store.journal
        recent = [each["text"] for each in journal.decisions(KNOWN, unremarked=True)]
        return Known(journal.examples("held"), journal.examples("pinned"), list(dict.fromkeys(recent)))

    def _serving_logits(self, serving: Serving, known: Known) -> dict[str, float]:
        """Those of the round before are still right where the same version serves."""
        number, z = self._scored
        z = z if number == serving.number else {}
        z |= logits(serving.gate, [text for text in known.texts() if text not in z])
        self._scored = (serving.number, z)
        return z

    def _train(self, serving: Serving, new: Sequence[Example]) -> tuple[GateModel, dict[str, torch.Tensor], int]:
        """A trained copy; the optimizer's state and the Fisher information to go on with; how many steps."""
        journal, gate = self.store.journal, serving.gate.copy()
        draws = np.random.Generator(philox(self.seed, "replay", serving.number, len(new)))
        kept, pinned = journal.examples("replay"), journal.examples("pinned")
        own = replay.echo(journal, self.store.settings.review_hours)
        step = ConsolidatedStep(gate.network, "bce", AdamW(lr=RATE), clip=CLIP)
        state = self.store.versions.optimizer(serving.number)
        found = unpack(state) if state else {}
        if found:
            step.optimizer.load_state(found)
        before = replay.balanced(kept, min(CALLS_OF_FISHER, len(kept)), draws)
        fisher_P = decayed(found.get("fisher"), fisher(gate.network, [_row(gate, each.text) for each in before]))
        drifts = errors(journal.errors()).drift
        strength = STRENGTH * (PLASTIC if drifts else 1.0)
        step.consolidation = Consolidation(gate.network.params.flat_P, fisher_P, strength)
        steps = min(MOST_STEPS, LEAST_STEPS + 2 * len(new)) if new else 0
        encoded: dict[str, list[int]] = {}
        for _ in range(steps):
            batch = replay.compose(new, kept, pinned, own, BATCH, draws)
            for each in batch:
                encoded.setdefault(each.text, gate.encode(each.text))
            x_BX = gate.batch([encoded[each.text] for each in batch])
            label_B = torch.tensor([each.signal.label for each in batch])
            weight_B = torch.tensor([each.signal.weight for each in batch])
            step(x_BX, (label_B, weight_B))
        if new:
            self._solve(gate, [*pinned, *(each for each in new if each.signal.kind not in MISTAKES)], kept, draws)
        return gate, {**step.optimizer.state(), "fisher": fisher_P}, steps

    def _solve(
        self, gate: GateModel, said: Sequence[Example], kept: Sequence[Example], draws: np.random.Generator
    ) -> None:
        """The n-grams' weights: what people said, and as many calls of each class from before."""
        said = said[-MOST_SAID:]
        before = replay.balanced(kept, min(REPLAYED, 2 * len(kept)), draws)
        rows = list({each.text: each for each in (*before, *said)}.values())
        proximal.get_to_know(gate, [each.text for each in said])
        weights = {each.text: SAID * each.signal.weight for each in said}
        mass_R = torch.tensor([weights.get(each.text, 1.0) for each in rows])
        proximal.solve(gate, [each.text for each in rows], torch.tensor([each.target for each in rows]), mass_R)

    def _promote(
        self,
        serving: Serving,
        gate: GateModel,
        policy: Policy,
        after: Score,
        signals: int,
        kept: dict[str, torch.Tensor],
    ) -> int:
        record = version_record(gate, policy, after, self.store, came_from=serving.number, signals=signals)
        return self.store.versions.add(weights_of(gate), record, pack(kept))


def follow(learner: Learner, say: Callable[[str], None], stop: Callable[[], bool] = lambda: False) -> None:
    """Rounds as they fall due, until stopped."""
    while not stop():
        if learner.due():
            done = learner.round()
            if done is not None:
                say(told(done))
        else:
            time.sleep(LOOK)


def told(done: Round) -> str:
    """A round in one line."""
    how = f"version {done.version} serves" + (f", {done.way:.0%} of the way" if done.way < 1 else "")
    verdict = how if done.version else "the candidate was worse; the serving version stays"
    return (
        f"{done.signals} signals, {done.steps} steps, {done.seconds:.1f} s: {verdict}; held-back error"
        f" {done.before.error:.4f} → {done.after.error:.4f}, pinned mistakes wrong"
        f" {done.before.pinned_wrong} → {done.after.pinned_wrong}"
    )


def settle(gate: GateModel, known: Known, z: dict[str, float], settings: Settings, otherwise: Policy) -> Policy:
    """Calibrates the gate on the held-back calls, and chooses the thresholds; `z` holds the logits of all known."""
    allow_T = np.array([each.target > 0.5 for each in known.held], dtype=bool)
    if allow_T.all() or not allow_T.any():
        return otherwise
    z_T = np.array([z[each.text] for each in known.held])
    gate.calibration = Calibration(*calibrate(z_T, allow_T))
    return choose(gate.calibrated(z_T), allow_T, settings.false_allow, settings.false_block)


def score(gate: GateModel, policy: Policy, known: Known, z: dict[str, float]) -> Score:
    """How a gate does on the known calls."""
    p_T = gate.calibrated(np.array([z[text] for text in known.texts()]))
    held, pinned = len(known.held), len(known.pinned)
    judged = [*known.held, *known.pinned]
    wrong_T = np.array(
        [policy.leans(p) != (each.target > 0.5) for p, each in zip(p_T, judged, strict=False)], dtype=bool
    )
    allow_T = np.array([each.target > 0.5 for each in known.held], dtype=bool)
    shares = [float(wrong_T[:held][chosen].mean()) for chosen in (allow_T, ~allow_T) if chosen.any()]
    outcomes = tuple(policy.decide(float(p)) for p in (*p_T[:held], *p_T[held + pinned :]))
    error = sum(shares) / len(shares) if shares else 0.0
    share_T = np.where(allow_T, 1 / max(1, allow_T.sum()), 1 / max(1, (~allow_T).sum())) / max(1, len(shares))
    edges, adds = deciles(p_T[:held][allow_T].tolist()), (wrong_T[:held] * share_T).tolist()
    return Score(error, int(wrong_T[held:].sum()), outcomes, tuple(edges), tuple(adds))


def version_record(gate: GateModel, policy: Policy, found: Score, store: Store, **more: Any) -> dict[str, Any]:
    """What is kept beside the weights."""
    scores = {"held_error": found.error, "pinned_wrong": found.pinned_wrong, "edges": found.edges}
    return {**described(gate), "policy": list(policy), "time": store.clock(), **scores, **more}


def logits(gate: GateModel, texts: Iterable[str]) -> dict[str, float]:
    """z of each text."""
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, fit.logits(gate, [gate.encode(text) for text in distinct]).tolist(), strict=True))


def _row(gate: GateModel, text: str) -> torch.Tensor:
    return gate.batch([gate.encode(text)])
