"""The doorkeeper: decides whether a call may pass. Only what the gate allows passes.

A person's answer makes no call pass by itself: it is said to the gate, and the gate decides again. So one who allows a
call once allows one call, and what cannot be recorded allows nothing. Without a decision the call is refused.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import anyio
from anyio import to_thread

from gradproof.gate.mcp_proxy.asking import (
    QUESTION,
    ClientOffer,
    Mode,
    Said,
    form,
    input_required,
    one_line,
    question,
    said,
    url,
)

STATE = "gradproof:"  # how the states of our own questions begin
MOST_WAITING = 1000  # questions and continued calls that are remembered
MOST_PAST, MOST_PAST_SIZE = 3, 64 * 1024  # earlier calls that the gate is told of, and characters of each
ROUNDS = 4  # questions to one call: several calls that are the same may each use up the answer to another
POLL = 1.0  # seconds between looks at a question on the console

AskClient = Callable[[Mapping[str, Any]], Awaitable[Any]]


class UndecidedError(Exception):
    """The gate has not answered; the message is a sentence that says why."""


class DecidingGate(Protocol):
    """The gate, as far as the proxy needs it. Each raises UndecidedError where there is no answer."""

    def decide(self, call: Mapping[str, Any]) -> Mapping[str, Any]: ...
    def state(self, id: str) -> str: ...
    def ran(self, id: str) -> None: ...
    def may_answer(self) -> bool: ...
    def answer(self, id: str, allow: bool, always: bool, who: str) -> None: ...
    def changed(self, server: str, tool: str, parts: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class ProxiedClient:
    """Who calls, who is at the client, and how long a question waits."""

    server: str
    cwd: str
    session: str
    actor: str
    person: str
    wait: float = 120.0


class AskedTool(NamedTuple):
    """A tool as the gate is told of it."""

    name: str
    qualified: str
    annotations: Mapping[str, Any]
    schema: Mapping[str, Any] | None


class Passed(NamedTuple):
    """The call may run: `params` as they go to the server, the decision's id."""

    params: Mapping[str, Any]
    id: str


class TurnedAway(NamedTuple):
    """The call does not run; `why` is for the agent."""

    why: str


class AskedBack(NamedTuple):
    """The client has to ask, and to call again: the result that says so."""

    result: Mapping[str, Any]


Passage = Passed | TurnedAway | AskedBack


class PendingCall(NamedTuple):
    """A call that waits for its client to ask and to call again."""

    id: str
    params: Mapping[str, Any]
    mode: Mode
    expires: float


