"""The decider: reads a call, decides every act of it, and writes the decision down behind the answer.

The worst act decides. In order: the floor, which nothing but shadow mode removes; rules; corrections; the policy, which
the model may tighten, and loosen from ask to allow where it is trusted. An exception or too much time is a question, or
the worst so far.

One thread decides. A new version, or a new correction, is loaded by another while the old one goes on deciding; then
one assignment puts it in. The decision is on its way to the disk when the answer is given, never waited for: what
must not be lost are signals, and `Journal.remark` waits for those.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gradproof.gate import calls
from gradproof.gate.acts.act import Act
from gradproof.gate.calls import Call
from gradproof.gate.corrections import Correction, Corrections, digest, restored, safe, safely_stored
from gradproof.gate.database import new_id
from gradproof.gate.network import GateModel
from gradproof.gate.packing import gate_of
from gradproof.gate.policy import Policy
from gradproof.gate.reading import ReadCall, act_texts, read
from gradproof.gate.rules import Rules
from gradproof.gate.secrets import Redactor
from gradproof.gate.signals import Outcome
from gradproof.gate.standing import STRICTER, ActVerdict
from gradproof.gate.store import SETTINGS, Store, read_settings

WAITING = 10_000  # decisions that may wait for the disk
TOGETHER = 256  # in one commit
MOMENT = 0.05  # seconds of decisions that are written together
LOOK_AGAIN = 50  # decisions between two looks at whether the model is trusted
MOST_REDACTED = 800.0  # candidates for secrets in all texts of a call
MOST_SCORED = 16  # acts of one call that the model reads, the strictest first


class Answer(NamedTuple):
    """`probability` is that of allow. In shadow mode `decision` is allow, and `shadow` what would have been decided."""

    id: str
    decision: Outcome
    probability: float
    reason: str
    acts: list[dict[str, Any]]
    version: int
    shadow: Outcome | None = None

    def plain(self) -> dict[str, Any]:
        """As it is printed; without `shadow` where that mode is off."""
        return {name: value for name, value in self._asdict().items() if name != "shadow" or value is not None}


class ActDecision(NamedTuple):
    """The decision on one act: by the floor, a rule, a correction, the policy or the model."""

    outcome: Outcome
    reason: str
    by: str


class Serving(NamedTuple):
    """A version as it decides; `people`: it has learned from calls that people labelled."""

    number: int
    gate: GateModel
    policy: Policy
    people: bool = False

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """P(allow) of each act."""
        return [float(p) for p in self.gate.probability([self.gate.encode(text) for text in texts])]


class Decider:
    """`Decider(store).decide(call)`. With `wait`, news are loaded before the next decision rather than beside it;
    `alone`, the model decides without floor, rules, corrections and policy, so that it can be scored."""

    def __init__(self, store: Store, *, wait: bool = False, alone: bool = False):
        torch.set_num_threads(1)
        self.store, self.wait, self.alone = store, wait, alone
        self.serving = load_serving(store)
        for many in (4, MOST_SCORED):  # kernels are proven before the first call that needs them
            self.serving.probabilities([f"Bash\ncommand: word {i}" for i in range(many)])
        self.corrections = Corrections(store.journal.corrections())
        self._seen = self._news()
        self._loading: threading.Thread | None = None
        self._rules, self._rules_time = Rules.read(store.rules), _changed(store.rules)
        self._shadow, self._settings_time = store.settings.shadow, _changed(store.folder / SETTINGS)
        self._complaints = {"rules": "", "settings": ""}
        self._trust, self._until_look = store.journal.trust(), LOOK_AGAIN
        self._recorder = DecisionWriter(store)

    def decide(self, call: Call) -> Answer:
        """Decides one call that `calls.parse` read, and records it."""
        answer, record = self._decide(call)
        self._recorder.put(record)
        return answer

    def peek(self, call: Call) -> Answer:
        """The same answer, recorded nowhere."""
        return self._decide(call)[0]

    def _decide(self, call: Call) -> tuple[Answer, dict[str, Any]]:
        """The answer, and what is recorded of it."""
        self._refresh()
        serving, done = self.serving, read(call, self.store.folder)
        redactor = Redactor(self.store.key, MOST_REDACTED)
        plain = [safely_stored(act, redactor) for act in done.acts]
        texts = act_texts(call, done.acts, redactor)
        p_A = self._score(serving, texts, done)
        named = digest(call, redactor.key)
        correction = self.corrections.find(named, [restored(act) for act in plain])
        judged = [self._judge(call, done, i, p, correction, serving) for i, p in enumerate(p_A)]
        # The strictest decision; of several acts that are decided alike, the one that the model holds for the worst.
        i = max(range(len(judged)), key=lambda act: (STRICTER[judged[act].outcome], -p_A[act], -act))
        probability = _probability(judged[i], min(p_A), serving.policy)
        told = [safe(act.plain(), redactor) for act in done.acts]
        id = new_id(self.store.clock())
        answer = Answer(id, judged[i].outcome, probability, judged[i].reason, told, serving.number)
        answered = answer._replace(decision="allow", shadow=answer.decision) if self._shadow else answer
        own = {"model": min(p_A), "lean": serving.policy.leans(min(p_A)), "by": judged[i].by}
        said = {"text": calls.text(call, redactor), "digest": named, "texts": texts, "worst": i, "acts": plain}
        who = {"session": call.session, "actor": call.actor}
        # The journal keeps the gate's own decision: nothing is learned as allowed because of shadow mode.
        return answered, {**answered.plain(), "decision": answer.decision, **said, **own, **who}

    def _score(self, serving: Serving, texts: Sequence[str], done: ReadCall) -> list[float]:
        """The model's probability of each act; acts beyond those it reads count as the lowest."""
        order = sorted(range(len(texts)), key=lambda i: -STRICTER[done.verdicts[i].outcome])[:MOST_SCORED]
        chosen = list(dict.fromkeys(texts[i] for i in order))
        by_text = dict(zip(chosen, serving.probabilities(chosen), strict=True))
        lowest = min(by_text.values())
        return [by_text.get(text, lowest) for text in texts]

    def _judge(
        self, call: Call, done: ReadCall, i: int, p: float, correction: Correction | None, serving: Serving
    ) -> ActDecision:
        """One act, by the first that has a say."""
        act, verdict = done.acts[i], done.verdicts[i]
        if self.alone:
            return ActDecision(serving.policy.decide(p), f"model: p = {p:.3g}", "model")
        if verdict.floor:
            return ActDecision(verdict.outcome, verdict.reason, "floor")
        rule = self._rules.judge(act, call.tool, call.arguments)
        if rule is not None:
            return ActDecision("block" if rule.effect == "deny" else "allow", str(rule), "rule")
        if correction is not None and (correction.allow or i in _reached(correction, done.acts)):
            return ActDecision("allow" if correction.allow else "block", _like(correction), "correction")
        return self._model(act, verdict, p, serving)

    def _model(self, act: Act, verdict: ActVerdict, p: float, serving: Serving) -> ActDecision:
        """The policy, tightened by the model; loosened from ask to allow only with trust."""
        policy = serving.policy
        if verdict.outcome == "allow" and (serving.people or self._is_trusted()) and policy.decide(p) == "block":
            return ActDecision("ask", f"{verdict.reason}; the model holds it for harmful, p = {p:.3g}", "model")
        readable = act.effect != "unknown" and act.scope != "unknown"
        if verdict.outcome == "ask" and readable and self._is_trusted() and policy.decide(p) == "allow":
            return ActDecision("allow", f"{verdict.reason}; the model allows it, p = {p:.3g}", "model")
        return ActDecision(verdict.outcome, verdict.reason, "policy")

    @property
    def complaint(self) -> str:
        """What is wrong with files that people changed; empty where nothing is."""
        return "; ".join(complaint for complaint in self._complaints.values() if complaint)

    def _is_trusted(self) -> bool:
        return self._trust.given

    def flush(self) -> None:
        """Waits until every decision is on the disk; ValueError where one could not be written."""
        self._recorder.flush()

    def close(self) -> None:
        self.settle()
        self._recorder.close()

    def settle(self) -> None:
        """Waits for what is being loaded."""
        if self._loading is not None:
            self._loading.join()

    def _refresh(self) -> None:
        """Looks for news: a read of a few bytes, and the times of two files."""
        self._refresh_files()
        self._until_look -= 1
        if self._until_look <= 0 or self.wait:
            self._trust, self._until_look = self.store.journal.trust(), LOOK_AGAIN
        if (self._loading is None or not self._loading.is_alive()) and self._news() != self._seen:
            self._loading = threading.Thread(target=self._load, daemon=True)
            self._loading.start()
            if self.wait:
                self._loading.join()

    def _refresh_files(self) -> None:
        """People change rules, and begin and end shadow mode, while the gate decides."""
        changed = _changed(self.store.rules)
        if changed != self._rules_time:
            self._rules_time = changed
            try:
                self._rules, self._complaints["rules"] = Rules.read(self.store.rules), ""
            except ValueError as error:
                self._complaints["rules"] = f"{error}; keeping the previous rules"
        changed = _changed(self.store.folder / SETTINGS)
        if changed != self._settings_time:
            self._settings_time = changed
            try:
                self._shadow, self._complaints["settings"] = read_settings(self.store.folder).shadow, ""
            except (OSError, ValueError) as error:
                self._complaints["settings"] = f"{error}; keeping the previous settings"

    def _news(self) -> tuple[int, bytes]:
        return self.store.versions.serving(), self.store.journal.corrections_stamp()

    def _load(self) -> None:
        seen = self._news()
        if seen[0] != self.serving.number:
            self.serving = load_serving(self.store, self.serving)
        if seen[1] != self._seen[1]:
            self.corrections = Corrections(self.store.journal.corrections())
        self._seen = seen


