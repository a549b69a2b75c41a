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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.secrets import redact
from gradproof.gate.signals import ECHO, MISTAKES, Correction, Signal, signal

SCHEMA = 1
FULL, ROOM = 0.8, 0.7  # of the map: beyond the first, the oldest go until the second
MOST_DECISIONS, MOST_SIGNALS, MOST_JUDGED = 100_000, 50_000, 100_000
MOST_EXAMPLES = {"replay": 20_000, "held": 1000}  # of each class
HELD_SHARE = 4  # one in so many overrides is held back
COMMITS = 1.0  # seconds that a decision just answered may take until it can be remarked
EXAMPLES = ("replay_allow", "replay_block", "held_allow", "held_block", "pinned")
DATABASES = ("meta", "decisions", "signals", "pending", "judged", *EXAMPLES)


class LabelledText(NamedTuple):
    """What the learner reads: the text of a call, the signal about it. `key` orders and names it."""

    key: bytes
    text: str
    signal: Signal

    @property
    def target(self) -> float:
        return self.signal.target


class Judged(NamedTuple):
    """How often the model agreed with a person or a rule, by what they said."""

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
        """≥ 0.95 over ≥ 1000 with ≥ 50 of each class."""
        return self.alignment >= 0.95 and self.count >= 1000 and min(self.allow, self.block) >= 50

    def add(self, allow: bool, agreed: bool, by: int = 1) -> Judged:
        if allow:
            return self._replace(allow=self.allow + by, allow_agreed=self.allow_agreed + by * agreed)
        return self._replace(block=self.block + by, block_agreed=self.block_agreed + by * agreed)


def new_id(now: float) -> str:
    """Ordered by time, and no two the same."""
    return f"{int(now * 1000):012x}{os.urandom(4).hex()}"