class Doorkeeper:
    """Decides the calls of one client, several at a time."""

    def __init__(self, gate: DecidingGate, visitor: ProxiedClient):
        self.gate, self.visitor = gate, visitor
        self._pending: dict[str, PendingCall] = {}
        self._continued: dict[str, tuple[str, str]] = {}  # by the server's state: the call, and its decision
        self._past: list[Mapping[str, Any]] = []

    async def admit(
        self, params: Mapping[str, Any], tool: AskedTool, offer: ClientOffer, ask: AskClient, person: str
    ) -> Passage:
        """`params` are those of the call, `ask` puts a question to the client, `person` is who answers there."""
        deadline = anyio.current_time() + self.visitor.wait
        state = params.get("requestState")
        try:
            if isinstance(state, str) and state.startswith(STATE):
                return await self._called_again(params, tool, offer, person, deadline)
            if isinstance(state, str) and state in self._continued:
                call, id = self._continued[state]
                if call == _identity(params):
                    del self._continued[state]  # the server has asked back in the middle of a call that passed
                    return Passed(params, id)
            return await self._decided(params, tool, offer, ask, person, deadline)
        except UndecidedError as error:
            return TurnedAway(f"The gate could not decide on this call, so it did not run: {one_line(str(error), 300)}")

    def continued(self, params: Mapping[str, Any], result: Any, id: str) -> None:
        """A call that passed was answered by a question of the server: with its state, the same call passes again."""
        state = result.get("requestState") if isinstance(result, Mapping) else None
        if isinstance(state, str):
            _remember(self._continued, state, (_identity(params), id))

    async def ran(self, id: str) -> None:
        """Tells the gate that a call ran; nobody waits for it."""
        with suppress(UndecidedError):
            await to_thread.run_sync(self.gate.ran, id)

    async def changed(self, tool: str, parts: Sequence[str]) -> None:
        """Puts into the audit log that the server says something else of a tool than before."""
        with suppress(UndecidedError):
            await to_thread.run_sync(self.gate.changed, self.visitor.server, tool[:100], parts)

    async def _decided(
        self,
        params: Mapping[str, Any],
        tool: AskedTool,
        offer: ClientOffer,
        ask: AskClient,
        person: str,
        deadline: float,
    ) -> Passage:
        for _ in range(ROUNDS):
            decision = await self._decide(params, tool)
            if decision["decision"] == "allow":
                self._remember_call(params, tool)
                return Passed(params, str(decision["id"]))
            if decision["decision"] != "ask":
                return TurnedAway(_blocked(decision))
            mode = await self._mode(offer, decision)
            if offer.stateless and mode is not None:
                return self._asked_back(params, tool, offer, decision, mode, deadline)
            outcome = await self._answered(params, tool, offer, ask, person, decision, mode, deadline)
            if outcome != "allowed":
                return TurnedAway(_unanswered(outcome, decision, self.visitor.wait))
        return TurnedAway("Other calls that are the same have used up the answers to this one, so it did not run.")

    async def _decide(self, params: Mapping[str, Any], tool: AskedTool) -> Mapping[str, Any]:
        visitor = self.visitor
        call = {"tool": tool.qualified, "arguments": params.get("arguments") or {}, "cwd": visitor.cwd}
        call |= {"session": visitor.session, "actor": visitor.actor, "annotations": dict(tool.annotations)}
        call |= {"history": list(self._past)} if self._past else {}
        call |= {"schema": tool.schema} if tool.schema is not None else {}
        decision = await to_thread.run_sync(self.gate.decide, call, abandon_on_cancel=True)
        if not isinstance(decision, Mapping) or not isinstance(decision.get("id"), str) or "decision" not in decision:
            raise UndecidedError("the gate's answer is not a decision")
        return decision

    async def _mode(self, offer: ClientOffer, decision: Mapping[str, Any]) -> Mode | None:
        """How the client can ask: by a form where its answer can be recorded, by a page where there is one."""
        if "form" in offer.modes and await to_thread.run_sync(self.gate.may_answer):
            return "form"
        return "url" if "url" in offer.modes and isinstance(decision.get("answer_at"), str) else None

    def _question(
        self, params: Mapping[str, Any], tool: AskedTool, offer: ClientOffer, decision: Mapping[str, Any], mode: Mode
    ) -> dict[str, Any]:
        reason = str(decision.get("reason", ""))
        message = question(self.visitor.server, tool.name, params.get("arguments") or {}, reason)
        if mode == "form":
            return form(message, offer.version)
        return url(message, offer.version, str(decision["answer_at"]), secrets.token_hex(16))

    # a client that is asked by a request

    async def _answered(
        self,
        params: Mapping[str, Any],
        tool: AskedTool,
        offer: ClientOffer,
        ask: AskClient,
        person: str,
        decision: Mapping[str, Any],
        mode: Mode | None,
        deadline: float,
    ) -> str:
        """What was said at the client or on the console, whoever was first: allowed, blocked, expired, dismissed; or
        late."""
        outcome = "late"

        async def at_client(put: Mapping[str, Any], mode: Mode) -> None:
            nonlocal outcome
            answer = await ask(put)
            if answer is None:
                return  # the client cannot ask after all
            chosen = await self._record(decision["id"], said(answer, mode), mode, person)
            if chosen != "opened":
                outcome = chosen
                group.cancel_scope.cancel()

        async def on_console() -> None:
            nonlocal outcome
            outcome = await self._on_console(decision["id"])
            group.cancel_scope.cancel()

        with anyio.move_on_at(deadline):
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(on_console)
                    if mode is not None:
                        group.start_soon(at_client, self._question(params, tool, offer, decision, mode), mode)
            except* UndecidedError as errors:
                raise inmost(errors) from None
        return outcome

    async def _on_console(self, id: str) -> str:
        """The state of a question once it no longer waits. A daemon that is away for a moment may come back."""
        while True:
            with suppress(UndecidedError):
                state = await to_thread.run_sync(self.gate.state, id, abandon_on_cancel=True)
                if state != "waiting":
                    return state
            await anyio.sleep(POLL)

    async def _record(self, id: str, what: Said, mode: Mode, person: str) -> str:
        """Says a person's answer to the gate; the outcome."""
        if what == "opened":
            return "opened"
        if what == "nothing" or mode == "url":  # who does not open the page has answered nothing
            return "dismissed"
        allow, always = what in ("once", "always"), what == "always"
        with anyio.CancelScope(shield=True):  # what was said is recorded, whatever the client does meanwhile
            try:
                await to_thread.run_sync(self.gate.answer, id, allow, always, person)
            except UndecidedError:
                state = await to_thread.run_sync(self.gate.state, id)
                if state == "waiting":
                    raise
                return state  # somebody else was faster
        return "allowed" if allow else "blocked"

    # a client that is asked by the answer to its call

    def _asked_back(
        self,
        params: Mapping[str, Any],
        tool: AskedTool,
        offer: ClientOffer,
        decision: Mapping[str, Any],
        mode: Mode,
        deadline: float,
    ) -> AskedBack:
        state = STATE + secrets.token_hex(16)
        _remember(self._pending, state, PendingCall(decision["id"], params, mode, deadline))
        return AskedBack(input_required(self._question(params, tool, offer, decision, mode), state))

    async def _called_again(
        self, params: Mapping[str, Any], tool: AskedTool, offer: ClientOffer, person: str, deadline: float
    ) -> Passage:
        """The second call, with the answer: it must be the same call, and its state is good for one."""
        pending = self._pending.pop(params["requestState"], None)
        if pending is None or anyio.current_time() > pending.expires:
            return TurnedAway("The question about this call is no longer open, so it did not run. Make the call again.")
        if _identity(params) != _identity(pending.params):
            return TurnedAway("The call is not the one that was asked about, so it did not run.")
        responses = params.get("inputResponses")
        answer = responses.get(QUESTION) if isinstance(responses, Mapping) else None
        outcome = await self._record(pending.id, said(answer, pending.mode), pending.mode, person)
        if outcome == "opened":
            outcome = "late"
            with anyio.move_on_at(deadline):
                outcome = await self._on_console(pending.id)
        if outcome != "allowed":
            return TurnedAway(_unanswered(outcome, {"id": pending.id}, self.visitor.wait))
        own = ("inputResponses", "requestState")  # the server has asked nothing; or what it asked is in the first call
        again = {name: value for name, value in params.items() if name not in own}
        again |= {name: pending.params[name] for name in own if name in pending.params}
        return await self._decided(again, tool, offer, _nobody, person, deadline)

    def _remember_call(self, params: Mapping[str, Any], tool: AskedTool) -> None:
        past = {"tool": tool.qualified, "arguments": params.get("arguments") or {}}
        if len(json.dumps(past)) <= MOST_PAST_SIZE:
            self._past = [*self._past, past][-MOST_PAST:]


