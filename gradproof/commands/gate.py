"""`gradproof gate …`: the commands. Everything heavy is imported inside them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradproof.commands.options import INTERRUPTED, Debug, Json, NoSeed, Seed
from gradproof.commands.terminal import (
    COULD_NOT_START,
    check_folder,
    check_outputs,
    console_for,
    errors,
    sentence,
    stages,
    write,
)
from gradproof.gate.place import default_folder, warning

if TYPE_CHECKING:
    from gradproof.gate.decider import Decider
    from gradproof.gate.store import Store

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="A gate on agents' tool calls that learns from every correction.",
)


StoreFolder = Annotated[
    Path,
    typer.Option(
        "--store",
        metavar="DIR",
        envvar="GRADPROOF_GATE",
        default_factory=default_folder,
        show_default="$XDG_STATE_HOME/gradproof/gates/default",
        help="The gate's folder.",
    ),
]


@app.command()
def init(
    store: StoreFolder,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl", help="Labelled calls of your own; left out, made-up ones, and a cold start."
        ),
    ] = None,
    old: Annotated[
        Path | None,
        typer.Option("--from", metavar="OLD", help="A store of an earlier format: learn from what people said there."),
    ] = None,
    size: Annotated[int | None, typer.Option(metavar="MIB", help="Of decisions and signals, at most.", min=1)] = None,
    false_allow: Annotated[float | None, typer.Option(help="Share of calls to block that may be allowed.")] = None,
    false_block: Annotated[float | None, typer.Option(help="Share of calls to allow that may be blocked.")] = None,
    review_hours: Annotated[
        float | None, typer.Option(help="How long an unremarked decision is no example yet.")
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option("--shadow/--no-shadow", help="Allow every call, and record what would have been decided."),
    ] = None,
    json: Json = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Make a gate: its store, its rules and its first model.

    The default policy decides from the first call on. With --data, the model learns from your own labelled calls; it
    may tighten decisions at once, and turn a question into an allow once it has earned trust. Where there is a gate
    already, changes its settings and leaves the rest.

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
        _show_status(record, json)


@app.command()
def decide(
    store: StoreFolder,
    call: Annotated[
        str | None, typer.Argument(metavar="[CALL]", help="JSON; left out or -, one call a line of standard input.")
    ] = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Decide a tool call: allow, ask or block.

    Reads `{"tool", "arguments", "cwd", "history"}`, MCP's `tools/call` or a hook's `{"tool_name", "tool_input"}`, and
    prints `{"id", "decision", "probability", "reason", "acts", "version"}`; the probability is that of allow, `acts`
    are what the call does. In shadow mode the decision is allow, and the key `shadow` says what it would have been. A
    line that is no call is answered `{"error"}`, and the next one is read; the exit code is
    then 2.

    Examples:

        gradproof gate decide '{"command": "rm -rf ../shared"}'

        my-agent | gradproof gate decide --store my-gate
    """
    with errors(debug):
        from gradproof.gate.decider import Decider
        from gradproof.gate.store import Store

        with _opened(Store, store) as opened:
            decider = Decider(opened)
            try:
                good = _decide_one(decider, call) if call not in (None, "-") else _decide_lines(decider)
            finally:
                decider.close()
        raise typer.Exit(0 if good else COULD_NOT_START)


