"""The hook that agents run before and after every tool call: `gradproof-hook`, and `gradproof gate hook`.

Reads one event of Claude Code (PreToolUse, PostToolUse) or Gemini CLI (BeforeTool, AfterTool) on standard input, asks
the gate's daemon, and answers on standard output as that agent expects it.

    decision    Claude Code               Gemini CLI
    allow       nothing                   nothing               so the agent's own prompts stay
    ask         permissionDecision ask    decision deny         Gemini knows no ask: says how a person approves the call
    block       permissionDecision deny   decision deny
    none        permissionDecision ask    decision deny         fails closed

Exit code 2 blocks the call too, with what is said on standard error, and is what everything unforeseen ends with: with
any other one, and with none in time, agents run the call.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

from gradproof.gate.client import COLD, GateClient
from gradproof.gate.exchange import NoAnswer

USAGE = "gradproof-hook --store DIR [--socket PATH] [--format claude|gemini] [--auto-approve]"
BLOCKED = 2  # the exit code that blocks a call
CLAUDE, GEMINI = "claude", "gemini"
BEFORE = {"PreToolUse": CLAUDE, "BeforeTool": GEMINI}
AFTER = {"PostToolUse": CLAUDE, "PostToolUseFailure": CLAUDE, "AfterTool": GEMINI}
SENT = ("tool_name", "tool_input", "session_id", "cwd", "tool_use_id")  # agents may add others at any time
MOST_BYTES = 64 * 2**20  # of an event: one after a call holds the tool's whole answer
CHUNK = 2**20
MOST_REASON = 2000  # characters
READING = 5.0  # seconds until the event must be there
LIMIT = READING + COLD + 1.0  # seconds after which the hook ends whatever it is doing


class HookOptions:
    """`format` is empty where the event says it."""

    def __init__(self, store: str, format: str = "", auto_approve: bool = False, socket: str = ""):
        self.store, self.format, self.auto_approve, self.socket = store, format, auto_approve, socket


class Unanswerable(Exception):
    """There is no answer in the form of an agent: exit code 2 is."""


def respond(event: bytes, options: HookOptions, client: GateClient | None = None) -> bytes:
    """What is written on standard output; Unanswerable where only the exit code can say no."""
    format = options.format
    try:
        fields = parsed(event)
        name = fields.get("hook_event_name")
        name = name if isinstance(name, str) else ""
        named = BEFORE.get(name) or AFTER.get(name)
        if named is None:
            return _unknown(name, fields)
        if format and named != format:
            raise Unanswerable(f"the event {name} is not one of {format}; install the hook with --format {named}")
        format = named
        gate = client or GateClient(options.store, socket=options.socket)
        if name in AFTER:
            _note(gate, fields, format)
            return b""
        return _told(gate.decide(_call(fields, format)), format, options.auto_approve)
    except NoAnswer as error:
        if not format:
            raise Unanswerable(str(error)) from None
        return refusal(f"{error}; the call was not checked", format)


def parsed(event: bytes) -> dict:
    """The event; NoAnswer where it is not one that two readers read alike."""
    if not event.strip():
        raise NoAnswer("the agent's hook event is empty")
    if len(event) > MOST_BYTES:
        raise NoAnswer(f"the agent's hook event has more than {MOST_BYTES:,} bytes")
    try:
        fields = json.loads(event.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise NoAnswer("the agent's hook event is nested too deeply") from None
    except ValueError as error:  # wrong UTF-8, no JSON, a number of thousands of digits
        raise NoAnswer(f"the agent's hook event cannot be read: {str(error)[:200]}") from None
    if not isinstance(fields, dict):
        raise NoAnswer("the agent's hook event is not a JSON object")
    return fields


def _once(pairs: list[tuple[str, object]]) -> dict:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


def _unknown(name: str, fields: dict) -> bytes:
    """An event that is not known: one that brings a call is blocked, others have nothing to decide."""
    if "tool_name" in fields or "tool_input" in fields or not name:
        raise Unanswerable(f"the hook event {name[:80]!r} is not known, so the call is blocked")
    complain(f"nothing to decide for the event {name[:80]!r}")
    return b""


def _call(fields: dict, format: str) -> dict:
    """What the daemon needs of an event; NoAnswer where that is not a call."""
    if not isinstance(fields.get("tool_name"), str) or not isinstance(fields.get("tool_input"), dict):
        raise NoAnswer("the agent's hook event has no tool_name and tool_input")
    return {key: fields[key] for key in SENT if fields.get(key) is not None} | {"actor": format}


def _note(gate: GateClient, fields: dict, format: str) -> None:
    """The call ran: a daemon that does not listen is not started for that, and nothing is answered."""
    gate.start = False
    try:
        gate.ran(_call(fields, format))
    except NoAnswer as error:
        complain(f"could not record that the call ran: {error}")


def _told(answer: dict, format: str, auto_approve: bool) -> bytes:
    """A decision in the form of an agent."""
    decision, reason = answer["decision"], answer["reason"]
    if decision == "allow":
        return _written(format, "allow", reason) if auto_approve else b""
    if decision == "block":
        return _written(format, "deny", f"the gate blocks this call: {reason} (decision {answer.get('id', '')})")
    if format == CLAUDE:
        return _written(format, "ask", f"the gate asks: {reason} (decision {answer.get('id', '')})")
    return _written(format, "deny", f"a person must approve this call first: {reason}. {_how(answer)}")


def _how(answer: dict) -> str:
    """How a person approves a call that waits."""
    id = answer.get("id", "")
    console = f" on the gate's console at {answer['answer_at']}, or" if answer.get("answer_at") else ""
    return f"They can do so{console} with: gradproof gate feedback {id} override_allow. After that, try it again"


def refusal(why: str, format: str) -> bytes:
    """What is answered where there is no decision: it fails closed."""
    return _written(format, "ask" if format == CLAUDE else "deny", f"the gate could not decide: {why}")


def _written(format: str, decision: str, reason: str) -> bytes:
    said = f"gradproof: {reason}"[:MOST_REASON]
    if format == CLAUDE:
        named = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": said}
        return json.dumps({"hookSpecificOutput": named}).encode("ascii") + b"\n"
    return json.dumps({"decision": decision, "reason": said}).encode("ascii") + b"\n"


def read_event(descriptor: int, seconds: float) -> bytes:
    """All of standard input; NoAnswer where it does not end in time."""
    until, parts, size = time.monotonic() + seconds, [], 0
    while size <= MOST_BYTES:
        if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
            raise NoAnswer("the agent's hook event is not complete")
        part = os.read(descriptor, CHUNK)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def options_of(arguments: list[str]) -> HookOptions:
    """The options of a command line. argparse would take longer to import than all that follows."""
    given, rest = {"--store": "", "--socket": "", "--format": ""}, list(arguments)
    auto_approve = False
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--auto-approve" and not equals:
            auto_approve = True
        elif name in given and (equals or rest):
            given[name] = value if equals else rest.pop(0)
        else:
            raise Unanswerable(f"{name}: usage: {USAGE}")
    if not given["--store"] or given["--format"] not in ("", CLAUDE, GEMINI):
        raise Unanswerable(f"usage: {USAGE}")
    return HookOptions(given["--store"], given["--format"], auto_approve, given["--socket"])


def run(options: HookOptions) -> int:
    """The hook as a process, with its exit code."""
    try:
        signal.signal(signal.SIGALRM, _too_late)
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        try:
            event = read_event(0, READING)
        except NoAnswer as error:
            if not options.format:
                raise Unanswerable(str(error)) from None
            answer = refusal(f"{error}; the call was not checked", options.format)
        else:
            answer = respond(event, options)
        rest = memoryview(answer)
        while rest:
            rest = rest[os.write(1, rest) :]
        return 0
    except Exception as error:
        said = str(error) if isinstance(error, Unanswerable) else f"the hook failed: {type(error).__name__}: {error}"
        complain(said)
        return BLOCKED


def _too_late(signal_number: int, frame: object) -> None:
    complain("the hook took too long")
    os._exit(BLOCKED)


def complain(said: str) -> None:
    """Says something on standard error; through sys.stderr it would go to standard output where that is closed."""
    with suppress(OSError):  # it is closed as well: the exit code says it all
        os.write(2, f"gradproof: {said}\n"[:MOST_REASON].encode("utf-8", "replace"))


def main() -> None:
    """The console script. Ends without tidying up: nothing may change the exit code any more."""
    code = BLOCKED
    try:
        code = run(options_of(sys.argv[1:]))
    except Unanswerable as error:
        complain(str(error))
    except BaseException as error:
        complain(f"the hook failed: {type(error).__name__}")
    os._exit(code)
