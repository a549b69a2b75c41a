"""A client of the gate's daemon on its unix socket. Imports only the standard library, and little of that: a hook is a
process of its own for every call of a tool.

    client = GateClient("/home/me/.local/state/gradproof/gates/default")
    client.decide({"tool": "Bash", "arguments": {"command": "make"}, "cwd": "/home/me/app"})["decision"]

Everything raises NoAnswer, with a sentence, where the gate has not answered by the deadline.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from gradproof.gate.exchange import SOCKET, NoAnswer, NobodyThere, connect, decoded, exchange, left
from gradproof.gate.launch import DaemonStart, being_started

WARM, COLD = 1.0, 5.0  # seconds: where a daemon listens, and where one has to be started
PAUSE = 0.02  # between two looks whether it listens
LONGEST_WAIT = 25.0  # for one question, by one request
BUSY = 429, 503
DECISIONS = "allow", "ask", "block"


class GateClient:
    """`warm` and `cold` are the seconds in which an answer must come, cold where a daemon has to be started; without
    `start`, none is. `socket` is where the daemon listens if not beside the store."""

    def __init__(self, store: str, warm: float = WARM, cold: float = COLD, start: bool = True, socket: str = ""):
        self.store, self.socket = os.path.abspath(store), os.path.abspath(socket) if socket else ""
        self.warm, self.cold, self.start = warm, cold, start
        self.folder, self.name = os.path.split(self.socket or os.path.join(f"{self.store}.socket", SOCKET))

    def decide(self, call: dict) -> dict:
        """What the gate decides of a call, in the shapes that `gate decide` reads."""
        answer = self.request("POST", "/v1/decide", call)
        if answer.get("decision") not in DECISIONS or not isinstance(answer.get("reason"), str):
            raise NoAnswer("the gate's answer contains no decision")
        return answer

    def ran(self, call: dict) -> None:
        """Notes that a call has run: `{"id"}` of its decision, or the same call again."""
        self.request("POST", "/v1/ran", call)

    def wait(self, id: str, seconds: float) -> dict:
        """The question of a decision, as soon as it is answered or has expired, and at the latest after so many
        seconds. A daemon that is started anew meanwhile goes on with it."""
        until = time.monotonic() + seconds
        while True:
            most = min(LONGEST_WAIT, max(0.0, until - time.monotonic()))
            ask = self.request("GET", f"/v1/asks/{id}?wait={most:.1f}", more=most)
            if ask.get("state") != "waiting" or time.monotonic() >= until:
                return ask

    def request(self, method: str, path: str, content: dict | None = None, more: float = 0.0) -> dict:
        """What the daemon answers, by the deadline, or so many seconds later."""
        begun = time.monotonic() + more
        body = b"" if content is None else _encoded(content)
        owner = _owner(self.store)
        try:
            return self._answered(
                method, path, body, owner, begun + (self.cold if being_started(self.store) else self.warm)
            )
        except NobodyThere as error:
            if not self.start:
                raise
            return self._started(method, path, body, owner, begun + self.cold, error)

    def _started(self, method: str, path: str, body: bytes, owner: int, until: float, before: NobodyThere) -> dict:
        """Starts a daemon, or waits for one that another process starts."""
        if owner != os.geteuid():
            raise NoAnswer(f"{before}, and only its owner can start one: gradproof gate serve --store {self.store}")
        starting = DaemonStart(self.store, self.socket)
        try:
            while True:
                starting.look()
                time.sleep(min(PAUSE, left(until)))
                with suppress(NobodyThere):
                    return self._answered(method, path, body, owner, until)
        except (OSError, ValueError) as error:
            raise NoAnswer(f"the gate's daemon cannot be started: {error}") from None
        finally:
            starting.close()

    def _answered(self, method: str, path: str, body: bytes, owner: int, until: float) -> dict:
        """The answer of a daemon that listens; one that is too busy is asked again."""
        while True:
            connection = connect(self.folder, self.name, owner, until)
            status, answer = exchange(connection, method, path, body, until)
            if status not in BUSY:
                break
            time.sleep(min(2 * PAUSE, left(until)))
        said = decoded(answer)
        if status != 200:
            raise NoAnswer(f"the gate rejected the call: {str(said.get('error', status))[:500]}")
        return said


def _encoded(content: dict) -> bytes:
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, TypeError, RecursionError) as error:
        raise NoAnswer(f"the call cannot be written as JSON: {error}") from None


def _owner(store: str) -> int:
    """Whose store it is: nobody else's answer counts."""
    try:
        return os.stat(store).st_uid
    except FileNotFoundError:
        raise NoAnswer(f"there is no gate in {store}; create it with: gradproof gate init --store {store}") from None
    except OSError as error:
        raise NoAnswer(f"the gate's store {store} cannot be accessed: {error.strerror}") from None
