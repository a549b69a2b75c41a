"""`gradproof train`. Everything heavy is imported inside."""

from __future__ import annotations

import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gradproof.commands.options import (
    INTERRUPTED,
    STOPPED,
    ConfigFile,
    Data,
    Debug,
    Device,
    Ignore,
    Json,
    Precision,
    TargetColumn,
    said,
)
from gradproof.commands.terminal import check_device, check_folder, check_outputs, console_for, errors, sentence, write

Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The run's folder. Default: runs/MODEL-SIZE-DATA, numbered.")
]


class FamilyOption(StrEnum):
    moe = "moe"
    dense = "dense"
    transformer = "transformer"


class TaskOption(StrEnum):
    classification = "classification"
    regression = "regression"


class EncodingOption(StrEnum):
    onehot = "onehot"
    padic = "padic"


class RouterOption(StrEnum):
    softmax = "softmax"
    sheaf = "sheaf"


def train(
    config: ConfigFile = None,
    model: Annotated[
        FamilyOption | None,
        typer.Option(help="A mixture of experts, the dense baseline, or a transformer on text. Default: moe."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="nano, tiny, medium, full, or a parameter count; dense also 0.7b. Default: nano.")
    ] = None,
    data: Data = None,
    target: TargetColumn = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="COLS", help="Numbers to predict beside it: a,b,c. Default: none.")
    ] = None,
    categorical: Annotated[
        str | None, typer.Option(metavar="COLS", help="Number-like columns that are names: a,b,c. Default: none.")
    ] = None,
    ignore: Ignore = None,
    task: Annotated[
        TaskOption | None,
        typer.Option(help="Default: regression for floats of more than 50 values, else classification."),
    ] = None,
    encoding: Annotated[
        EncodingOption | None,
        typer.Option(help="padic: numbers also by their lowest digits, for what repeats. Default: onehot."),
    ] = None,
    router: Annotated[
        RouterOption | None,
        typer.Option(help="moe: one linear map, or patches of the inputs that must agree. Default: softmax."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Updates at most; early stopping may end sooner. Default: 3000; for a table, what fits --minutes."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows in an update. Default: 256; 16 for a text; at most 256 for a table.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="The peak learning rate. Default: 0.003; 0.002 for a table or a text.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Training time; a short calibration turns it into a number of steps. Default: 0.6 for a table."
        ),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(help="Models trained at once, whose probabilities are averaged. Default: 1; 8 for a table."),
    ] = None,
    device: Annotated[Device | None, typer.Option(help="Where to train. Default: cpu.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="Of products and activations. Default: fp32.")] = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out; needs no other flag.")] = False,
    json: Json = None,
    seed: Annotated[int | None, typer.Option(help="Seeds weights, split and order of the rows. Default: 0.")] = None,
    debug: Debug = False,
) -> None:
    """Train a decision model, and survive a crash.

    Without a flag, trains the nano mixture of experts on the synthetic set. With --data and --target, on your own
    table: columns, missing values and classes are found out, and an ensemble of small mixtures is trained, within a
    minute for up to 50,000 rows on two cores; --model, --size or --steps train one model of your choice instead. A run
    is a folder with checkpoints, metrics.jsonl and
    report.html; after Ctrl-C, a crash or a power cut `gradproof train --resume --out DIR` ends with the same bits as
    if nothing had happened.

    Examples:

        gradproof train

        gradproof train --data loans.csv --target approved --out runs/loans

        gradproof train --data loans.csv --target approved --minutes 5

        gradproof train --model transformer --data book.txt --out runs/book

        gradproof train --resume --out runs/loans
    """
    with errors(debug):
        from gradproof.data.source import check, synthetic_options
        from gradproof.data.text import check as check_text
        from gradproof.train.config import read_config, resolve
        from gradproof.train.run import lock, start
        from gradproof.train.terminal_watch import show_scores

        check_outputs(json, None)
        check_folder(out)
        flags = dict(model=model, size=size, data=data, target=target, steps=steps, batch=batch, lr=lr, seed=seed)
        flags |= dict(minutes=minutes, members=members)
        lists = dict(metrics=metrics, categorical=categorical, ignore=ignore)
        given = read_config(config) if config else {}
        given |= said(**flags, task=task, encoding=encoding, router=router, device=device, precision=precision)
        given |= {name: [column.strip() for column in value.split(",")] for name, value in said(**lists).items()}
        resolved = resolve(given)
        if out is None or not (out / "config.json").is_file():
            named = [*resolved.metrics, *resolved.categorical, *resolved.ignore]
            if resolved.model == "transformer":
                check_text(resolved.data, [*([resolved.target] if resolved.target else []), *named])
            else:
                check(resolved.data, resolved.target, named)
            check_device(Device(resolved.device))
        if "data" in given and synthetic_options(resolved.data) is None:
            given["data"] = os.path.abspath(resolved.data)  # whatever folder it is resumed in
        run = start(out, given, resume)
        check_device(Device(run.config.device))
        with lock(run):
            record = _train(run, debug)
        show_scores(record, run.path, console_for(json))
        from json import dumps

        write(record, dumps(record, indent=1), json)


def _train(run: Any, debug: bool) -> dict[str, Any]:
    """Exit code 130 where the run was interrupted, by Ctrl-C or SIGTERM."""
    import signal

    from gradproof.train.terminal_watch import watching

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with watching() as watch:
            return _train_watched(run, watch, debug)
    except KeyboardInterrupt:
        print(f"interrupted; go on with: gradproof train --resume --out {run.path}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _train_watched(run: Any, watch: Any, debug: bool) -> dict[str, Any]:
    """A run that could not start is taken back; exit code 1 where one that had started must stop."""
    from gradproof.data.columns import column_lines
    from gradproof.data.source import task_lines
    from gradproof.train.loop import Stopped, Trainer, prove
    from gradproof.train.report import finished_report, report, write_report
    from gradproof.train.text import TextTrainer
    from gradproof.train.text_report import text_report

    done = finished_report(run.path)
    if done is not None:
        watch.say(f"{run.path} is finished; nothing to do")
        return done
    try:
        trainer = TextTrainer(run, watch) if run.config.model == "transformer" else Trainer(run, watch)
    except Exception:
        run.discard()
        raise
    if not isinstance(trainer, TextTrainer):
        for line in (*column_lines(trainer.source.columns), *task_lines(trainer.source, run.config.task)):
            watch.say(line)
    try:
        prove(run, trainer.model)
        trainer.rehearse()
        trainer.settle()
        trainer.resume()
        trainer.train()
        record = text_report(trainer) if isinstance(trainer, TextTrainer) else report(trainer)
        write_report(run.path, record)
    except Stopped as stopped:
        print(f"gradproof: {stopped}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"gradproof: {sentence(error)}; then: gradproof train --resume --out {run.path}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    return record