@app.command()
def feedback(
    store: StoreFolder,
    id: Annotated[str, typer.Argument(metavar="ID", help="Of the decision.")],
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="false_block, false_allow, override_allow, override_block, allow, block."),
    ],
    act: Annotated[
        int | None, typer.Option(help="A block: which act is meant, from 0 on. Default: the one in the reason.", min=0)
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            metavar="folder|project|host|pattern=GLOB", help="An allow: how far it reaches beyond the target."
        ),
    ] = "",
    actor: Annotated[str, typer.Option(help="Who says so. Default: the user's name.")] = "",
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Say what should have happened. When this returns, it is on the disk, and holds for calls that do the same.

    **false_block**, **false_allow**: the decision was a mistake. **override_allow**, **override_block**: a person
    decided otherwise, or answered what was asked. An allow speaks for calls that do no more than the corrected one:
    the same effects by the same programs, on targets no wider. A block speaks for calls with an act at least as wide.
    `gate corrections` lists what holds, and takes it back.

    Examples:

        gradproof gate feedback 01a1e0f5bc3be2d87b39 false_block

        gradproof gate feedback 01a1e0f5bc3be2d87b39 override_allow --scope folder
    """
    with errors(debug):
        from json import dumps

        from gradproof.gate.journal import Giver
        from gradproof.gate.signals import signal
        from gradproof.gate.store import Store

        giver = Giver(actor or getuser(), "person", "")
        with _opened(Store, store) as opened:
            signal(kind)
            before = opened.journal.decision(id).get("remarked")
            given = opened.journal.remark(id, kind, act=act, widened=scope, giver=giver)
        _warn(store)
        if before is not None and signal(before).outcome != given.outcome:
            print(f"gradproof: warning: {before} was said of {id} before; {kind} now holds instead", file=sys.stderr)
        print(dumps({"id": id, **given._asdict(), "target": given.target, "before": before}))


@app.command()
def corrections(
    store: StoreFolder,
    what: Annotated[str, typer.Argument(metavar="list|retract")] = "list",
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Of the correction to take back.")] = None,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """List the corrections that hold, or take one back; that takes effect at once.

    Examples:

        gradproof gate corrections list

        gradproof gate corrections retract c12
    """
    with errors(debug):
        from json import dumps

        from gradproof.gate.store import Store

        check_outputs(json, None)
        if what not in ("list", "retract") or (what == "retract") != (id is not None):
            raise ValueError("say `gate corrections list`, or `gate corrections retract ID`")
        with _opened(Store, store) as opened:
            records = opened.journal.correction_records() if id is None else [opened.journal.retract(id)]
        if what == "retract":
            _warn(store)
        write({"corrections": records}, dumps({"corrections": records}, indent=1), json)
        for record in records:
            console_for(json).print(_correction_line(record), markup=False, soft_wrap=True)
        if not records:
            console_for(json).print("no correction holds", markup=False)


@app.command()
def learn(
    store: StoreFolder,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until interrupted: a round whenever one is due.")
    ] = False,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Learn from the signals that wait; in a process of its own, so that no decision waits.

    A trained copy serves only if it is no worse on held-back calls and on pinned mistakes.

    Examples:

        gradproof gate learn

        gradproof gate learn --follow &
    """
    with errors(debug):
        import signal

        from gradproof.gate.learner import Learner, told
        from gradproof.gate.learner import follow as learn_on
        from gradproof.gate.store import Store

        try:
            # A shell starts a job in the background with SIGINT ignored; `kill -INT` must end it all the same.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler)
            with _opened(Store, store) as opened, opened.learning():
                _warn(store)
                learner = Learner(opened, seed)
                if follow:
                    learn_on(learner, lambda line: print(line, flush=True))
                else:
                    done = learner.round()
                    print("no signal waits; nothing to learn" if done is None else told(done))
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a second one must not end it halfway out
            raise typer.Exit(INTERRUPTED) from None


@app.command()
def status(store: StoreFolder, json: Json = None, seed: NoSeed = 0, debug: Debug = False) -> None:
    """What serves, how it agrees with people, whether it has converged, whether calls or errors drift.

    Example:

        gradproof gate status --json -
    """
    with errors(debug):
        from gradproof.gate.status import status as status_of
        from gradproof.gate.store import Store

        check_outputs(json, None)
        with _opened(Store, store) as opened:
            _show_status(status_of(opened), json)


