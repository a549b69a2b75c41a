"""`gradproof gate audit`. Everything heavy is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store
from gradproof.commands.options import EXIT, Debug, Json, NoSeed
from gradproof.commands.terminal import check_outputs, console_for, errors, write


def audit(
    store: StoreFolder,
    decision: Annotated[
        str,
        typer.Option(
            metavar="allow|ask|block", help="Only these decisions; in shadow mode, those that were not enforced."
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Only decisions since then: an ISO date or time, or 24h, 7d.")
    ] = "",
    session: Annotated[str, typer.Option(metavar="NAME", help="Only calls of this session.")] = "",
    actor: Annotated[str, typer.Option(metavar="NAME", help="Only calls by this actor.")] = "",
    effect: Annotated[str, typer.Option(metavar="EFFECT", help="Only calls with this effect, such as delete.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", help="List at most N decisions; all are counted.", min=1)] = 50,
    check: Annotated[
        bool, typer.Option("--check", help="Instead, check that no line of the audit log was changed or removed.")
    ] = False,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """List recorded decisions with their reasons, newest first.

    The last line counts all matching decisions, by the part of the gate that made them: the floor, a rule, a
    correction, the policy or the model. The JSON record has the keys `decisions` and `counts`. Secrets are redacted.

    \b
    Examples:
      gradproof gate audit --decision block --since 24h
      gradproof gate audit --effect delete --actor ci --json -
      gradproof gate audit --check
    """
    with errors(debug):
        from json import dumps

        from gradproof.gate.audit import AuditQuery, lines
        from gradproof.gate.audit import audit as audit_of
        from gradproof.gate.store import Store

        if check:
            return _check(store, json)

        check_outputs(json, None)
        with opened_store(Store, store) as opened:
            record = audit_of(opened, AuditQuery(decision, since, session, actor, effect), limit)
        write(record, dumps(record, indent=1), json)
        for line in lines(record):
            console_for(json).print(line, markup=False, emoji=False, soft_wrap=True)


def _check(folder: Path, json: str | None) -> None:
    """Exit code 1 where the log is not whole."""
    from json import dumps

    from gradproof.gate.store import Store

    check_outputs(json, None)
    with opened_store(Store, folder) as opened:
        report, where = opened.audit.check(), opened.audit.head_path
    record = {"whole": report.whole, "lines": report.lines, "problems": report.problems}
    record |= {"head": report.head._asdict() if report.head else None}
    write(record, dumps(record, indent=1), json)
    said = [*report.problems, f"{report.lines:,} lines are intact"]
    said[-1] += f"; none is missing, according to the head in {where}" if report.whole else ""
    for line in said:
        console_for(json).print(line, markup=False, emoji=False, soft_wrap=True)
    if not report.whole:
        raise typer.Exit(EXIT["refuted"])
