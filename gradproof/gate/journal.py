"""The journal: decisions, signals, judgements and examples, in one LMDB environment.

The size is bounded. Before the map is full the oldest decisions go that nobody remarked, then the other decisions;
signals that were learned go by their number. Pinned mistakes and signals that nobody learned from yet never go: where
they fill the map, writing fails in one sentence.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.gate.asks import Asks
from gradproof.gate.corrections import Correction, check_widened, restored
from gradproof.gate.database import Database, NotThere, new_id, time_of
from gradproof.gate.remarks import Giver, Judged, Remark
from gradproof.gate.signals import ECHO, MISTAKES, Signal, signal
from gradproof.gate.trust import PersonsWord, Trust, trust

SCHEMA = 3
FULL, ROOM = 0.8, 0.7  # of the map: beyond the first, the oldest go until the second
MOST_DECISIONS, MOST_SIGNALS, MOST_JUDGED = 100_000, 50_000, 100_000
MOST_EXAMPLES = {"replay": 20_000, "held": 1000}  # of each class
HELD_SHARE = 4  # one in so many overrides is held back
ASK_SECONDS = 900.0  # that a question waits, and that a call which is allowed once may take to come
COMMITS = 1.0  # seconds that a decision just answered may take until it can be remarked
EXAMPLES = ("replay_allow", "replay_block", "held_allow", "held_block", "pinned")
DATABASES = ("meta", "decisions", "signals", "pending", "judged", "corrections", *EXAMPLES, "asks", "grants", "trend")
UNCOUNTED = ("meta", "grants", "trend")
NUMBERS = re.compile(r"\d+")
CORRECTION = re.compile(r"c\d{1,12}", re.ASCII)  # the id of one


class LabelledText(NamedTuple):
    """What the learner reads: the text of a call, the signal about it. `key` orders and names it."""

    key: bytes
    text: str
    signal: Signal

    @property
    def target(self) -> float:
        return self.signal.target


class Journal(Database):
    """Of `mebibytes` at most."""

    def __init__(self, folder: Path, mebibytes: int, clock: Callable[[], float], key: bytes = b""):
        super().__init__(folder, mebibytes, DATABASES, key)
        self.clock, self.asks = clock, Asks(self)
        self._trust: tuple[tuple[int, int], Trust] | None = None  # as it was at a sequence

    # decisions

    def record(self, decisions: Sequence[dict[str, Any]], ask_seconds: float = ASK_SECONDS) -> None:
        """Writes decisions: id, text, decision, acts, model (its own probability), lean, by (who decided), version, …
        One that asks becomes a waiting question. A record of `ran` alone says that a decision's call has run."""

        def write(txn: Any) -> None:
            for decision in decisions:
                if "ran" in decision:
                    self._ran(txn, decision["ran"].encode())
                    continue
                self.put(txn, "decisions", decision["id"].encode(), decision)
                if decision["decision"] == "ask" and "shadow" not in decision:
                    self.asks.note(txn, decision, ask_seconds)

        self.write(write)

    def _ran(self, txn: Any, key: bytes) -> None:
        """An event, no label: it changes nothing that is learned or decided."""
        decision = self.get(txn, "decisions", key)
        if decision is not None:
            self.put(txn, "decisions", key, {**decision, "ran": True})

    def find(self, id: str) -> dict[str, Any] | None:
        """A decision, if it is on the disk."""
        with self.env.begin() as txn:
            return self.get(txn, "decisions", id.encode("utf-8", "replace")[:64] or b"-")

    def decision(self, id: str) -> dict[str, Any]:
        """A decision; one that was answered a moment ago may still be on its way to the disk."""
        waited = 0.0
        while True:
            record = self.find(id)
            if record is not None:
                return record
            if waited >= COMMITS or not _just_made(id, self.clock()):
                raise NotThere(f"there is no decision {id[:40]!r} in this store; `gate decide` prints the id")
            time.sleep(0.02)
            waited += 0.02

    def decisions(self, newest: int, unremarked: bool = False, before: float | None = None) -> list[dict[str, Any]]:
        """The newest, oldest of them first; those that nobody remarked; those decided before a time."""
        chosen = []
        with self.env.begin() as txn:
            end = None if before is None else new_id(before)[:12].encode()
            for _, value in self.backwards(txn, "decisions", end):
                decision = json.loads(value)
                if not (unremarked and (decision.get("remarked") or decision["by"] not in ("policy", "model"))):
                    chosen.append(decision)
                if len(chosen) == newest:
                    break
        return chosen[::-1]

    def newest_first(self, since: float = 0.0) -> Iterator[dict[str, Any]]:
        """All decisions from a time on."""
        first = new_id(max(0.0, since))[:12].encode()
        with self.env.begin() as txn:
            for key, value in self.backwards(txn, "decisions", None):
                if key < first:
                    break
                yield json.loads(value)

    def page(self, before: str = "", most: int = 50) -> list[dict[str, Any]]:
        """Decisions behind an id, newest first; all of them where it is empty."""
        chosen: list[dict[str, Any]] = []
        with self.env.begin() as txn:
            for _, value in self.backwards(txn, "decisions", before.encode("utf-8", "replace")[:64] or None):
                chosen.append(json.loads(value))
                if len(chosen) == most:
                    break
        return chosen

    def newest_id(self) -> str:
        """Of the newest decision; empty where there is none."""
        with self.env.begin() as txn:
            return next((bytes(key).decode() for key, _ in self.backwards(txn, "decisions")), "")

    def oldest_logged(self) -> str:
        """The oldest decision that is kept and has a line in the audit log; empty where there is none."""
        with self.env.begin() as txn:
            for key, value in txn.cursor(self.db["decisions"]):
                if not json.loads(value).get("unlogged"):
                    return bytes(key).decode()
        return ""

    def expire(self, days: float) -> int:
        """Drops decisions that are older and that nobody remarked; how many. At most a thousand in one transaction."""
        gone = 0
        while days > 0:
            dropped: list[int] = []
            end = new_id(max(0.0, self.clock() - days * 86400))[:12].encode()
            self.write(lambda txn, end=end, dropped=dropped: dropped.append(self._drop_before(txn, end, 1000)))
            gone += dropped[-1]
            if dropped[-1] < 1000:
                break
        return gone

    def _drop_before(self, txn: Any, end: bytes, most: int) -> int:
        cursor, gone = txn.cursor(self.db["decisions"]), 0
        alive = cursor.first()
        while alive and cursor.key() < end and gone < most:
            if self._unremarked(cursor.key(), cursor.value()):
                alive = cursor.delete()
                gone += 1
            else:
                alive = cursor.next()
        return gone

    # signals

    def remark(self, id: str, kind: str, **options: Any) -> Signal:
        """A person's word on a decision, with the options of `give`; the signal that it is."""
        return self.give(id, kind, **options).signal

    def give(
        self,
        id: str,
        kind: str,
        *,
        act: int | None = None,
        widened: str = "",
        once: bool = False,
        answers: bool = False,
        ask_seconds: float = ASK_SECONDS,
        giver: Giver | None = None,
    ) -> Remark:
        """A person's word on a decision; a block may name the act it speaks of, an allow how far it reaches. `once`: it
        is no correction, and an allow lets one call pass. `answers`: it answers a waiting question. When this returns,
        it is on the disk."""
        signal(kind)
        check_widened(widened)
        decision = self.decision(id)
        if once and (widened or kind in ECHO):
            raise ValueError("once goes with an override or a mistake, and only applies to the same call")
        if kind in ECHO and decision["decision"] != kind:
            raise ValueError(
                f"{kind!r} is the gate's own decision, but {id} was {decision['decision']!r}; to change it, use"
                f" override_{kind}, or false_{'block' if kind == 'allow' else 'allow'} if it was a mistake"
            )
        named = decision["worst"] if act is None else act
        if not 0 <= named < len(decision["acts"]):
            raise ValueError(f"{id} has {len(decision['acts'])} acts, counted from 0; there is no act {named}")
        given: list[Remark] = []

        def write(txn: Any) -> None:
            who, now = giver or Giver(), self.clock()
            allow = signal(kind).outcome == "allow"
            if answers:
                self.asks.answer(txn, id, allow, once, who.actor, now)
            now_there = self.get(txn, "decisions", id.encode()) or decision
            given[:] = [self._remark(txn, now_there, kind, named, None if once else widened, who)]
            if once and allow:
                number = int(txn.get(b"sequence", db=self.db["meta"]))
                self.asks.grant(txn, decision, number, who.actor, now + ask_seconds)
            if not allow:
                self.asks.take_back(txn, decision)
            if not answers and kind not in ECHO:
                self.asks.settle(txn, id, allow, once, who.actor, now)

        self.write(write)
        return given[0]

    def _remark(
        self, txn: Any, decision: dict[str, Any], kind: str, named: int, widened: str | None, giver: Giver
    ) -> Remark:
        """`widened` is None where this is to be no correction."""
        text, key, number = decision["text"], new_id(self.clock()).encode(), self.next_number(txn)
        again = b"said:" + _hash(f"{kind}\n{text}")
        said_before = int(txn.get(again, b"0", db=self.db["meta"]))
        txn.put(again, str(said_before + 1).encode(), db=self.db["meta"])
        given = signal(kind, said_before)
        own = {"decision": decision["id"], "sequence": number, **giver._asdict(), **given._asdict()}
        texts = decision["texts"] if given.outcome == "allow" else decision["texts"][named : named + 1]
        self.put(txn, "signals", key, {**own, "text": text, "texts": tuple(texts)})
        if kind in ECHO:
            return Remark(given, number, None, decision.get("remarked"))
        allow = given.outcome == "allow"
        self.put(txn, "decisions", decision["id"].encode(), {**decision, "remarked": kind})
        txn.put(key, b"", db=self.db["pending"])
        self._judge(txn, decision["id"].encode(), number, allow, allow == decision["lean"])
        if kind in MISTAKES:
            for one in texts:
                self.put(txn, "pinned", _hash(NUMBERS.sub("0", one)), {**own, "text": one})
        if widened is not None:
            self._correct(txn, decision, own, allow, named, widened)
        made = f"c{number}" if widened is not None else None
        return Remark(given, number, made, decision.get("remarked"))

    def _correct(
        self, txn: Any, decision: dict[str, Any], own: dict[str, Any], allow: bool, named: int, widened: str
    ) -> None:
        """What was said holds from now on."""
        number = own["sequence"]
        record = {**own, "allow": allow, "named": named, "widened": widened, "time": self.clock()}
        record |= {name: decision[name] for name in ("text", "digest", "acts")}
        self.put(txn, "corrections", b"%012d" % number, record)
        txn.put(b"corrections", b"%d" % number, db=self.db["meta"])

    def signals(self) -> list[dict[str, Any]]:
        """All that are kept, oldest first: decision, text, kind, label, weight."""
        with self.env.begin() as txn:
            return [json.loads(value) for _, value in txn.cursor(self.db["signals"])]

    def pending(self, most: int = 100_000) -> list[LabelledText]:
        """The signals that no model learned from yet, oldest first."""
        waiting: list[LabelledText] = []
        with self.env.begin() as txn:
            for key, _ in txn.cursor(self.db["pending"]):
                record = self.get(txn, "signals", key)
                if record is not None:
                    waiting += _examples(key, record)
                if len(waiting) >= most:
                    break
        return waiting

    def said(self, after: bytes = b"") -> list[LabelledText]:
        """What people said since a key, learned or not, oldest first."""
        newest_first: list[LabelledText] = []
        with self.env.begin() as txn:
            for key, value in self.backwards(txn, "signals", None):
                if bytes(key) <= after:
                    break
                newest_first += _examples(bytes(key), json.loads(value))[::-1]
        return [example for example in newest_first[::-1] if example.signal.kind not in ECHO]

    def learned(self, examples: Sequence[LabelledText]) -> None:
        """These need not be kept for learning any more; one in four overrides is held back, the others replayed."""

        def write(txn: Any) -> None:
            for example in examples:
                txn.delete(example.key, db=self.db["pending"])
                if example.signal.kind not in MISTAKES:
                    where = "held" if is_held(example.text) else "replay"
                    self._add(txn, where, example.text, example.signal)

        self.write(write)

    def corrections_stamp(self) -> bytes:
        """Changes with every correction."""
        with self.env.begin() as txn:
            return txn.get(b"corrections", b"", db=self.db["meta"])

    def corrections(self, but: Container[str] = ()) -> list[Correction]:
        """Those that hold, `but` not these."""
        with self.env.begin() as txn:
            stored = [(int(key), value) for key, value in txn.cursor(self.db["corrections"])]
        return [_correction(json.loads(value)) for number, value in stored if f"c{number}" not in but]

    def correction_ids(self) -> set[str]:
        """Of those that hold."""
        with self.env.begin() as txn:
            return {f"c{int(key)}" for key in txn.cursor(self.db["corrections"]).iternext(values=False)}

    def correction_records(self) -> list[dict[str, Any]]:
        """Those that hold, as they were given, oldest first."""
        with self.env.begin() as txn:
            return [json.loads(value) for _, value in txn.cursor(self.db["corrections"])]

    def retract(self, id: str) -> dict[str, Any]:
        """Takes a correction back, with what was pinned for it; it holds no more from this moment on."""
        taken: list[dict[str, Any]] = []

        def write(txn: Any) -> None:
            key = b"%012d" % int(id[1:]) if CORRECTION.fullmatch(id) else b"-"
            record = self.get(txn, "corrections", key)
            if record is None:
                raise NotThere(f"there is no correction {id[:40]!r}; `gate corrections list` shows the current ones")
            txn.delete(key, db=self.db["corrections"])
            for name in ("pinned", "pending"):
                self._forget(txn, name, record["sequence"])
            txn.put(b"corrections", b"-%d" % self.next_number(txn), db=self.db["meta"])
            taken.append(record)

        self.write(write)
        return taken[0]

    def _forget(self, txn: Any, name: str, sequence: int) -> None:
        for key, value in list(txn.cursor(self.db[name])):
            record = json.loads(value) if value else self.get(txn, "signals", key)
            if record is not None and record.get("sequence") == sequence:
                txn.delete(key, db=self.db[name])

    # examples

    def add(self, where: str, rows: Iterable[tuple[str, Signal]]) -> None:
        """Labelled calls for `replay` or `held`. A sample of the distinct texts is kept, the same from every order."""

        def write(txn: Any) -> None:
            for text, given in rows:
                self._add(txn, where, text, given)

        self.write(write)

    def examples(self, where: str) -> list[LabelledText]:
        """`replay`, `held` or `pinned`."""
        with self.env.begin() as txn:
            return self._examples(txn, where)

    def _add(self, txn: Any, where: str, text: str, given: Signal) -> None:
        name = f"{where}_{given.outcome}"
        self.put(txn, name, _hash(text), {"text": text, **given._asdict()})
        # Keys are hashes: dropping the last is dropping a random one.
        while txn.stat(self.db[name])["entries"] > MOST_EXAMPLES[where]:
            cursor = txn.cursor(self.db[name])
            cursor.last()
            cursor.delete()

    def _examples(self, txn: Any, where: str) -> list[LabelledText]:
        """`replay`, `held`, `pinned`, or one class of the first two: `held_allow`."""
        names = [name for name in EXAMPLES if name == where or name.startswith(f"{where}_")]
        rows = [row for name in names for row in txn.cursor(self.db[name])]
        return [_example(bytes(key), json.loads(value)) for key, value in rows]

    # judgements

    def judged(self) -> Judged:
        """Over all decisions that people judged, and the held-back calls that came with a label."""
        with self.env.begin() as txn:
            return self._judged(txn)

    def judge_held(self, judgements: Sequence[tuple[bool, bool]]) -> None:
        """What the first model said of labelled calls that it never learned from: (allow, agreed) each."""

        def write(txn: Any) -> None:
            for i, (allow, agreed) in enumerate(judgements):
                self._judge(txn, b"held-%d" % i, self.next_number(txn), allow, agreed)

        self.write(write)

    def trust(self) -> Trust:
        """Whether the model may loosen decisions."""
        with self.env.begin() as txn:
            since = int(txn.get(b"trust_since", b"0", db=self.db["meta"]))
            stamp = int(txn.get(b"sequence", b"0", db=self.db["meta"])), since
            if self._trust is not None and self._trust[0] == stamp:
                return self._trust[1]
            entries = sorted(json.loads(value) for _, value in txn.cursor(self.db["judged"]))
        told = trust([PersonsWord(bool(allow), bool(agreed)) for number, allow, agreed in entries if number > since])
        self._trust = stamp, told
        return told

    def reset_trust(self) -> None:
        """Judgements so far were of a lineage that serves no more."""
        self.write(lambda txn: txn.put(b"trust_since", b"%d" % self.next_number(txn), db=self.db["meta"]) and None)

    def errors(self, newest: int = 2000) -> list[float]:
        """1 for each judged decision in which the model was wrong, 0 otherwise; oldest first."""
        with self.env.begin() as txn:
            entries = sorted(json.loads(value) for _, value in txn.cursor(self.db["judged"]))
        return [float(not agreed) for _, _, agreed in entries[-newest:]]

    def _judged(self, txn: Any) -> Judged:
        return Judged(**(self.get(txn, "meta", b"judged") or {}))

    def _judge(self, txn: Any, key: bytes, number: int, allow: bool, agreed: bool) -> None:
        """One decision counts once, by what was said last."""
        judged = self._judged(txn)
        before = txn.get(key, db=self.db["judged"])
        if before is not None:
            _, was_allow, was_agreed = json.loads(before)
            judged = judged.add(bool(was_allow), bool(was_agreed), -1)
        txn.put(key, json.dumps([number, int(allow), int(agreed)]).encode(), db=self.db["judged"])
        self.put(txn, "meta", b"judged", judged.add(allow, agreed)._asdict())

    # all

    def counts(self) -> dict[str, int]:
        with self.env.begin() as txn:
            return {name: txn.stat(self.db[name])["entries"] for name in DATABASES if name not in UNCOUNTED}

    def make_room(self, txn: Any) -> None:
        self._evict(txn, "decisions", MOST_DECISIONS, self._unremarked)
        self._evict(txn, "signals", MOST_SIGNALS, lambda key, _: txn.get(key, db=self.db["pending"]) is None)
        self._evict(txn, "judged", MOST_JUDGED, lambda key, value: True)
        if self.used_by(txn) > FULL:
            most = int(txn.stat(self.db["decisions"])["entries"] * ROOM / FULL)
            self._evict(txn, "decisions", most, self._unremarked)

    def halve(self) -> bool:
        """Drops half of the decisions, unremarked ones first: signals have a copy of what they are about. False where
        none is left."""
        with self.env.begin(write=True) as txn:
            before = txn.stat(self.db["decisions"])["entries"]
            self._evict(txn, "decisions", before // 2, self._unremarked)
            self._evict(txn, "decisions", before // 2, lambda key, value: True)
        return before > 0

    def _evict(self, txn: Any, name: str, most: int, may_go: Callable[[bytes, bytes], bool]) -> None:
        """The oldest that may go, a few percent more than needed so that it is not done with every write."""
        excess = txn.stat(self.db[name])["entries"] - most
        if excess <= 0:
            return
        excess += most // 50
        cursor = txn.cursor(self.db[name])
        alive = cursor.first()
        while alive and excess:
            if may_go(cursor.key(), cursor.value()):
                alive = cursor.delete()
                excess -= 1
            else:
                alive = cursor.next()

    @staticmethod
    def _unremarked(key: bytes, value: bytes) -> bool:
        return b'"remarked"' not in value


def _correction(record: dict[str, Any]) -> Correction:
    return Correction(
        f"c{record['sequence']}",
        record["decision"],
        record["sequence"],
        record["allow"],
        record["digest"],
        tuple(restored(act) for act in record["acts"]),
        record["named"],
        record["widened"],
        record["kind"],
        record["actor"],
    )


def is_held(text: str) -> bool:
    """Whether an override is held back rather than learned from; the same text always goes the same way."""
    return _hash(text)[0] % HELD_SHARE == 0


def _just_made(id: str, now: float) -> bool:
    try:
        return len(id) == 20 and abs(now - time_of(id)) < 5
    except ValueError:
        return False


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=12).digest()


def _examples(key: bytes, record: dict[str, Any]) -> list[LabelledText]:
    """A signal as what is learned from it: a block speaks of one act, an allow of all."""
    given = Signal(record["kind"], record["label"], record["weight"])
    return [LabelledText(key, text, given) for text in record["texts"]]


def _example(key: bytes, record: dict[str, Any]) -> LabelledText:
    return LabelledText(key, record["text"], Signal(record["kind"], record["label"], record["weight"]))
