"""The decider: reads a call, decides every act of it, and records the decision after the answer.

The worst act decides; `judging.py` says by what. An exception or too much time is a question, or the worst so far.

One thread decides. A new version is loaded by another while the old one goes on deciding; then one assignment puts it
in. What people say, and rules, policy and settings that they change, hold from the next decision on. The line of the
audit log is written before the answer; the decision itself is on its way to the disk then, never waited for: what must
not be lost are signals, and `Journal.remark` waits for those.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gradproof.gate import MISSING_EXTRA, calls
from gradproof.gate.calls import Call
from gradproof.gate.corrections import Correction, Corrections, digest, restored, safe, safely_stored
from gradproof.gate.database import new_id
from gradproof.gate.judging import ActDecision, Standards, deciding, judge_all
from gradproof.gate.policy import Policy
from gradproof.gate.reading import GatePlace, ReadCall, act_texts, read
from gradproof.gate.recorder import DecisionWriter
from gradproof.gate.rules import Rules
from gradproof.gate.secrets import Redactor
from gradproof.gate.serving import Serving, load_serving
from gradproof.gate.signals import Outcome
from gradproof.gate.standing import STRICTER, PolicyTable, parsed_table, table
from gradproof.gate.store import SETTINGS, Settings, Store, read_settings
from gradproof.gate.watched import Watched

LOOK_AGAIN = 50  # decisions between two looks at whether the model is trusted
MOST_REDACTED = 800.0  # candidates for secrets in all texts of a call
MOST_SCORED = 16  # acts of one call that the model reads, the strictest first
DEADLINE = 0.2  # seconds of work on one call; what takes longer is not allowed
TOO_LONG = f"floor: what takes more than {DEADLINE * 1000:.0f} ms asks"


class Answer(NamedTuple):
    """`probability` is that of allow; `by` is the part of the gate that decided, `because` its line: of the policy, a
    rule, a correction, the model's thresholds. In shadow mode `decision` is allow, and `shadow` what would have been
    decided."""

    id: str
    decision: Outcome
    probability: float
    reason: str
    acts: list[dict[str, Any]]
    version: int
    by: str
    because: str
    shadow: Outcome | None = None

    def plain(self) -> dict[str, Any]:
        """As it is printed; without `shadow` and `would_block` where that mode is off."""
        told = {name: value for name, value in self._asdict().items() if name != "shadow" or value is not None}
        return told if self.shadow is None else {**told, "would_block": self.shadow == "block"}


class Decider:
    """`Decider(store).decide(call)`. With `wait`, a new version is loaded before the next decision rather than beside
    it; `alone`, the model decides without floor, rules, corrections and policy, so that it can be scored. `port` is
    that of the gate's own service."""

    def __init__(self, store: Store, *, wait: bool = False, alone: bool = False, port: int = 0):
        torch.set_num_threads(1)
        self.store, self.wait, self.alone = store, wait, alone
        self.place = GatePlace(store.folder, port)
        self.serving = load_serving(store)
        for many in (4, MOST_SCORED):  # kernels are proven before the first call that needs them
            self.serving.probabilities([f"Bash\ncommand: word {i}" for i in range(many)])
        self._stamp = store.journal.corrections_stamp()
        self.corrections = Corrections(store.journal.corrections())
        self._loading: threading.Thread | None = None
        self._trusting: threading.Thread | None = None
        self._rules = Watched(store.rules, Rules.read, "rules")
        self._policy = Watched(store.policy, policy_of, "policy")
        self._settings = Watched(store.folder / SETTINGS, lambda _: read_settings(store.folder), "settings")
        self._trust, self._until_look, self._unlogged = store.journal.trust(), LOOK_AGAIN, ""
        self._recorder = DecisionWriter(store.journal, lambda: self._settings.value.ask_minutes * 60)
        # What is loaded when it is first needed, such as what programs do, is not on the first call's time.
        self.peek(Call("Bash", {"command": "ls"}))

    def decide(self, call: Call, home: str = "") -> Answer:
        """Decides one call that `calls.parse` read, and records it. `home` is that of who makes the call, where that is
        another user than the gate's."""
        return self.decided(call, home)[0]

    def decided(self, call: Call, home: str = "") -> tuple[Answer, dict[str, Any]]:
        """`decide`, with what was recorded."""
        answer, record = self._decide(call, home)
        if not self.alone:
            answer, record = self._logged(answer, record)
        self._recorder.put(record)
        return answer, record

    def peek(self, call: Call, home: str = "") -> Answer:
        """The same answer, recorded nowhere; a call that is allowed once stays so."""
        return self._decide(call, home, peek=True)[0]

    def ran(self, id: str) -> None:
        """The call of a decision has run; that is noted, and changes nothing."""
        self._recorder.put({"ran": id})

    @property
    def settings(self) -> Settings:
        """Those that hold by now."""
        return self._settings.value

    @property
    def policy(self) -> PolicyTable:
        """The one that holds by now."""
        return self._policy.value

    def standards(self) -> Standards:
        """What calls are judged by now, beside corrections."""
        serving = self.serving
        return Standards(self._rules.value, serving.policy, serving.people, self._trust.given, self.alone)

    def _decide(self, call: Call, home: str, peek: bool = False) -> tuple[Answer, dict[str, Any]]:
        """The answer, and what is recorded of it."""
        started = time.thread_time()
        self._refresh()
        done = read(call, self.place, self._policy.value, home)
        redactor = Redactor(self.store.key, MOST_REDACTED)
        try:
            return self._judged(call, done, redactor, started, peek)
        except Exception as error:
            if str(error) == MISSING_EXTRA:
                raise
            return self._failed(call, done, redactor, error)

    def _judged(
        self, call: Call, done: ReadCall, redactor: Redactor, started: float, peek: bool
    ) -> tuple[Answer, dict[str, Any]]:
        serving = self.serving
        plain = [safely_stored(act, redactor) for act in done.acts]
        texts = act_texts(call, done.acts, redactor)
        p_A = self._score(serving, texts, done)
        named = digest(call, redactor.key)
        correction = self.corrections.find(named, [restored(act) for act in plain])
        judged = self._by_standards(call, done, p_A, correction, named, peek)
        i = deciding(judged, p_A)
        chosen = judged[i]
        if time.thread_time() - started > DEADLINE and chosen.outcome == "allow":
            chosen = ActDecision("ask", f"{chosen.reason}; the decision took too long", "floor", TOO_LONG)
        probability = _probability(chosen, min(p_A), serving.policy)
        own = {"model": min(p_A), "lean": serving.policy.leans(min(p_A)), "p": [round(p, 6) for p in p_A]}
        said = {"text": calls.text(call, redactor), "digest": named, "texts": texts, "worst": i, "acts": plain}
        return self._answer(call, done, redactor, chosen, probability, {**said, **own})

    def _by_standards(
        self,
        call: Call,
        done: ReadCall,
        p_A: Sequence[float],
        correction: Correction | None,
        named: str,
        peek: bool,
    ) -> list[ActDecision]:
        """What is decided of each act. What somebody allowed once is used up only where nothing else allows it."""
        said, standards = (call.tool, call.arguments), self.standards()
        judged = judge_all(standards, done.acts, done.verdicts, p_A, said, correction)
        if self.alone or all(act.outcome == "allow" for act in judged):
            return judged
        once = self.store.journal.asks.granted(call.actor, named, self.store.clock())
        if once is None or (correction is not None and correction.sequence > once.sequence):
            return judged
        passed = judge_all(standards, done.acts, done.verdicts, p_A, said, once)
        if any(act.outcome != "allow" for act in passed):
            return judged
        return passed if peek or self.store.journal.asks.use(call.actor, once) else judged

    def _failed(
        self, call: Call, done: ReadCall, redactor: Redactor, error: Exception
    ) -> tuple[Answer, dict[str, Any]]:
        """A question, or what the policy says of the worst act where that is stricter."""
        verdict = done.verdicts[done.worst]
        reason = f"the gate failed on this call: {type(error).__name__}"
        chosen = ActDecision("ask", reason, "floor", "floor: what fails is asked about")
        if verdict.outcome == "block":
            chosen = ActDecision("block", verdict.reason, "floor" if verdict.floor else "policy", verdict.line)
        acts = [{"effect": "unknown", "program": "?", "scope": "unknown", "why": reason}]
        own = {"text": call.tool, "digest": digest(call, redactor.key), "texts": [""], "worst": 0}
        own |= {"acts": acts, "model": 0.0, "lean": False, "p": [0.0]}
        return self._answer(call, done, redactor, chosen, 0.0, own)

    def _answer(
        self,
        call: Call,
        done: ReadCall,
        redactor: Redactor,
        chosen: ActDecision,
        probability: float,
        own: dict[str, Any],
    ) -> tuple[Answer, dict[str, Any]]:
        told = [safe(act.plain(), redactor) for act in done.acts]
        named = (new_id(self.store.clock()), chosen.outcome, probability, chosen.reason, told, self.serving.number)
        answer = Answer(*named, chosen.by, chosen.line)
        shadow = self._settings.value.shadow
        answered = answer._replace(decision="allow", shadow=answer.decision) if shadow else answer
        who = {"session": call.session, "actor": call.actor}
        floors = [i for i, verdict in enumerate(done.verdicts) if verdict.floor]
        # The journal keeps the gate's own decision: nothing is learned as allowed because of shadow mode.
        return answered, {**answered.plain(), "decision": answer.decision, **own, "floors": floors, **who}

    def _logged(self, answer: Answer, record: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
        """The line of the audit log comes before the answer: what cannot be logged is not allowed."""
        try:
            line = audited(answer, safe(record["acts"][record["worst"]], self.store.key), record)
            line |= {"reason": answer.reason, "text": record["text"]} if self._settings.value.log_arguments else {}
            self.store.audit.append("decision", **safe(line, self.store.key))
        except (OSError, ValueError) as error:
            self._unlogged = f"the audit log cannot be written: {error}"
            record = {**record, "unlogged": True}
            if answer.decision != "allow" or answer.shadow is not None:
                return answer, record
            own = dict(decision="ask", reason=self._unlogged, by="floor", because="floor: what is not logged asks")
            return answer._replace(**own), {**record, **own}
        self._unlogged = ""
        return answer, record

    def _score(self, serving: Serving, texts: Sequence[str], done: ReadCall) -> list[float]:
        """The model's probability of each act; acts beyond those it reads count as the lowest."""
        order = sorted(range(len(texts)), key=lambda i: -STRICTER[done.verdicts[i].outcome])[:MOST_SCORED]
        chosen = list(dict.fromkeys(texts[i] for i in order))
        by_text = dict(zip(chosen, serving.probabilities(chosen), strict=True))
        lowest = min(by_text.values())
        return [by_text.get(text, lowest) for text in texts]

    @property
    def complaint(self) -> str:
        """What is wrong with files that people changed, or with the audit log; empty where nothing is."""
        watched = (self._rules, self._policy, self._settings)
        return "; ".join(said for said in (*(file.complaint for file in watched), self._unlogged) if said)

    def flush(self) -> None:
        """Waits until every decision is on the disk; ValueError where one could not be written."""
        self._recorder.flush()

    def close(self) -> None:
        self.settle()
        self._recorder.close()

    def settle(self) -> None:
        """Waits for what is being loaded."""
        for thread in (self._loading, self._trusting):
            if thread is not None:
                thread.join()

    def _refresh(self) -> None:
        """Looks for news: reads of a few bytes, and the times of three files."""
        for file in (self._rules, self._policy, self._settings):
            file.look()
        self._until_look -= 1
        if self._until_look <= 0 or self.wait:
            self._until_look = LOOK_AGAIN
            self._look_at_trust()
        self._refresh_corrections()
        loading = self._loading is not None and self._loading.is_alive()
        if not loading and self.store.versions.serving() != self.serving.number:
            self._loading = threading.Thread(target=self._load, daemon=True)
            self._loading.start()
            if self.wait:
                self._loading.join()

    def _look_at_trust(self) -> None:
        """Beside the decisions: of many judgements it takes a while to read."""
        if self.wait:
            self._trust = self.store.journal.trust()
        elif self._trusting is None or not self._trusting.is_alive():
            self._trusting = threading.Thread(target=self._read_trust, daemon=True)
            self._trusting.start()

    def _read_trust(self) -> None:
        with suppress(Exception):  # the store is being closed: what was known holds
            self._trust = self.store.journal.trust()

    def _refresh_corrections(self) -> None:
        """What people said or took back holds from the next decision on, so it is read before that."""
        stamp = self.store.journal.corrections_stamp()
        if stamp != self._stamp:
            known = self.corrections.ids()
            for id in known - self.store.journal.correction_ids():
                self.corrections.remove(id)
            for correction in self.store.journal.corrections(but=known):
                self.corrections.add(correction)
            self._stamp = stamp

    def _load(self) -> None:
        self.serving = load_serving(self.store, self.serving)


def policy_of(path: Path) -> PolicyTable:
    """The policy of a store; the default one where it has none of its own."""
    try:
        return parsed_table(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return table()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def audited(answer: Answer, act: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit log tells of a decision: no argument of the call."""
    shadow = {"shadow": answer.shadow, "would_block": answer.shadow == "block"} if answer.shadow is not None else {}
    what = {"effect": act["effect"], "scope": act["scope"], "tool": record["text"].split("\n", 1)[0]}
    who = {"session": record["session"], "actor": record["actor"]}
    named = {name: getattr(answer, name) for name in ("id", "decision", "by", "version")}
    return {**named, **shadow, **what, **who}


def _probability(judged: ActDecision, p: float, policy: Policy) -> float:
    """A probability that says what was decided, where people decided it."""
    if judged.by in ("rule", "floor"):
        return {"allow": 1.0, "ask": p, "block": 0.0}[judged.outcome]
    if judged.by == "correction":
        return min(1.0, policy.corrected(p, judged.outcome == "allow"))
    return p
