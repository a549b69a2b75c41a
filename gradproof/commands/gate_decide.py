"""`gradproof gate decide`. Everything heavy is imported inside."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store
from gradproof.commands.options import Debug, NoSeed
from gradproof.commands.terminal import COULD_NOT_START, errors, sentence

if TYPE_CHECKING:
    from gradproof.gate.decider import Decider


def decide(
    store: StoreFolder,
    call: Annotated[
        str | None,
        typer.Argument(metavar="CALL", help="The call as JSON. Default: read one call per line from standard input."),
    ] = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Decide a tool call: allow, ask or block.

    Reads `{"tool", "arguments", "cwd", "history"}`, MCP's `tools/call` or a hook's `{"tool_name", "tool_input"}`, and
    prints `{"id", "decision", "probability", "reason", "acts", "version"}`. The probability is that of allow; `acts`
    lists what the call does. In shadow mode the decision is allow, and the key `shadow` has the decision that was not
    enforced. A malformed line is answered with `{"error"}`, and the next one is read; the exit code is
    then 2.

    \b
    Examples:
      gradproof gate decide '{"command": "rm -rf ../shared"}'
      my-agent | gradproof gate decide --store my-gate
    """
    with errors(debug):
        from gradproof.gate.decider import Decider
        from gradproof.gate.store import Store

        with opened_store(Store, store) as opened:
            decider = Decider(opened)
            try:
                good = _decide_one(decider, call) if call not in (None, "-") else _decide_lines(decider)
            finally:
                decider.close()
        raise typer.Exit(0 if good else COULD_NOT_START)


def _decide_one(decider: Decider, call: str | None) -> bool:
    """An answer that is printed is on the disk."""
    from gradproof.gate.calls import parse

    if call is not None and not call.lstrip().startswith(("{", "[")):
        from json import dumps

        example = dumps({"command": call[:80]}, ensure_ascii=False)
        raise ValueError(f"the call is not valid JSON; a shell command is written as '{example}'")
    answer = decider.decide(parse(os.fsencode(call or "")))
    decider.flush()
    _print(answer.plain())
    return True


def _decide_lines(decider: Decider) -> bool:
    """Answers line by line; True where every line was a call."""
    from gradproof.gate.calls import parse

    if sys.stdin.isatty():
        print("gradproof: type one call per line, as JSON; Ctrl-D ends the input", file=sys.stderr, flush=True)
    gc.collect()
    gc.freeze()  # what is loaded stays: looking through all of it for garbage takes as long as fifty decisions
    good, complaint, number = True, "", 0
    for number, line in _lines():
        try:
            answer = decider.decide(parse(line))
            _print(answer.plain())
        except ValueError as error:
            good = False
            _print({"error": sentence(error)})
            print(f"gradproof: line {number}: {sentence(error)}", file=sys.stderr, flush=True)
        if decider.complaint not in ("", complaint):
            print(f"gradproof: {decider.complaint}", file=sys.stderr, flush=True)
        complaint = decider.complaint
    if number == 0:
        print("gradproof: no call was given, neither as an argument nor on standard input", file=sys.stderr)
    decider.flush()
    return good


def _lines() -> Iterator[tuple[int, bytes]]:
    """The lines of standard input that are not empty; one that is too long is not kept whole."""
    from gradproof.gate.calls import MOST_BYTES

    number = 0
    while line := sys.stdin.buffer.readline(MOST_BYTES + 2):
        number += 1
        rest = line
        while not rest.endswith(b"\n") and len(rest) > MOST_BYTES:
            rest = sys.stdin.buffer.readline(MOST_BYTES + 2)
        if line.strip():
            yield number, line


def _print(record: dict[str, Any]) -> None:
    from json import dumps

    print(dumps(record, ensure_ascii=False), flush=True)
