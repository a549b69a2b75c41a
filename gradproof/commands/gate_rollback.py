"""`gradproof gate rollback`. Everything heavy is imported inside."""

from __future__ import annotations

from getpass import getuser
from typing import Annotated

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store, warn
from gradproof.commands.options import Debug, NoSeed
from gradproof.commands.terminal import errors


def rollback(
    store: StoreFolder,
    version: Annotated[
        int | None,
        typer.Argument(metavar="VERSION", help="Version to return to. Default: the one before the serving version."),
    ] = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Return to an earlier version of the model. Corrections stay in effect.

    \b
    Example:
      gradproof gate rollback 3
    """
    with errors(debug):
        from gradproof.gate import changes
        from gradproof.gate.remarks import Giver
        from gradproof.gate.store import Store

        with opened_store(Store, store) as opened:
            chosen, before = changes.roll_back(opened, Giver(getuser()), version)
        warn(store)
        print(f"version {chosen} now serves instead of version {before}; trust is reset")
