"""The gate behind the daemon's socket, and the two ways in which a person's answer reaches it.

On the socket everybody is an agent, and an agent judges nothing. So an answer that was given at the client is said by a
reviewer's token to the daemon's address, or, where the store belongs to this user, to the store itself.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gradproof.gate.client import GateClient
from gradproof.gate.exchange import NoAnswer
from gradproof.gate.mcp_proxy.doorkeeper import UndecidedError

if TYPE_CHECKING:
    from gradproof.gate.store import Store

WARM, COLD = 5.0, 30.0  # seconds for a decision: no client gives up on a call as early as on a hook
SAYING = 10.0  # seconds for an answer to be recorded


class ServedGate:
    """The gate of a store. `token` is a reviewer's, `session` is told with what is said."""

    def __init__(self, store: Path, token: str = "", session: str = ""):
        self.store, self.token, self.session = store, token, session
        self.client = GateClient(str(store), WARM, COLD)
        self._address = ""
        self._one_at_a_time = threading.Lock()  # a process opens a store once

    def decide(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            decision = self.client.decide(dict(call))
        except NoAnswer as error:
            raise UndecidedError(str(error)) from None
        self._address = str(decision.get("answer_at") or self._address)
        return decision

    def state(self, id: str) -> str:
        try:
            return str(self.client.wait(id, 0).get("state"))
        except NoAnswer as error:
            raise UndecidedError(str(error)) from None

    def ran(self, id: str) -> None:
        try:
            self.client.ran({"id": id})
        except NoAnswer as error:
            raise UndecidedError(str(error)) from None

    def may_answer(self) -> bool:
        """Whether an answer given at the client could be recorded."""
        return bool(self.token and self._address) or self._is_ours()

    def answer(self, id: str, allow: bool, always: bool, who: str) -> None:
        if self.token and self._address:
            self._by_token(id, allow, always)
        else:
            self._in_store(id, allow, always, who)

    def _by_token(self, id: str, allow: bool, always: bool) -> None:
        """By the daemon; the signal carries the token's name."""
        address = urlsplit(self._address)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=SAYING)
        answer = {"answer": "allow" if allow else "block", "for": "always" if always else "once"}
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request("POST", f"/v1/asks/{id}", json.dumps(answer).encode(), headers)
            response = connection.getresponse()
            said = response.read(65_536).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise UndecidedError(f"the answer could not be said to the gate: {error}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise UndecidedError(f"the gate did not take the answer: {said[:300]}")

    def _in_store(self, id: str, allow: bool, always: bool, who: str) -> None:
        from gradproof.gate import changes
        from gradproof.gate.remarks import Giver

        try:
            with self._opened() as store:
                changes.answer(store, id, allow, Giver(who, "person", self.session), once=not always)
        except (OSError, ValueError) as error:
            raise UndecidedError(f"the answer could not be recorded: {error}") from None

    def changed(self, server: str, tool: str, parts: Sequence[str]) -> None:
        """A line of the audit log, where the store is this user's."""
        from gradproof.gate.corrections import safe

        if not self._is_ours():
            return
        try:
            with self._opened() as store:
                told = safe({"server": server, "tool": tool, "parts": list(parts)}, store.key)
                store.audit.append("mcp_tool_changed", sync=True, session=self.session, **told)
        except (OSError, ValueError) as error:
            raise UndecidedError(f"the audit log cannot be written: {error}") from None

    def _is_ours(self) -> bool:
        return os.access(self.store / "journal" / "data.mdb", os.R_OK | os.W_OK)

    @contextmanager
    def _opened(self) -> Iterator[Store]:
        from gradproof.gate.store import Store

        with self._one_at_a_time:
            store = Store(self.store)
            try:
                yield store
            finally:
                store.close()