class Journal:
    """Of `mebibytes` at most. `rivals` finds those of other texts that a correction of one text would reach."""

    def __init__(
        self,
        folder: Path,
        mebibytes: int,
        clock: Callable[[], float],
        rivals: Callable[[str, Iterable[str]], tuple[str, ...]],
    ):
        self.folder, self.clock, self.mebibytes, self.rivals = folder, clock, mebibytes, rivals
        self.env = open_environment(folder, mebibytes, len(DATABASES))
        self._db = {name: self.env.open_db(name.encode()) for name in DATABASES}

    # decisions

    def record(self, decisions: Sequence[dict[str, Any]]) -> None:
        """Writes decisions: id, text, decision, model (its own probability), lean, rule, version, …"""

        def write(txn: Any) -> None:
            for decision in decisions:
                self._put(txn, "decisions", decision["id"].encode(), decision)
                if decision.get("rule"):
                    allow = decision["decision"] == "allow"
                    self._judge(txn, decision["id"].encode(), allow, allow == decision["lean"])

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
                if not (unremarked and (decision.get("remarked") or decision["rule"])):
                    chosen.append(decision)
                if len(chosen) == newest:
                    break
        return chosen[::-1]

    # signals

    def remark(self, id: str, kind: str) -> Signal:
        """A person's word on a decision. When this returns, it is on the disk."""
        signal(kind)
        decision = self.decision(id)
        if kind in ECHO and decision["decision"] != kind:
            raise ValueError(
                f"{kind!r} is the gate's own decision, but {id} was {decision['decision']!r}; to change it say"
                f" override_{kind}, or false_{'block' if kind == 'allow' else 'allow'} where it was a mistake"
            )
        others = self._rivals(decision["text"], signal(kind).outcome) if kind in MISTAKES else ()
        given: list[Signal] = []

        def write(txn: Any) -> None:
            given[:] = [self._remark(txn, decision, kind, others)]

        self._write(write)
        return given[0]

    def _remark(self, txn: Any, decision: dict[str, Any], kind: str, others: tuple[str, ...]) -> Signal:
        text, key = decision["text"], new_id(self.clock()).encode()
        again = b"said:" + _hash(f"{kind}\n{text}")
        said_before = int(txn.get(again, b"0", db=self._db["meta"]))
        txn.put(again, str(said_before + 1).encode(), db=self._db["meta"])
        given = signal(kind, said_before)
        self._put(txn, "signals", key, {"decision": decision["id"], "text": text, **given._asdict()})
        if kind not in ECHO:
            self._put(txn, "decisions", decision["id"].encode(), {**decision, "remarked": kind})
            txn.put(key, b"", db=self._db["pending"])
            allow = given.outcome == "allow"
            self._judge(txn, decision["id"].encode(), allow, allow == decision["lean"])
        if kind in MISTAKES:
            pinned = {"decision": decision["id"], "text": text, "rivals": others, **given._asdict()}
            self._put(txn, "pinned", _hash(text), pinned)
            txn.put(b"corrections", key, db=self._db["meta"])
        return given

    def _rivals(self, text: str, outcome: str) -> tuple[str, ...]:
        """What people labelled the other way, near this text."""
        other = "block" if outcome == "allow" else "allow"
        with self.env.begin() as txn:
            labelled = self._examples(txn, f"held_{other}") + self._examples(txn, f"replay_{other}")
            labelled += [example for example in self._examples(txn, "pinned") if example.signal.outcome == other]
        return self.rivals(text, (example.text for example in labelled))

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
                    waiting.append(_example(key, record))
                if len(waiting) == most:
                    break
        return waiting

    def said(self, after: bytes = b"") -> list[LabelledText]:
        """What people said since a key, learned or not, oldest first."""
        newest_first: list[LabelledText] = []
        with self.env.begin() as txn:
            for key, value in self._backwards(txn, "signals", None):
                if bytes(key) <= after:
                    break
                newest_first.append(_example(bytes(key), json.loads(value)))
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
        with self.env.begin() as txn:
            pinned = [json.loads(value) for _, value in txn.cursor(self._db["pinned"])]
        return [
            Correction(record["decision"], record["text"], record["label"] > 0.5, tuple(record["rivals"]))
            for record in pinned
        ]

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
        """Over all decisions that a person or a rule judged, and the held-back calls that came with a label."""
        with self.env.begin() as txn:
            return self._judged(txn)

    def judge_held(self, judged: Judged) -> None:
        """How the first model did on labelled calls that it never learned from."""
        self._write(lambda txn: self._put(txn, "meta", b"judged", judged._asdict()))

    def errors(self, newest: int = 2000) -> list[float]:
        """1 for each judged decision in which the model was wrong, 0 otherwise; oldest first."""
        wrong = []
        with self.env.begin() as txn:
            for _, value in self._backwards(txn, "judged", None):
                wrong.append(float(value[1:2] == b"0"))
                if len(wrong) == newest:
                    break
        return wrong[::-1]

    def _judged(self, txn: Any) -> Judged:
        return Judged(**(self._get(txn, "meta", b"judged") or {}))

    def _judge(self, txn: Any, key: bytes, allow: bool, agreed: bool) -> None:
        """One decision counts once, by what was said last."""
        judged = self._judged(txn)
        before = txn.get(key, db=self._db["judged"])
        if before is not None:
            judged = judged.add(before[:1] == b"1", before[1:2] == b"1", -1)
        txn.put(key, b"%d%d" % (allow, agreed), db=self._db["judged"])
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
        txn.put(
            key,
            json.dumps({field: _safe(value) for field, value in record.items()}, ensure_ascii=False).encode(),
            db=self._db[name],
        )

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
        env = lmdb.open(str(folder), map_size=mebibytes << 20, max_dbs=databases, max_readers=512)
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


def _safe(value: Any) -> Any:
    """Without secrets."""
    return redact(value) if isinstance(value, str) else [*map(_safe, value)] if isinstance(value, tuple) else value


def _just_made(id: str, now: float) -> bool:
    try:
        return len(id) == 20 and abs(now - int(id[:12], 16) / 1000) < 5
    except ValueError:
        return False


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=12).digest()


def _example(key: bytes, record: dict[str, Any]) -> LabelledText:
    return LabelledText(key, record["text"], Signal(record["kind"], record["label"], record["weight"]))
