"""The learner: trains a copy of the serving model on new feedback, and promotes it only if it is no worse.

A round takes the signals that wait and solves for the weights of n-grams and features: seconds, so that one signal is
enough. Where a gate has an encoder, and DEEP signals have come since it last learned, it learns first: a few
consolidated steps on batches of which half are these signals, half replay. Then the candidate is calibrated and its
thresholds are chosen anew on the held-back calls. It serves if, against the serving version,

    its balanced error on the held-back calls, a question being half an error, is no higher than chance explains,
    the share that it decides outright wrong is above the best version's ever by at most a hundredth, or two standard
    errors where these calls are few, and so is its AUC below the best by at most 0.003,
    it is wrong on no more of the pinned mistakes,
    and, once the model is trusted, at most 0.1%·n² of known decisions change, n signals having come since a review
    window ago: one says little of others, many say that something is off, whether or not they were learned already.

A candidate that fails is taken half of the way, then a quarter, then without the encoder's steps; then the serving
version stays and the signals wait on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.gate import proximal, replay, roc
from gradproof.gate.consolidation import STRENGTH, ConsolidatedStep, Consolidation, decayed, fisher
from gradproof.gate.database import new_id
from gradproof.gate.drift import deciles, errors
from gradproof.gate.journal import LabelledText, is_held
from gradproof.gate.kept_logits import KeptLogits
from gradproof.gate.network import FEATURE_WEIGHT, WEIGHT, Calibration, GateModel
from gradproof.gate.packing import described, pack, tensors_of, unpack
from gradproof.gate.policy import Policy, calibrate, choose
from gradproof.gate.serving import Serving, load_serving
from gradproof.gate.signals import MISTAKES
from gradproof.gate.store import Settings, Store
from gradproof.streams import philox
from gradproof.train.adamw import AdamW

BATCH, LEAST_STEPS, MOST_STEPS = 32, 8, 24
DEEP = 64  # signals that the encoder waits for: fewer tell it little, and its steps cost what it knew
RATE = 5e-4
CLIP = 1.0
CALLS_OF_FISHER = 48
MOST_SAID, SAID = 4000, 8.0  # mistakes, and how much a signal counts beside replay when the n-grams are solved for
PLASTIC = 0.1  # of the consolidation's strength, where the error rate has drifted
BY_CHANCE = 1.645  # standard errors: the normal distribution's 95% point
MOST_LOST = 0.01  # of balanced error, against the best version
MOST_AUC_LOST = 0.003
LEAST_RATE = 0.01  # that the standard error of an error rate is computed with
CHANGES = 0.001  # of known decisions, times the new signals squared
WAYS = (1.0, 0.5, 0.25)  # of the way from the serving weights to the trained ones
KNOWN = 500  # recent decisions that a candidate is held against, beside the held-back calls
ENOUGH, SOON = 8, 20.0  # so many signals, or so many seconds after the first, begin a round
LOOK = 0.5  # seconds between two looks for signals
ANCHOR = ".anchor"  # behind a name, beside the weights: those that the gate began with
SETTLED = (WEIGHT, FEATURE_WEIGHT)  # what the encoder's steps leave as it was: these are solved for


class Best(NamedTuple):
    """What the best version so far had on the held-back calls: the least share decided outright wrong, the highest AUC.
    Questions do not count here: a gate that learns of new harm asks more, and must not be stuck for it."""

    mistaken: float = 1.0
    auc: float = 0.0

    def shifted(self, record: dict[str, Any], now: Score) -> Best:
        """As it would be on the held-back calls of now: these become more and harder, and the serving version, whose
        score at its promotion its record tells, shows by how much."""
        harder = now.mistaken - record.get("held_mistaken", now.mistaken), now.auc - record.get("held_auc", now.auc)
        return Best(self.mistaken + harder[0], self.auc + harder[1])

    def including(self, score: Score) -> Best:
        return Best(min(self.mistaken, score.mistaken), max(self.auc, score.auc))


class Score(NamedTuple):
    """Of a model with its policy: `error` is the mean over the two classes of the share that it decides wrong, a
    question being half an error, `noise` its standard error; `mistaken` the same without questions; `edges` are the
    deciles of its probabilities for held-back calls to allow."""

    error: float
    pinned_wrong: int
    outcomes: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    wrong: tuple[float, ...] = ()  # of each held-back call, what it adds to the error
    auc: float = 1.0
    noise: float = 0.0
    auc_noise: float = 0.0
    mistaken: float = 0.0

    def no_worse(self, than: Score, changes: float, best: Best | None = None) -> bool:
        """Not by more than the calls that are judged differently explain by chance (which is exceeded once in twenty
        times), nor by more than a little against the best version: small losses must not add up."""
        best = best or Best()
        differ = [a - b for a, b in zip(self.wrong, than.wrong, strict=True) if a != b]
        # Thresholds are chosen anew: where one moves, many calls change sides at once, and not independently.
        chance = max(BY_CHANCE * math.sqrt(sum(difference**2 for difference in differ)), self.noise)
        # The best of many is partly luck: what two standard errors of a difference explain is not a loss.
        lost = max(MOST_LOST, 2 * math.sqrt(2) * self.noise)
        if self.error > than.error + chance + 1e-12 or self.mistaken > best.mistaken + lost + 1e-12:
            return False
        least = min(than.auc, best.auc - max(MOST_AUC_LOST, 2 * self.auc_noise))
        if self.auc < least or self.pinned_wrong > than.pinned_wrong:
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

    held: list[LabelledText]
    pinned: list[LabelledText]
    recent: list[str]

    def texts(self) -> list[str]:
        return [example.text for example in (*self.held, *self.pinned)] + self.recent


class Examples(NamedTuple):
    """What there is to learn from, beside the signals of the round: replay, pinned mistakes, the gate's own echo."""

    kept: list[LabelledText]
    pinned: list[LabelledText]
    echo: list[LabelledText]


