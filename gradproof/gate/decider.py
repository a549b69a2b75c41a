"""The decider: reads a call, decides, and writes the decision down behind the answer.

One thread decides. A new version, or a new correction, is loaded by another while the old one goes on deciding; then
one assignment puts it in. The decision is on its way to the disk when the answer is given, never waited for: what must
not be lost are signals, and `Journal.remark` waits for those.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, NamedTuple

import torch

from gradproof.gate import calls
from gradproof.gate.calls import Call
from gradproof.gate.corrections import Correction, Corrections
from gradproof.gate.journal import new_id
from gradproof.gate.network import GateModel
from gradproof.gate.packing import gate_of
from gradproof.gate.policy import Policy
from gradproof.gate.rules import Rule, Rules
from gradproof.gate.secrets import redact
from gradproof.gate.signals import Outcome
from gradproof.gate.store import Store

WAITING = 10_000  # decisions that may wait for the disk
TOGETHER = 256  # in one commit
MOMENT = 0.05  # seconds of decisions that are written together
LOOK_AGAIN = 50  # decisions between two looks at whether the gate has converged


class Answer(NamedTuple):
    """`probability` is that of allow."""

    id: str
    decision: Outcome
    probability: float
    reason: str
    version: int


class Serving(NamedTuple):
    """A version as it decides."""

    number: int
    gate: GateModel
    policy: Policy

    def probability(self, text: str) -> float:
        """P(allow) of one call."""
        return float(self.gate.probability([self.gate.encode(text)])[0])


class Decider:
    """`Decider(store).decide(call)`. With `wait`, news are loaded before the next decision rather than beside it;
    `trusted`, the model decides whether or not it has converged."""

    def __init__(self, store: Store, *, wait: bool = False, trusted: bool = False):
        torch.set_num_threads(1)
        self.store, self.wait, self.trusted = store, wait, trusted
        self.serving = load_serving(store)
        self.corrections = Corrections(store.journal.corrections())
        self._seen = self._news()
        self._loading: threading.Thread | None = None
        self._rules, self._rules_time, self.complaint = Rules.read(store.rules), _changed(store), ""
        self._converged, self._until_look = store.journal.judged(), LOOK_AGAIN
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
        text, serving = redact(calls.text(call)), self.serving
        p = serving.probability(text)
        rule = self._rules.judge(call.tool, call.arguments)
        outcome, probability, reason = self._judge(serving.policy, text, p, rule)
        answer = Answer(new_id(self.store.clock()), outcome, probability, reason, serving.number)
        own = {"model": p, "lean": serving.policy.leans(p), "rule": str(rule) if rule else ""}
        return answer, {**answer._asdict(), "text": text, **own}

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

    def _judge(self, policy: Policy, text: str, p: float, rule: Rule | None) -> tuple[Outcome, float, str]:
        """Rules first, then what people corrected, then the model, if it has converged."""
        if rule is not None:
            return ("block", 0.0, str(rule)) if rule.effect == "deny" else ("allow", 1.0, str(rule))
        correction = self.corrections.find(text)
        if correction is not None:
            outcome = "allow" if correction.allow else "block"
            return outcome, min(1.0, policy.corrected(p, correction.allow)), _like(text, correction)
        if not (self.trusted or self._converged.converged):
            judged = self._converged
            seen = (
                f"{judged.alignment:.0%} of {judged.count:,} judged decisions agreed"
                if judged.count
                else "no decision judged yet"
            )
            return "ask", p, f"cold start: {seen}; the model decides from 95% of 1,000 on, 50 of each kind"
        outcome = policy.decide(p)
        limits = {
            "allow": f"p ≥ {policy.allow_at:.3g}",
            "block": f"p < {policy.block_below:.3g}",
            "ask": f"{policy.block_below:.3g} ≤ p < {policy.allow_at:.3g}: not sure",
        }
        return outcome, p, f"model: {limits[outcome]}"

    def _refresh(self) -> None:
        """Looks for news: a read of a few bytes, and the time of a file."""
        changed = _changed(self.store)
        if changed != self._rules_time:
            self._rules_time = changed
            try:
                self._rules, self.complaint = Rules.read(self.store.rules), ""
            except ValueError as error:
                self.complaint = f"{error}; the rules of before go on"
        self._until_look -= 1
        if self._until_look <= 0 or self.wait:
            self._converged, self._until_look = self.store.journal.judged(), LOOK_AGAIN
        if (self._loading is None or not self._loading.is_alive()) and self._news() != self._seen:
            self._loading = threading.Thread(target=self._load, daemon=True)
            self._loading.start()
            if self.wait:
                self._loading.join()

    def _news(self) -> tuple[int, bytes]:
        return self.store.versions.serving(), self.store.journal.corrections_stamp()

    def _load(self) -> None:
        seen = self._news()
        if seen[0] != self.serving.number:
            self.serving = load_serving(self.store)
        if seen[1] != self._seen[1]:
            self.corrections = Corrections(self.store.journal.corrections())
        self._seen = seen


def load_serving(store: Store) -> Serving:
    """The serving version; loaded again where it was replaced and pruned while being read."""
    while True:
        number = store.versions.serving()
        if number == 0:
            raise ValueError(f"the gate in {store.folder} has no model yet; run: gradproof gate init")
        try:
            record, weights = store.versions.get(number).record, store.versions.weights(number)
            serving = Serving(number, gate_of(weights, record), Policy(*record["policy"]))
            # Its kernels are admitted and checked before the first call comes, on a text as long as any.
            serving.probability("word " * serving.gate.network.config.context)
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
            for _ in batch:
                self._waiting.task_done()


def _like(text: str, correction: Correction) -> str:
    kind = "false_block" if correction.allow else "false_allow"
    same = "the call" if correction.text == text else "like a call"
    return f"{same} that a person corrected: {kind} on {correction.decision}"


def _changed(store: Store) -> int:
    try:
        return store.rules.stat().st_mtime_ns
    except OSError:
        return 0
