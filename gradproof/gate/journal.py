"""The journal: decisions, signals, judgements and examples, in one LMDB environment.

Every write is one synced transaction: what was acknowledged survives kill -9 at any moment. Several processes may read
and write at once. No string gets in but through `redact`, so no secret can be in any file.

The size is bounded. Before the map is full the oldest decisions go that nobody remarked, then the other decisions;
signals that were learned go by their number. Pinned mistakes and signals that nobody learned from yet never go: where
they fill the map, writing fails in one sentence.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.corrections import Correction, check_widened, restored, safe
from gradproof.gate.secrets import Redactor
from gradproof.gate.signals import ECHO, MISTAKES, Signal, signal
from gradproof.gate.trust import PersonsWord, Trust, trust

SCHEMA = 3
PRIVATE = 0o600  # the mode of every file of a store
FULL, ROOM = 0.8, 0.7  # of the map: beyond the first, the oldest go until the second
MOST_DECISIONS, MOST_SIGNALS, MOST_JUDGED = 100_000, 50_000, 100_000
MOST_EXAMPLES = {"replay": 20_000, "held": 1000}  # of each class
HELD_SHARE = 4  # one in so many overrides is held back
COMMITS = 1.0  # seconds that a decision just answered may take until it can be remarked
EXAMPLES = ("replay_allow", "replay_block", "held_allow", "held_block", "pinned")
DATABASES = ("meta", "decisions", "signals", "pending", "judged", "corrections", *EXAMPLES)
NUMBERS = re.compile(r"\d+")


class LabelledText(NamedTuple):
    """What the learner reads: the text of a call, the signal about it. `key` orders and names it."""

    key: bytes
    text: str
    signal: Signal

    @property
    def target(self) -> float:
        return self.signal.target


class Judged(NamedTuple):
    """How often the model agreed with people, by what they said."""

    allow: int = 0
    allow_agreed: int = 0
    block: int = 0
    block_agreed: int = 0

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.allow + self.block

    @property
    def alignment(self) -> float:
        return (self.allow_agreed + self.block_agreed) / self.count if self.count else 0.0

    @property
    def converged(self) -> bool:
        """≥ 0.95 over ≥ 1000, as it is reported; what the model may do is a matter of trust."""
        return self.alignment >= 0.95 and self.count >= 1000

    def add(self, allow: bool, agreed: bool, by: int = 1) -> Judged:
        if allow:
            return self._replace(allow=self.allow + by, allow_agreed=self.allow_agreed + by * agreed)
        return self._replace(block=self.block + by, block_agreed=self.block_agreed + by * agreed)


def new_id(now: float) -> str:
    """Ordered by time, and no two the same."""
    return f"{int(now * 1000):012x}{os.urandom(4).hex()}"


def time_of(id: str) -> float:
    """When an id was made; ValueError for what is none."""
    return int(id[:12], 16) / 1000


class Giver(NamedTuple):
    """Who gave a signal, in which session."""

    actor: str = ""
    role: str = "person"
    session: str = ""


class Journal:
    """Of `mebibytes` at most."""

    def __init__(self, folder: Path, mebibytes: int, clock: Callable[[], float], key: bytes = b""):
        self.folder, self.clock, self.mebibytes, self.key = folder, clock, mebibytes, key
        self.env = open_environment(folder, mebibytes, len(DATABASES))
        self._db = {name: self.env.open_db(name.encode()) for name in DATABASES}

    # decisions

    def record(self, decisions: Sequence[dict[str, Any]]) -> None:
        """Writes decisions: id, text, decision, acts, model (its own probability), lean, by (who decided), version,
        …"""

        def write(txn: Any) -> None:
            for decision in decisions:
                self._put(txn, "decisions", decision["id"].encode(), decision)

        self._write(write)

    def decision(self, id: str) -> dict[str, Any]:
        """A decision; one that was answered a moment ago may still be on its way to the disk."""
        key, waited = id.encode("utf-8", "replace")[:64] or b"-", 0.0
        while True:
            with self.env.begin() as txn:
                record = self._get(txn, "decisions", key)
            if record is not None:
                return record
            if waited >= COMMITS or not _just_made(id, self.clock()):
                raise ValueError(f"there is no decision {id[:40]!r} in this store; `gate decide` prints the id")
            time.sleep(0.02)
            waited += 0.02

    def decisions(self, newest: int, unremarked: bool = False, before: float | None = None) -> list[dict[str, Any]]:
        """The newest, oldest of them first; those that nobody remarked; those decided before a time."""
        chosen = []
        with self.env.begin() as txn:
            end = None if before is None else new_id(before)[:12].encode()
            for _, value in self._backwards(txn, "decisions", end):
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
            for key, value in self._backwards(txn, "decisions", None):
                if key < first:
                    break
                yield json.loads(value)

    # signals

    def remark(
        self, id: str, kind: str, *, act: int | None = None, widened: str = "", giver: Giver | None = None
    ) -> Signal:
        """A person's word on a decision; a block may name the act it speaks of, an allow how far it reaches. When this
        returns, it is on the disk."""
        signal(kind)
        check_widened(widened)
        decision = self.decision(id)
        if kind in ECHO and decision["decision"] != kind:
            raise ValueError(
                f"{kind!r} is the gate's own decision, but {id} was {decision['decision']!r}; to change it say"
                f" override_{kind}, or false_{'block' if kind == 'allow' else 'allow'} where it was a mistake"
            )
        named = decision["worst"] if act is None else act
        if not 0 <= named < len(decision["acts"]):
            raise ValueError(f"{id} has {len(decision['acts'])} acts, from 0 on; there is no act {named}")
        given: list[Signal] = []

        def write(txn: Any) -> None:
            given[:] = [self._remark(txn, decision, kind, named, widened, giver or Giver())]

        self._write(write)
        return given[0]

    def _remark(self, txn: Any, decision: dict[str, Any], kind: str, named: int, widened: str, giver: Giver) -> Signal:
        text, key, number = decision["text"], new_id(self.clock()).encode(), self._next(txn)
        again = b"said:" + _hash(f"{kind}\n{text}")
        said_before = int(txn.get(again, b"0", db=self._db["meta"]))
        txn.put(again, str(said_before + 1).encode(), db=self._db["meta"])
        given = signal(kind, said_before)
        own = {"decision": decision["id"], "sequence": number, **giver._asdict(), **given._asdict()}
        texts = decision["texts"] if given.outcome == "allow" else decision["texts"][named : named + 1]
        self._put(txn, "signals", key, {**own, "text": text, "texts": tuple(texts)})
        if kind in ECHO:
            return given
        allow = given.outcome == "allow"
        self._put(txn, "decisions", decision["id"].encode(), {**decision, "remarked": kind})
        txn.put(key, b"", db=self._db["pending"])
        self._judge(txn, decision["id"].encode(), number, allow, allow == decision["lean"])
        if kind in MISTAKES:
            for one in texts:
                self._put(txn, "pinned", _hash(NUMBERS.sub("0", one)), {**own, "text": one})
        self._correct(txn, decision, own, allow, named, widened)
        return given

    def _next(self, txn: Any) -> int:
        """Signals are numbered: a clock may be set back."""
        number = 1 + int(txn.get(b"sequence", b"0", db=self._db["meta"]))
        txn.put(b"sequence", b"%d" % number, db=self._db["meta"])
        return number

    def _correct(
        self, txn: Any, decision: dict[str, Any], own: dict[str, Any], allow: bool, named: int, widened: str
    ) -> None:
        """What was said holds from now on."""
        number = own["sequence"]
        record = {**own, "allow": allow, "named": named, "widened": widened}
        record |= {name: decision[name] for name in ("text", "digest", "acts")}
        self._put(txn, "corrections", b"%012d" % number, record)
        txn.put(b"corrections", b"%d" % number, db=self._db["meta"])

    def signals(self) -> list[dict[str, Any]]:
        """All that are kept, oldest first: decision, text, kind, label, weight."""
        with self.env.begin() as txn:
            return [json.loads(value) for _, value in txn.cursor(self._db["signals"])]

    def pending(self, most: int = 100_000) -> list[LabelledText]:
        """The signals that no model learned from yet, oldest first."""
        waiting: list[LabelledText] = []
        with self.env.begin() as txn:
            for key, _ in txn.cursor(self._db["pending"]):
                record = self._get(txn, "signals", key)
                if record is not None:
                    waiting += _examples(key, record)
                if len(waiting) >= most:
                    break
        return waiting

    def said(self, after: bytes = b"") -> list[LabelledText]:
        """What people said since a key, learned or not, oldest first."""
        newest_first: list[LabelledText] = []
        with self.env.begin() as txn:
            for key, value in self._backwards(txn, "signals", None):
                if bytes(key) <= after:
                    break
                newest_first += _examples(bytes(key), json.loads(value))[::-1]
        return [example for example in newest_first[::-1] if example.signal.kind not in ECHO]

    def learned(self, examples: Sequence[LabelledText]) -> None:
        """These need not be kept for learning any more; one in four overrides is held back, the others replayed."""

        def write(txn: Any) -> None:
            for example in examples:
                txn.delete(example.key, db=self._db["pending"])
                if example.signal.kind not in MISTAKES:
                    where = "held" if is_held(example.text) else "replay"
                    self._add(txn, where, example.text, example.signal)

        self._write(write)

    def corrections_stamp(self) -> bytes:
        """Changes with every correction."""
        with self.env.begin() as txn:
            return txn.get(b"corrections", b"", db=self._db["meta"])

    def corrections(self) -> list[Correction]:
        """Those that hold."""
        return [
            Correction(
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
            for record in self.correction_records()
        ]

    def correction_records(self) -> list[dict[str, Any]]:
        """Those that hold, as they were given, oldest first."""
        with self.env.begin() as txn:
            return [json.loads(value) for _, value in txn.cursor(self._db["corrections"])]

    def retract(self, id: str) -> dict[str, Any]:
        """Takes a correction back, with what was pinned for it; it holds no more from this moment on."""
        taken: list[dict[str, Any]] = []

        def write(txn: Any) -> None:
            key = b"%012d" % int(id[1:]) if id[:1] == "c" and id[1:].isdigit() else b"-"
            record = self._get(txn, "corrections", key)
            if record is None:
                raise ValueError(f"there is no correction {id[:40]!r}; `gate corrections list` shows those that hold")
            txn.delete(key, db=self._db["corrections"])
            for name in ("pinned", "pending"):
                self._forget(txn, name, record["sequence"])
            txn.put(b"corrections", b"-%d" % self._next(txn), db=self._db["meta"])
            taken.append(record)

        self._write(write)
        return taken[0]

    def _forget(self, txn: Any, name: str, sequence: int) -> None:
        for key, value in list(txn.cursor(self._db[name])):
            record = json.loads(value) if value else self._get(txn, "signals", key)
            if record is not None and record.get("sequence") == sequence:
                txn.delete(key, db=self._db[name])

    # examples

    def add(self, where: str, rows: Iterable[tuple[str, Signal]]) -> None:
        """Labelled calls for `replay` or `held`. A sample of the distinct texts is kept, the same from every order."""

        def write(txn: Any) -> None:
            for text, given in rows:
                self._add(txn, where, text, given)

        self._write(write)

    def examples(self, where: str) -> list[LabelledText]:
        """`replay`, `held` or `pinned`."""
        with self.env.begin() as txn:
            return self._examples(txn, where)

    def _add(self, txn: Any, where: str, text: str, given: Signal) -> None:
        name = f"{where}_{given.outcome}"
        self._put(txn, name, _hash(text), {"text": text, **given._asdict()})
        # Keys are hashes: dropping the last is dropping a random one.
        while txn.stat(self._db[name])["entries"] > MOST_EXAMPLES[where]:
            cursor = txn.cursor(self._db[name])
            cursor.last()
            cursor.delete()

    def _examples(self, txn: Any, where: str) -> list[LabelledText]:
        """`replay`, `held`, `pinned`, or one class of the first two: `held_allow`."""
        names = [name for name in EXAMPLES if name == where or name.startswith(f"{where}_")]
        rows = [row for name in names for row in txn.cursor(self._db[name])]
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
                self._judge(txn, b"held-%d" % i, self._next(txn), allow, agreed)

        self._write(write)

    def trust(self) -> Trust:
        """Whether the model may loosen decisions."""
        with self.env.begin() as txn:
            since = int(txn.get(b"trust_since", b"0", db=self._db["meta"]))
            entries = sorted(json.loads(value) for _, value in txn.cursor(self._db["judged"]))
        return trust([PersonsWord(bool(allow), bool(agreed)) for number, allow, agreed in entries if number > since])

    def reset_trust(self) -> None:
        """Judgements so far were of a lineage that serves no more."""
        self._write(lambda txn: txn.put(b"trust_since", b"%d" % self._next(txn), db=self._db["meta"]) and None)

    def errors(self, newest: int = 2000) -> list[float]:
        """1 for each judged decision in which the model was wrong, 0 otherwise; oldest first."""
        with self.env.begin() as txn:
            entries = sorted(json.loads(value) for _, value in txn.cursor(self._db["judged"]))
        return [float(not agreed) for _, _, agreed in entries[-newest:]]

    def _judged(self, txn: Any) -> Judged:
        return Judged(**(self._get(txn, "meta", b"judged") or {}))

    def _judge(self, txn: Any, key: bytes, number: int, allow: bool, agreed: bool) -> None:
        """One decision counts once, by what was said last."""
        judged = self._judged(txn)
        before = txn.get(key, db=self._db["judged"])
        if before is not None:
            _, was_allow, was_agreed = json.loads(before)
            judged = judged.add(bool(was_allow), bool(was_agreed), -1)
        txn.put(key, json.dumps([number, int(allow), int(agreed)]).encode(), db=self._db["judged"])
        self._put(txn, "meta", b"judged", judged.add(allow, agreed)._asdict())

    # all

    def counts(self) -> dict[str, int]:
        with self.env.begin() as txn:
            return {name: txn.stat(self._db[name])["entries"] for name in DATABASES if name != "meta"}

    def used(self) -> float:
        """The share of the map that is in use."""
        with self.env.begin() as txn:
            return self._used(txn)

    def _used(self, txn: Any) -> float:
        stats = [txn.stat(db) for db in self._db.values()]
        pages = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
        return pages * stats[0]["psize"] / self.env.info()["map_size"]

    def _write(self, change: Callable[[Any], None]) -> None:
        """`change` in one transaction, after making room if there is little."""
        from lmdb import MapFullError

        try:
            while True:
                try:
                    with self.env.begin(write=True) as txn:
                        self._make_room(txn)
                        change(txn)
                    return
                except MapFullError:  # freed pages may lie scattered: half of what may go goes, until it fits
                    if not self._halve():
                        raise
        except MapFullError:
            raise ValueError(
                f"the store {self.folder.parent} is full: {self.mebibytes} MiB of mistakes and of signals that were not"
                " learned yet; run `gradproof gate learn`, or make it larger with `gradproof gate init --size`"
            ) from None

    def _make_room(self, txn: Any) -> None:
        self._evict(txn, "decisions", MOST_DECISIONS, self._unremarked)
        self._evict(txn, "signals", MOST_SIGNALS, lambda key, _: txn.get(key, db=self._db["pending"]) is None)
        self._evict(txn, "judged", MOST_JUDGED, lambda key, value: True)
        if self._used(txn) > FULL:
            most = int(txn.stat(self._db["decisions"])["entries"] * ROOM / FULL)
            self._evict(txn, "decisions", most, self._unremarked)

    def _halve(self) -> bool:
        """Drops half of the decisions, unremarked ones first: signals have a copy of what they are about. False where
        none is left."""
        with self.env.begin(write=True) as txn:
            before = txn.stat(self._db["decisions"])["entries"]
            self._evict(txn, "decisions", before // 2, self._unremarked)
            self._evict(txn, "decisions", before // 2, lambda key, value: True)
        return before > 0

    def _evict(self, txn: Any, name: str, most: int, may_go: Callable[[bytes, bytes], bool]) -> None:
        """The oldest that may go, a few percent more than needed so that it is not done with every write."""
        excess = txn.stat(self._db[name])["entries"] - most
        if excess <= 0:
            return
        excess += most // 50
        cursor = txn.cursor(self._db[name])
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

    def _put(self, txn: Any, name: str, key: bytes, record: dict[str, Any]) -> None:
        """Redacts once more, whoever wrote the record; what a decision has withheld already is not much."""
        redacted = safe(record, Redactor(self.key, most=inf))
        txn.put(key, json.dumps(redacted, ensure_ascii=False).encode(), db=self._db[name])

    def _get(self, txn: Any, name: str, key: bytes) -> dict[str, Any] | None:
        stored = txn.get(key, db=self._db[name])
        return None if stored is None else json.loads(stored)

    def _backwards(self, txn: Any, name: str, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """From the newest, or from the newest before `end`."""
        cursor = txn.cursor(self._db[name])
        alive = cursor.last() if end is None or not cursor.set_range(end) else cursor.prev()
        while alive:
            yield cursor.item()
            alive = cursor.prev()


def open_environment(folder: Path, mebibytes: int, databases: int) -> Any:
    """An LMDB environment whose every commit is synced; readers that died are cleared away."""
    lmdb = library()
    try:
        env = lmdb.open(str(folder), map_size=mebibytes << 20, max_dbs=databases, max_readers=512, mode=PRIVATE)
        env.reader_check()
    except lmdb.Error as error:
        raise ValueError(f"the store {folder.parent} cannot be opened: {error}") from None
    return env


def library() -> Any:
    """lmdb, or one sentence where it is missing."""
    try:
        import lmdb
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    return lmdb


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