class Candidate(NamedTuple):
    """`optimizer` is its state as bytes; `encoder_at` the key of the last signal that the encoder could learn; `offset`
    that of the first weights."""

    gate: GateModel
    optimizer: bytes
    encoder_at: str
    offset: float
    steps: int = 0


class Learner:
    """`Learner(store).round()`; the same store, signals and seed give the same version, to rounding."""

    def __init__(self, store: Store, seed: int = 0):
        torch.set_num_threads(1)
        self.store, self.seed = store, seed
        self.failed: frozenset[bytes] = frozenset()  # the signals of the last candidate that was no good
        self._deepest = ""  # the key of the last signal that the encoder learned from, in vain or not
        self._readings = KeptLogits()

    def due(self) -> bool:
        """Whether enough signals wait, or one waits long enough, and they are not just those that failed."""
        waiting = self.store.journal.pending()
        new = [example for example in waiting if example.key not in self.failed]
        if not new:
            return False
        oldest = int(new[0].key[:12], 16) / 1000
        return len({example.key for example in new}) >= ENOUGH or self.store.clock() - oldest >= SOON

    def round(self) -> Round | None:
        """One round; None where no signal waits."""
        started = time.perf_counter()
        waiting = self.store.journal.pending()
        if not waiting:
            return None
        serving, known = load_serving(self.store), self._known()
        before = score(serving.gate, serving.policy, known, self._readings.logits(serving.gate, known.texts()))
        record = self.store.versions.get(serving.number).record
        best = Best(*record.get("best", ())).shifted(record, before).including(before)
        changes, steps, after = self._changes(waiting), 0, before
        said = len({example.key for example in waiting})
        for candidate in self._candidates(serving, record, waiting):
            steps = max(steps, candidate.steps)
            for way in WAYS:
                gate = candidate.gate.copy()
                gate.network.params.flat_P.lerp_(serving.gate.network.params.flat_P, 1 - way)
                z = self._readings.logits(gate, known.texts())
                policy = settle(gate, known, z, self.store.settings, serving.policy)
                after = score(gate, policy, known, z)
                if after.no_worse(before, changes, best):
                    own = dict(came_from=serving.number, signals=said, encoder_at=candidate.encoder_at)
                    own |= {"people": True, "offset": candidate.offset}
                    made = version_record(gate, policy, after, self.store, **own, best=best.including(after))
                    version = self._promote(serving, gate, made, candidate.optimizer)
                    if version is None:  # somebody else has changed what serves: the signals wait on
                        return Round(said, steps, None, way, before, after, time.perf_counter() - started)
                    self.store.journal.learned(waiting)
                    self.failed = frozenset()
                    return Round(said, steps, version, way, before, after, time.perf_counter() - started)
        self.failed = frozenset(example.key for example in waiting)
        return Round(said, steps, None, 0.0, before, after, time.perf_counter() - started)

    def _known(self) -> Known:
        journal = self.store.journal
        recent = [text for decision in journal.decisions(KNOWN, unremarked=True) for text in decision["texts"]]
        return Known(journal.examples("held"), journal.examples("pinned"), list(dict.fromkeys(recent)))

    def _changes(self, waiting: Sequence[LabelledText]) -> float:
        """The share of known decisions that may change: 0.1%·n², n of a review window; all before the gate decides."""
        journal = self.store.journal
        if not journal.trust().given:
            return 1.0
        since = new_id(journal.clock() - 3600 * self.store.settings.review_hours)[:12]
        keys = {example.key for example in (*waiting, *journal.said(since.encode()))}
        return CHANGES * len(keys) ** 2

    def _candidates(
        self, serving: Serving, record: dict[str, Any], waiting: Sequence[LabelledText]
    ) -> Iterator[Candidate]:
        """With the encoder's steps, where enough signals have come for it; then without."""
        journal, optimizer = self.store.journal, self.store.versions.optimizer(serving.number)
        own = replay.echo(journal, self.store.settings.review_hours)
        there = Examples(journal.examples("replay"), journal.examples("pinned"), own)
        # Once for a gate: neither the first weights nor, by much, what is replayed change.
        offset = record["offset"] if "offset" in record else self._offset(serving.gate, there.kept, serving.number)
        learnable = _learnable(waiting)
        said = [*there.pinned, *(example for example in learnable if example.signal.kind not in MISTAKES)]
        at = max(record.get("encoder_at", ""), self._deepest)
        since = journal.said(at.encode()) if serving.gate.network.config.encoder_layers else []
        if len({example.key for example in since}) >= DEEP:
            gate = serving.gate.copy()
            self._deepest = at = since[-1].key.decode()
            state, steps = self._train(gate, optimizer, _learnable(since), there, serving.number)
            self._solve(gate, serving.number, said, there, offset)
            yield Candidate(gate, state, at, offset, steps)
        gate = serving.gate.copy()
        self._solve(gate, serving.number, said, there, offset)
        yield Candidate(gate, optimizer, at, offset)

    def _train(
        self, gate: GateModel, state: bytes, new: Sequence[LabelledText], there: Examples, number: int
    ) -> tuple[bytes, int]:
        """Trains the encoder; returns the optimizer's state and the Fisher information to go on with, and the steps."""
        draws = np.random.Generator(philox(self.seed, "replay", number, len(new)))
        step = ConsolidatedStep(gate.network, "bce", AdamW(lr=RATE), clip=CLIP)
        tensors = unpack(state) if state else {}
        if tensors:
            step.optimizer.load_state(tensors)
        before = replay.balanced(there.kept, min(CALLS_OF_FISHER, len(there.kept)), draws)
        fisher_P = decayed(
            tensors.get("fisher"), fisher(gate.network, [self._batch(gate, [example]) for example in before])
        )
        strength = STRENGTH * (PLASTIC if errors(self.store.journal.errors()).drift else 1.0)
        step.consolidation = Consolidation(gate.network.params.flat_P, fisher_P, strength)
        steps = min(MOST_STEPS, LEAST_STEPS + len(new)) if new else 0
        kept = {name: value.clone() for name, value in gate.network.params.items() if name in SETTLED}
        for _ in range(steps):
            batch = replay.compose(new, there.kept, there.pinned, there.echo, BATCH, draws)
            label_B = torch.tensor([example.signal.label for example in batch])
            weight_B = torch.tensor([example.signal.weight for example in batch])
            step(self._batch(gate, batch), (label_B, weight_B))
        for name, value in kept.items():
            gate.network.params[name].copy_(value)
        return pack({**step.optimizer.state(), "fisher": fisher_P}), steps

    def _solve(
        self, gate: GateModel, number: int, said: Sequence[LabelledText], there: Examples, offset: float
    ) -> None:
        """The sparse weights, from what people said, replay, and as much of the echo as a quarter of it all."""
        said = said[-MOST_SAID:]
        mass = replay.even(there.kept) | {example.text: SAID * example.signal.weight for example in said}
        echo = replay.quarter(there.echo, mass)
        mass |= {example.text: example.signal.weight for example in echo}
        rows = list({example.text: example for example in (*there.kept, *said, *echo)}.values())
        texts = [example.text for example in rows]
        proximal.get_to_know(gate.network, self._readings.sparse(gate, [example.text for example in said]))
        proximal.solve(
            gate.network,
            self._readings.sparse(gate, texts),
            torch.from_numpy(self._readings.encoded(gate, texts)).float() + offset,
            torch.tensor([example.target for example in rows]),
            torch.tensor([mass[text] for text in texts]),
            self._anchors(number),
        )
        self._readings.keep([*texts, *self._known().texts()])

    def _offset(self, gate: GateModel, kept: Sequence[LabelledText], number: int) -> float:
        """That of the first weights, on replay: what people say must move weights, not the offset."""
        if not kept:
            return 0.0
        first, texts = gate.copy(), [example.text for example in kept]
        for name, anchor_N in self._anchors(number).items():
            first.network.params[name].copy_(anchor_N)
        mass, z = replay.even(kept), self._readings.logits(first, texts)
        return proximal.offset(
            torch.tensor([z[text] for text in texts]),
            torch.tensor([example.target for example in kept]),
            torch.tensor([mass[text] for text in texts]),
        )

    def _anchors(self, number: int) -> dict[str, Tensor]:
        """The sparse weights that the gate began with, by name."""
        tensors = unpack(self.store.versions.weights(number))
        return {name: tensors.get(name + ANCHOR, tensors[name]) for name in SETTLED}

    def _batch(self, gate: GateModel, examples: Sequence[LabelledText]) -> Tensor:
        return gate.batch([gate.encode(example.text) for example in examples])

    def _promote(self, serving: Serving, gate: GateModel, record: dict[str, Any], optimizer: bytes) -> int | None:
        """The new version's number; None where the serving version is no longer the one that was trained from."""
        anchors = {name + ANCHOR: anchor_N for name, anchor_N in self._anchors(serving.number).items()}
        tensors = {**tensors_of(gate), **anchors}
        return self.store.versions.add(pack(tensors), record, optimizer, after=serving.number)


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
    how = f"version {done.version} serves" + (f", with {done.way:.0%} of the change" if done.way < 1 else "")
    verdict = how if done.version else "the candidate was worse; keeping the serving version"
    return (
        f"{done.signals} signal{'s' * (done.signals != 1)}, {done.steps} steps, {done.seconds:.1f} s: {verdict};"
        f" held-back error {done.before.error:.4f} → {done.after.error:.4f}, pinned mistakes wrong"
        f" {done.before.pinned_wrong} → {done.after.pinned_wrong}"
    )