def load_serving(store: Store, before: Serving | None = None) -> Serving:
    """The serving version; loaded again where it was replaced and pruned while being read. What was checked of the
    version `before` need not be checked again."""
    while True:
        number = store.versions.serving()
        if number == 0:
            raise ValueError(f"the gate in {store.folder} has no model yet; run: gradproof gate init")
        try:
            record, weights = store.versions.get(number).record, store.versions.weights(number)
            serving = Serving(number, gate_of(weights, record), Policy(*record["policy"]), record.get("people", False))
            if before is not None and before.gate.network.config == serving.gate.network.config:
                serving.gate.paths.update(before.gate.paths)
            # Its kernels are admitted and checked before the first call comes, on a text as long as any.
            serving.probabilities(["word " * serving.gate.network.config.context])
            return serving
        except ValueError:
            if store.versions.serving() == number:
                raise


class DecisionWriter:
    """Writes decisions from a thread of its own, those of a moment in one commit."""

    def __init__(self, store: Store):
        self._journal = store.journal
        self._waiting: queue.Queue[dict[str, Any]] = queue.Queue(WAITING)
        self._hurry, self._closing = threading.Event(), False
        self.error: ValueError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, decision: dict[str, Any]) -> None:
        self._waiting.put(decision)

    def flush(self) -> None:
        self._hurry.set()
        self._waiting.join()
        self._hurry.clear()
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def close(self) -> None:
        self._closing = True
        self._hurry.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing or not self._waiting.empty():
            self._hurry.wait(MOMENT)
            batch: list[dict[str, Any]] = []
            while len(batch) < TOGETHER and not self._waiting.empty():
                batch.append(self._waiting.get())
            if not batch:
                if self._hurry.is_set() and not self._closing:
                    time.sleep(0.001)  # whoever hurries has not looked yet
                continue
            try:
                self._journal.record(batch)
            except ValueError as error:
                self.error = error
            except Exception as error:  # a full disk, for one: decisions go on, and whoever flushes is told
                self.error = ValueError(f"decisions could not be written: {error}")
            for _ in batch:
                self._waiting.task_done()


def _reached(correction: Correction, acts: Sequence[Act]) -> set[int]:
    """The acts that a block speaks of: those like the named one; all of them where the call is the very same."""
    named = correction.acts[min(correction.named, len(correction.acts) - 1)]
    like = {i for i, act in enumerate(acts) if (act.effect, act.program) == (named.effect, named.program)}
    return like or set(range(len(acts)))


def _like(correction: Correction) -> str:
    kind = "allowed" if correction.allow else "blocked"
    return f"a person {kind} this, or what it is like: correction {correction.id} ({correction.kind})"


def _probability(judged: ActDecision, p: float, policy: Policy) -> float:
    """A probability that says what was decided, where people decided it."""
    if judged.by in ("rule", "floor"):
        return {"allow": 1.0, "ask": p, "block": 0.0}[judged.outcome]
    if judged.by == "correction":
        return min(1.0, policy.corrected(p, judged.outcome == "allow"))
    return p


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
