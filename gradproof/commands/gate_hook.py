"""`gradproof gate hook`: the same as the console script gradproof-hook, which starts faster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gradproof.commands.gate_store import StoreFolder
from gradproof.commands.options import NoSeed

Socket = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Where the daemon listens. Default: gate.sock in STORE.socket."),
]


class HookFormat(StrEnum):
    claude = "claude"
    gemini = "gemini"


def hook(
    store: StoreFolder,
    format: Annotated[
        HookFormat | None, typer.Option(help="The agent that sent the event. Default: read from the event.")
    ] = None,
    socket: Socket = None,
    auto_approve: Annotated[
        bool,
        typer.Option("--auto-approve", help="Also answer allow, so that the agent does not ask its user either."),
    ] = False,
    seed: NoSeed = 0,
) -> None:
    """Answer one hook event of Claude Code or Gemini CLI.

    Reads a PreToolUse or BeforeTool event from standard input and answers ask or deny, or nothing if the gate allows
    the call. PostToolUse and AfterTool events are recorded without an answer. The store's daemon decides; the hook
    starts it if it is not running. If no decision arrives in time, the answer is ask for Claude Code and deny for
    Gemini CLI; exit code 2 also blocks the call.

    Agents run `gradproof-hook`, which does the same and starts faster. `gradproof gate install` adds it to their
    settings.

    \b
    Example:
      gradproof gate hook --format claude < event.json
    """
    from gradproof.gate.hook import HookOptions, run

    raise typer.Exit(
        run(HookOptions(str(store), format.value if format is not None else "", auto_approve, str(socket or "")))
    )
