"""`gradproof gate feedback`. Everything heavy is imported inside."""

from __future__ import annotations

import sys
from getpass import getuser
from typing import Annotated

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store, warn
from gradproof.commands.options import Debug, NoSeed
from gradproof.commands.terminal import errors


def feedback(
    store: StoreFolder,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the decision.")],
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="false_block, false_allow, override_allow, override_block, allow, block."),
    ],
    act: Annotated[
        int | None,
        typer.Option(help="Block: index of the act to block, from 0. Default: the act named in the reason.", min=0),
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            metavar="folder|project|host|pattern=GLOB", help="Allow: how far the correction extends beyond the target."
        ),
    ] = "",
    actor: Annotated[str, typer.Option(metavar="NAME", help="Who gives the feedback. Default: the user name.")] = "",
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Correct a decision.

    The correction is on disk and in effect when the command returns. KIND is false_block or false_allow if the decision
    was a mistake; override_allow or override_block if a person decided differently, or answered a question. An allow
    applies to calls that do no more than the corrected one: the same effects by the same programs, on targets no wider.
    A block applies to calls with an act at least as wide. `gate corrections` lists and retracts corrections.

    \b
    Examples:
      gradproof gate feedback 01a1e0f5bc3be2d87b39 false_block
      gradproof gate feedback 01a1e0f5bc3be2d87b39 override_allow --scope folder
    """
    with errors(debug):
        from json import dumps

        from gradproof.gate import changes
        from gradproof.gate.remarks import Giver
        from gradproof.gate.signals import signal
        from gradproof.gate.store import Store

        giver = Giver(actor or getuser(), "person", "")
        with opened_store(Store, store) as opened:
            outcome = signal(kind).outcome
            if scope and outcome != "allow":
                raise ValueError(f"--scope widens an allow, and {kind} is a block; omit --scope")
            if act is not None and outcome != "block":
                raise ValueError(f"--act selects the act of a block, and {kind} is an allow; omit --act")
            remark = changes.feedback(opened, id, kind, giver, act=act, scope=scope)
            given, before = remark.signal, remark.before
        warn(store)
        if before is not None and signal(before).outcome != given.outcome:
            print(f"gradproof: warning: {id} already had the feedback {before}; {kind} replaces it", file=sys.stderr)
        print(dumps({"id": id, **given._asdict(), "target": given.target, "before": before}))
