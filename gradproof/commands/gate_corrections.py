"""`gradproof gate corrections`. Everything heavy is imported inside."""

from __future__ import annotations

from getpass import getuser
from typing import Annotated, Any

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store, warn
from gradproof.commands.options import Debug, Json, NoSeed
from gradproof.commands.terminal import check_outputs, console_for, errors, write


def corrections(
    store: StoreFolder,
    what: Annotated[str, typer.Argument(metavar="list|retract", help="What to do.")] = "list",
    id: Annotated[str | None, typer.Argument(metavar="ID", help="The correction to retract.")] = None,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """List the corrections, or retract one with immediate effect.

    \b
    Examples:
      gradproof gate corrections list
      gradproof gate corrections retract c12
    """
    with errors(debug):
        from json import dumps

        from gradproof.gate.changes import retract
        from gradproof.gate.remarks import Giver
        from gradproof.gate.store import Store

        check_outputs(json, None)
        if what not in ("list", "retract") or (what == "retract") != (id is not None):
            raise ValueError("type `gradproof gate corrections list`, or `gradproof gate corrections retract ID`")
        with opened_store(Store, store) as opened:
            records = opened.journal.correction_records() if id is None else [retract(opened, id, Giver(getuser()))]
        if what == "retract":
            warn(store)
        write({"corrections": records}, dumps({"corrections": records}, indent=1), json)
        for record in records:
            console_for(json).print(_correction_line(record), markup=False, soft_wrap=True)
        if not records:
            console_for(json).print("there are no corrections", markup=False)


def _correction_line(record: dict[str, Any]) -> str:
    """A correction for a person."""
    from gradproof.gate.corrections import restored
    from gradproof.gate.standing import told

    acts = [told(restored(act)) for act in record["acts"]]
    said = "; ".join(acts) if record["allow"] else acts[min(record["named"], len(acts) - 1)]
    wider = f" (--scope {record['widened']})" if record["widened"] else ""
    return (
        f"c{record['sequence']}  {'allow' if record['allow'] else 'block'}  {said}{wider}  by {record['actor'] or '?'}"
    )