async def _nobody(_: Mapping[str, Any]) -> None:
    return None


def _identity(params: Mapping[str, Any]) -> str:
    """The same for the same tool and arguments alone; 1, 1.0 and true differ."""
    return json.dumps([params.get("name"), params.get("arguments") or {}], sort_keys=True)


def _remember(table: dict[str, Any], name: str, value: Any) -> None:
    table[name] = value
    while len(table) > MOST_WAITING:
        del table[next(iter(table))]


def inmost(error: BaseException) -> BaseException:
    """What went wrong first, of a group of errors that a task group has made."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _blocked(decision: Mapping[str, Any]) -> str:
    reason = one_line(str(decision.get("reason", "")), 600)
    return f"Blocked by the gate: {reason}. The call did not run. Decision {decision['id']}."


def _unanswered(outcome: str, decision: Mapping[str, Any], wait: float) -> str:
    """Why a call that was asked about did not run."""
    reason = one_line(str(decision.get("reason", "")), 600)
    because = f" The gate asks because: {reason}." if reason else ""
    named = f" Decision {decision['id']}."
    if outcome == "blocked":
        return f"A person has refused this call, so it did not run.{because}{named}"
    if outcome == "dismissed":
        return f"The question about this call was dismissed, so it did not run.{because}{named}"
    if outcome == "expired":
        return f"The question about this call has expired, so it did not run.{because}{named}"
    where = decision.get("answer_at")
    at = f" at {where}" if isinstance(where, str) else " on the gate's console"
    return (
        f"Nobody answered within {wait:g} s whether this call may run, so it did not run.{because} A person can"
        f" answer{at}; then make the same call again.{named}"
    )
