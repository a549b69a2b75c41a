"""`gradproof gate status`. Everything heavy is imported inside."""

from __future__ import annotations

from gradproof.commands.gate_store import StoreFolder, opened_store, show_status
from gradproof.commands.options import Debug, Json, NoSeed
from gradproof.commands.terminal import check_outputs, errors


def status(store: StoreFolder, json: Json = None, seed: NoSeed = 0, debug: Debug = False) -> None:
    """Show the serving version, trust, drift and protection.

    \b
    Example:
      gradproof gate status --json -
    """
    with errors(debug):
        from gradproof.gate.status import status as status_of
        from gradproof.gate.store import Store

        check_outputs(json, None)
        with opened_store(Store, store) as opened:
            show_status(status_of(opened), json)