def settle(gate: GateModel, known: Known, z: dict[str, float], settings: Settings, otherwise: Policy) -> Policy:
    """Calibrates the gate on the held-back calls, and chooses the thresholds; `z` holds the logits of all known."""
    allow_T = np.array([example.target > 0.5 for example in known.held], dtype=bool)
    if allow_T.all() or not allow_T.any():
        return otherwise
    z_T = np.array([z[example.text] for example in known.held])
    gate.calibration = Calibration(*calibrate(z_T, allow_T))
    return choose(gate.calibrated(z_T), allow_T, settings.false_allow, settings.false_block)


def score(gate: GateModel, policy: Policy, known: Known, z: dict[str, float]) -> Score:
    """How a gate does on the known calls."""
    p_T = gate.calibrated(np.array([z[text] for text in known.texts()]))
    held, pinned = len(known.held), len(known.pinned)
    allow_T = np.array([example.target > 0.5 for example in known.held], dtype=bool)
    outcomes = tuple(policy.decide(float(p)) for p in (*p_T[:held], *p_T[held + pinned :]))
    wrong_T = np.array([_wrong(outcome, allow) for outcome, allow in zip(outcomes, allow_T, strict=False)])
    there = [chosen for chosen in (allow_T, ~allow_T) if chosen.any()]
    shares = [float(wrong_T[chosen].mean()) for chosen in there]
    error = sum(shares) / max(1, len(shares))
    mistaken = sum(float((wrong_T[chosen] == 1).mean()) for chosen in there) / max(1, len(there))
    rate = max(error, LEAST_RATE)
    noise = math.sqrt(sum(rate * (1 - rate) / chosen.sum() for chosen in there)) / max(1, len(there))
    share_T = np.where(allow_T, 1 / max(1, allow_T.sum()), 1 / max(1, (~allow_T).sum())) / max(1, len(shares))
    edges, adds = deciles(p_T[:held][allow_T].tolist()), (wrong_T * share_T).tolist()
    missed = sum(
        policy.leans(float(p)) != (example.target > 0.5)
        for p, example in zip(p_T[held : held + pinned], known.pinned, strict=True)
    )
    ranked = roc.auc(-np.array([z[example.text] for example in known.held]), ~allow_T)
    ranked = 1.0 if ranked is None else ranked
    of_auc = roc.auc_error(ranked, int((~allow_T).sum()), int(allow_T.sum()))
    return Score(error, missed, outcomes, tuple(edges), tuple(adds), ranked, noise, of_auc, mistaken)


def _wrong(outcome: str, allow: bool) -> float:
    """A question is half an error: it is answered right, but somebody has to."""
    return 0.5 if outcome == "ask" else float((outcome == "allow") != allow)


def version_record(gate: GateModel, policy: Policy, score: Score, store: Store, **more: Any) -> dict[str, Any]:
    """What is kept beside the weights."""
    scores = {
        "held_error": score.error,
        "held_mistaken": score.mistaken,
        "held_auc": score.auc,
        "pinned_wrong": score.pinned_wrong,
        "edges": score.edges,
    }
    return {**described(gate), "policy": list(policy), "time": store.clock(), **scores, **more}


def logits(gate: GateModel, texts: Iterable[str]) -> dict[str, float]:
    """z of each text."""
    return KeptLogits().logits(gate, texts)


def _learnable(signals: Sequence[LabelledText]) -> list[LabelledText]:
    """All but the overrides that are held back."""
    return [example for example in signals if example.signal.kind in MISTAKES or not is_held(example.text)]
