"""`gradproof gate init`. Everything heavy is imported inside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store, show_status, warn
from gradproof.commands.options import Debug, Json, Seed
from gradproof.commands.terminal import check_folder, check_outputs, errors, stages


def init(
    store: StoreFolder,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Your own labelled calls. Default: generated ones."),
    ] = None,
    old: Annotated[
        Path | None,
        typer.Option("--from", metavar="OLD", help="Import the feedback of a store of an earlier format."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(metavar="MIB", help="Maximum size of the journal. Default: 256.", min=1)
    ] = None,
    false_allow: Annotated[
        float | None, typer.Option(help="Tolerated share of bad calls that are allowed. Default: 0.01.")
    ] = None,
    false_block: Annotated[
        float | None, typer.Option(help="Tolerated share of good calls that are blocked. Default: 0.01.")
    ] = None,
    review_hours: Annotated[
        float | None,
        typer.Option(metavar="HOURS", help="Time before the gate learns from an unreviewed decision. Default: 24."),
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option("--shadow/--no-shadow", help="Allow every call, and record the decision that was not enforced."),
    ] = None,
    json: Json = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Create a gate: its store, its rules and its first model.

    The gate works at once, with a default policy. With --data, the model learns from your labelled calls: it can make
    decisions stricter at once, and can allow a call instead of asking once it is trusted. If the gate already exists,
    only its settings change.

    \b
    Examples:
      gradproof gate init
      gradproof gate init --store my-gate --data labelled.jsonl
      gradproof gate init --shadow
    """
    with errors(debug):
        check_outputs(json, None)
        check_folder(store)
        given = dict(journal_mebibytes=size, false_allow=false_allow, false_block=false_block)
        given |= dict(review_hours=review_hours, shadow=shadow)
        settings = {name: value for name, value in given.items() if value is not None}
        with stages() as say:
            record = _init(store, data, old, settings, seed, say)
        show_status(record, json)


def _init(
    folder: Path, data: Path | None, old: Path | None, given: dict[str, Any], seed: int, say: Any
) -> dict[str, Any]:
    """Nothing is written before the model is trained."""
    from dataclasses import asdict

    from gradproof.gate import founding, founding_rows
    from gradproof.gate.old_store import rows_of
    from gradproof.gate.starter import MadeUp
    from gradproof.gate.status import status as status_of
    from gradproof.gate.store import Settings, Store, check_folder

    before = None
    if check_folder(folder):
        with opened_store(Store, folder) as there:
            before = there.settings if there.versions.serving() else None
    if before is not None and (data or old) is not None:
        raise ValueError(f"there is already a gate in {folder}; to start one from {data or old}, name a new folder")
    settings = Settings(**({**asdict(before), **given} if before is not None else given))
    warn(folder)
    trained = None
    if before is not None:
        changed = "only its settings were changed" if settings != before else "nothing was changed"
        print(f"gradproof: there is already a gate in {folder}; {changed}", file=sys.stderr)
    else:
        say("reading the training calls")
        rows = founding_rows.read_rows(data) if data is not None else founding.starter_rows(seed)
        rows += rows_of(old) if old is not None else []
        learned, held = founding.split(rows, seed)
        say(f"training on {len({row.call for row in learned}):,} calls")
        more = None if data is not None else MadeUp((), ())  # there is nothing else
        trained = founding.fit_rows(learned, seed=seed, more=more), learned, held
    with opened_store(lambda path: Store.create(path, settings), folder) as store:
        if trained is not None:
            founding.found(store, *trained, people=data is not None)
        return status_of(store)