@app.command()
def audit(
    store: StoreFolder,
    decision: Annotated[
        str, typer.Option(metavar="allow|ask|block", help="Only these; in shadow mode, what would have been decided.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Only from then on: an ISO date or time, or 24h, 7d ago.")
    ] = "",
    session: Annotated[str, typer.Option(help="Only calls of this session.")] = "",
    actor: Annotated[str, typer.Option(help="Only calls by this actor.")] = "",
    effect: Annotated[str, typer.Option(help="Only calls with an act of this effect, such as delete.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", help="List so many at most; all are counted.", min=1)] = 50,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """List recorded decisions, newest first, with their reasons and what people said of them.

    The last line counts all decisions that match, by the part of the gate that made them: the floor, a rule, a
    correction, the policy or the model. The JSON record has the keys `decisions` and `counts`. Secrets are redacted.

    Examples:

        gradproof gate audit --decision block --since 24h

        gradproof gate audit --effect delete --actor ci --json -
    """
    with errors(debug):
        from json import dumps

        from gradproof.gate.audit import AuditQuery, lines
        from gradproof.gate.audit import audit as audit_of
        from gradproof.gate.store import Store

        check_outputs(json, None)
        with _opened(Store, store) as opened:
            record = audit_of(opened, AuditQuery(decision, since, session, actor, effect), limit)
        write(record, dumps(record, indent=1), json)
        for line in lines(record):
            console_for(json).print(line, markup=False, emoji=False, soft_wrap=True)


@app.command()
def rollback(
    store: StoreFolder,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", help="Left out, the one that the serving version came from.")
    ] = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Let an earlier version serve again. What people corrected stays corrected.

    Example:

        gradproof gate rollback 3
    """
    with errors(debug):
        from gradproof.gate.store import Store

        with _opened(Store, store) as opened:
            versions = opened.versions
            before = versions.serving()
            chosen = version if version is not None else versions.get(before).record["came_from"]
            if chosen == 0:
                raise ValueError(f"there is no version before {before}, which serves")
            versions.serve(chosen, after=before)
            opened.journal.reset_trust()
        _warn(store)
        print(f"version {chosen} serves; it was {before}; trust begins anew")


@app.command()
def evaluate(
    data: Annotated[
        list[Path], typer.Option("--data", metavar="FILE.jsonl", help="Labelled calls; may be repeated for several.")
    ],
    folds: Annotated[int | None, typer.Option(help="Cross-validate in so many folds; 5 if left out.", min=2)] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Replay the calls in their order, correcting mistakes, beside no learning.")
    ] = False,
    train: Annotated[
        list[Path] | None,
        typer.Option(
            "--train", metavar="FILE.jsonl", help="Stream: what the first model learns from; may be repeated."
        ),
    ] = None,
    delay: Annotated[int, typer.Option(help="Stream: a mistake is remarked so many calls later.", min=0)] = 0,
    share: Annotated[float, typer.Option(help="Stream: the share of mistakes that is remarked.")] = 1.0,
    equal: Annotated[
        bool,
        typer.Option("--equal-form", help="Write all calls in one line, without shebangs, comments and #{x}, first."),
    ] = False,
    leave_source_out: Annotated[
        bool, typer.Option("--leave-source-out", help="Score each --data by a gate that learned from the others alone.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(help="Folds: how often, each time with other folds and first weights.", min=1)
    ] = 1,
    json: Json = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to look at.")] = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """How good would the gate be on these calls?

    In folds: each is scored by a gate trained on the others, near-duplicates never on both sides, beside a logistic
    regression on character n-grams. As a stream: call after call, with corrections of what was wrong, and the same
    without learning beside it. Recall is that of block; the percentage is the share of allowed calls blocked.

    Examples:

        gradproof gate evaluate --data labelled.jsonl --seeds 3 --html report.html

        gradproof gate evaluate --stream --train old.jsonl --data new.jsonl
    """
    with errors(debug):
        from json import dumps

        import torch

        from gradproof.gate.evaluate import lines

        check_outputs(json, html)
        if stream + leave_source_out + (folds is not None) > 1:
            raise ValueError("give one of --folds, --stream and --leave-source-out")
        if not stream and (train or delay or share != 1.0):
            raise ValueError("--train, --delay and --share belong to --stream")
        torch.set_num_threads(1)
        try:
            with stages() as say:
                if stream:
                    record = _evaluate_stream(data, train, delay, share, equal, seed, say)
                elif leave_source_out:
                    record = _evaluate_left_out(data, equal, seed, say)
                else:
                    record = _evaluate_folds(data, folds or 5, seeds, equal, seed, say)
            record["equal_form"] = equal
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        for line in lines(record):
            console_for(json).print(line, markup=False, soft_wrap=True)
        write(record, dumps(record, indent=1), json, html, "gate.html")


def _read_calls(data: list[Path], equal: bool, say: Any) -> Any:
    from gradproof.gate.equal_form import equal_form
    from gradproof.gate.evaluate import read

    say(f"reading {', '.join(path.name for path in data)}")
    return read(data, equal_form) if equal else read(data)


def _evaluate_folds(data: list[Path], folds: int, seeds: int, equal: bool, seed: int, say: Any) -> dict[str, Any]:
    from gradproof.gate.evaluate import by_folds, has_baseline

    calls = _read_calls(data, equal, say)
    return by_folds(calls, count=folds, seeds=seeds, seed=seed, baseline=has_baseline(), say=say)


def _evaluate_left_out(data: list[Path], equal: bool, seed: int, say: Any) -> dict[str, Any]:
    from gradproof.gate.evaluate import by_left_out_source

    return by_left_out_source(_read_calls(data, equal, say), seed=seed, say=say)


def _evaluate_stream(
    data: list[Path], train: list[Path] | None, delay: int, share: float, equal: bool, seed: int, say: Any
) -> dict[str, Any]:
    from gradproof.gate.evaluate_stream import Feedback, by_stream

    learned = _read_calls(train, equal, say).require_both() if train else None
    return by_stream(_read_calls(data, equal, say), learned, feedback=Feedback(delay, share), seed=seed, say=say)


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


def _warn(store: Path) -> None:
    """What commands that change the gate say of a store within an agent's reach."""
    if said := warning(store):
        print(f"gradproof: warning: {said}", file=sys.stderr, flush=True)


@contextmanager
def _opened(kind: Any, folder: Path) -> Iterator[Store]:
    store = kind(folder)
    try:
        yield store
    finally:
        store.close()


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
        with _opened(Store, folder) as there:
            before = there.settings if there.versions.serving() else None
    if before is not None and (data or old) is not None:
        raise ValueError(
            f"there is a gate in {folder} already; name a new folder for one that starts from {data or old}"
        )
    settings = Settings(**({**asdict(before), **given} if before is not None else given))
    _warn(folder)
    trained = None
    if before is None:
        say("reading the calls to learn from")
        rows = founding_rows.read_rows(data) if data is not None else founding.starter_rows(seed)
        rows += rows_of(old) if old is not None else []
        learned, held = founding.split(rows, seed)
        say(f"training on {len({row.call for row in learned}):,} calls")
        more = None if data is not None else MadeUp((), ())  # there is nothing else
        trained = founding.fit_rows(learned, seed=seed, more=more), learned, held
    with _opened(lambda path: Store.create(path, settings), folder) as store:
        if trained is not None:
            founding.found(store, *trained, people=data is not None)
        return status_of(store)


def _decide_one(decider: Decider, call: str | None) -> bool:
    """An answer that is printed is on the disk."""
    from gradproof.gate.calls import parse

    answer = decider.decide(parse(os.fsencode(call or "")))
    decider.flush()
    _print(answer.plain())
    return True


def _decide_lines(decider: Decider) -> bool:
    """Answers line by line; True where every line was a call."""
    from gradproof.gate.calls import parse

    gc.collect()
    gc.freeze()  # what is loaded stays: looking through all of it for garbage takes as long as fifty decisions
    good, complaint = True, ""
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


def _show_status(record: dict[str, Any], json: str | None) -> None:
    from json import dumps

    from gradproof.gate.status import lines

    write(record, dumps(record, indent=1), json)
    for line in lines(record):
        console_for(json).print(line, markup=False, soft_wrap=True)
