"""Waiting questions, and calls that are allowed once.

A decision *ask* is a question that waits for a person until it expires. Its answer is a signal like any other. *Once*
means: the next call of the same actor that is the very same passes, and only that one; otherwise what was said is a
correction, and holds. The report that a call ran answers nothing: it is what an agent says.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple

from gradproof.gate.corrections import Correction
from gradproof.gate.database import Database, NotThere, Outdated, time_of

WAITING, ALLOWED, BLOCKED, EXPIRED = "waiting", "allowed", "blocked", "expired"
STATES = (WAITING, ALLOWED, BLOCKED, EXPIRED)
MOST_ASKS = 2000  # that are kept, answered or not
MOST_GRANTS = 1000


class Ask(NamedTuple):
    """A question; `id` is that of its decision. `times`: how often the same actor has asked the same."""

    id: str
    digest: str
    actor: str
    expires: float
    state: str = WAITING
    once: bool = False
    by: str = ""  # who answered
    times: int = 1

    def at(self, now: float) -> Ask:
        """As it is at a time."""
        return self._replace(state=EXPIRED) if self.state == WAITING and now >= self.expires else self

    def plain(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("id", "state", "expires", "times", "actor")}
        return told | ({"once": self.once, "by": self.by} if self.state in (ALLOWED, BLOCKED) else {})


class Asks:
    """In the databases `asks` and `grants` of a journal."""

    def __init__(self, database: Database):
        self.database = database

    def note(self, txn: Any, decision: dict[str, Any], seconds: float) -> None:
        """A decision that asks waits from now on."""
        id = decision["id"]
        ask = Ask(id, decision["digest"], decision.get("actor", ""), time_of(id) + seconds)
        self._put(txn, ask)
        while txn.stat(self.database.db["asks"])["entries"] > MOST_ASKS:
            _drop_first(txn, self.database.db["asks"])
        self._changed(txn)

    def all(self, now: float) -> list[Ask]:
        """The newest of each call and actor, newest first; those that wait for the same are one."""
        with self.database.env.begin() as txn:
            newest_first = [Ask(**json.loads(value)).at(now) for _, value in self.database.backwards(txn, "asks")]
        shown: dict[tuple[str, str, str], Ask] = {}
        for ask in newest_first:
            same = (ask.actor, ask.digest, ask.id if ask.state != WAITING else "")
            shown[same] = shown[same]._replace(times=shown[same].times + 1) if same in shown else ask
        return list(shown.values())

    def get(self, id: str, now: float) -> Ask | None:
        with self.database.env.begin() as txn:
            record = self.database.get(txn, "asks", _key(id))
        return None if record is None else Ask(**record).at(now)

    def stamp(self) -> int:
        """Changes with every question and answer."""
        with self.database.env.begin() as txn:
            return int(txn.get(b"asks", b"0", db=self.database.db["meta"]))

    def answer(self, txn: Any, id: str, allow: bool, once: bool, by: str, now: float) -> None:
        """Answers a question, and those that wait for the same; ValueError where none waits."""
        record = self.database.get(txn, "asks", _key(id))
        ask = None if record is None else Ask(**record).at(now)
        if ask is None:
            raise NotThere(f"there is no question {id[:40]!r}")
        if ask.state != WAITING:
            how = (
                f"was already answered by {ask.by}"
                if ask.state != EXPIRED
                else "has expired; give feedback on the decision"
            )
            raise Outdated(f"the question {id} {how}")
        answered = dict(state=ALLOWED if allow else BLOCKED, once=once, by=by)
        for _, value in list(self.database.backwards(txn, "asks")):
            other = Ask(**json.loads(value)).at(now)
            if (other.state, other.actor, other.digest) == (WAITING, ask.actor, ask.digest):
                self._put(txn, other._replace(**answered))
        self._changed(txn)

    def settle(self, txn: Any, id: str, allow: bool, once: bool, by: str, now: float) -> None:
        """What was said of a decision also answers its question, where it waits."""
        record = self.database.get(txn, "asks", _key(id))
        if record is not None and Ask(**record).at(now).state == WAITING:
            self.answer(txn, id, allow, once, by, now)

    # calls that are allowed once

    def grant(self, txn: Any, decision: dict[str, Any], number: int, by: str, expires: float) -> None:
        """The next call that is the same passes."""
        record = {"decision": decision["id"], "sequence": number, "by": by, "expires": expires}
        key = _grant_key(decision.get("actor", ""), decision["digest"])
        txn.put(key, json.dumps(record).encode(), db=self.database.db["grants"])
        while txn.stat(self.database.db["grants"])["entries"] > MOST_GRANTS:
            _drop_first(txn, self.database.db["grants"])

    def take_back(self, txn: Any, decision: dict[str, Any]) -> None:
        """Somebody has blocked the call since: what allowed it once does not any more."""
        txn.delete(_grant_key(decision.get("actor", ""), decision["digest"]), db=self.database.db["grants"])

    def granted(self, actor: str, digest: str, now: float) -> Correction | None:
        """What allows this call once."""
        with self.database.env.begin() as txn:
            stored = txn.get(_grant_key(actor, digest), db=self.database.db["grants"])
        if stored is None:
            return None
        record = json.loads(stored)
        if now >= record["expires"]:
            return None
        named = (record["decision"], record["decision"], record["sequence"], True, digest, ())
        return Correction(*named, kind="override_allow", actor=record["by"], once=True)

    def use(self, actor: str, granted: Correction) -> bool:
        """Uses it up; False where another call has done so already."""
        used = []

        def write(txn: Any) -> None:
            key = _grant_key(actor, granted.digest)
            stored = txn.get(key, db=self.database.db["grants"])
            if stored is not None and json.loads(stored)["sequence"] == granted.sequence:
                used.append(txn.delete(key, db=self.database.db["grants"]))

        self.database.write(write)
        return bool(used)

    def _put(self, txn: Any, ask: Ask) -> None:
        self.database.put(txn, "asks", _key(ask.id), ask._asdict())

    def _changed(self, txn: Any) -> None:
        before = int(txn.get(b"asks", b"0", db=self.database.db["meta"]))
        txn.put(b"asks", b"%d" % (before + 1), db=self.database.db["meta"])


def _key(id: str) -> bytes:
    return id.encode("utf-8", "replace")[:64] or b"-"


def _grant_key(actor: str, digest: str) -> bytes:
    return blake2b(f"{actor}\n{digest}".encode(), digest_size=16).digest()


def _drop_first(txn: Any, database: Any) -> None:
    cursor = txn.cursor(database)
    if cursor.first():
        cursor.delete()
