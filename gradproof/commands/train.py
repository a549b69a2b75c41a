"""`gradproof train`. Everything heavy is imported inside."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gradproof.commands.options import (
    ConfigFile,
    Debug,
    Device,
    Ignore,
    Json,
    Precision,
    TargetColumn,
    said,
)
from gradproof.commands.terminal import check_device, check_folder, check_outputs, console_for, errors, write
from gradproof.commands.training_run import several_ranks, train_alone, train_on_ranks

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder of the run. Default: runs/MODEL-SIZE-DATA, numbered."),
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
        str | None,
        typer.Option(
            metavar="NAME", help="nano, tiny, medium, full, or a parameter count; dense also 0.7b. Default: nano."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="synthetic|FILE",
            help="A CSV or Parquet file, a text file (for a transformer), or the synthetic set: "
            "synthetic:regimes=N,rows=N. Default: synthetic.",
        ),
    ] = None,
    target: TargetColumn = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="COLS", help="Numeric columns to predict as well: a,b,c. Default: none.")
    ] = None,
    categorical: Annotated[
        str | None, typer.Option(metavar="COLS", help="Numeric columns to treat as categories: a,b,c. Default: none.")
    ] = None,
    ignore: Ignore = None,
    task: Annotated[
        TaskOption | None,
        typer.Option(
            help="What to predict: a class or a number. Default: regression for a float column with more than "
            "50 distinct values, otherwise classification."
        ),
    ] = None,
    encoding: Annotated[
        EncodingOption | None,
        typer.Option(help="padic: also encode numbers by their lowest digits. Default: onehot."),
    ] = None,
    router: Annotated[
        RouterOption | None,
        typer.Option(help="moe: softmax is one linear map; sheaf lets patches of the inputs vote. Default: softmax."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of training steps; early stopping may end training sooner. Default: 3000; for a "
            "table, as many as fit in --minutes."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows per step. Default: 256; 16 for text; at most 256 for a table.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Peak learning rate. Default: 0.003; 0.002 for a table or text.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Training time, converted to steps by a short calibration. Default: 0.6 for a table.",
        ),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(help="Number of models to train and average. Default: 1; 8 for a table."),
    ] = None,
    device: Annotated[Device | None, typer.Option(help="Device to train on. Default: cpu.")] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="Precision of products and activations. Default: fp32.")
    ] = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out; no other flag is needed.")] = False,
    json: Json = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="Under torchrun: arrangement of the ranks, such as data=2,experts=2. Default: data parallel.",
        ),
    ] = None,
    shard_optimizer: Annotated[
        bool | None,
        typer.Option(
            "--shard-optimizer", help="Under torchrun: shard AdamW's moments over the data axis. Default: off."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Under torchrun: time until a dead or hung rank ends the run. Default: 60."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed for weights, split and row order. Default: 0.")] = None,
    debug: Debug = False,
) -> None:
    """Train a decision model; resume it after a crash.

    Without flags, trains the nano mixture of experts on the synthetic set. With --data and --target, infers the columns
    of your own table and trains an ensemble of small networks, within a minute for up to 50,000 rows on two cores;
    --model, --size or --steps train a single model instead. A run is a folder with checkpoints, metrics.jsonl and
    report.html. After Ctrl-C, a crash or a power cut, `gradproof train --resume --out DIR` continues the run; the
    result is bit-identical to that of an uninterrupted run.

    \b
    Examples:
      gradproof train
      gradproof train --data loans.csv --target approved --out runs/loans
      gradproof train --data loans.csv --target approved --minutes 5
      gradproof train --model transformer --data book.txt --out runs/book
      gradproof train --resume --out runs/loans
      torchrun --nproc-per-node 2 -m gradproof train --out runs/two
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
        flags |= dict(minutes=minutes, members=members, mesh=mesh, shard_optimizer=shard_optimizer, timeout=timeout)
        lists = dict(metrics=metrics, categorical=categorical, ignore=ignore)
        given = read_config(config) if config else {}
        given |= said(**flags, task=task, encoding=encoding, router=router, device=device, precision=precision)
        given |= {name: [column.strip() for column in value.split(",")] for name, value in said(**lists).items()}
        resolved = resolve(given)
        among = several_ranks(resolved, debug)
        if out is None or not (out / "config.json").is_file():
            named = [*resolved.metrics, *resolved.categorical, *resolved.ignore]
            if resolved.model == "transformer":
                check_text(resolved.data, [*([resolved.target] if resolved.target else []), *named])
            else:
                check(resolved.data, resolved.target, named)
            check_device(Device(resolved.device))
        if "data" in given and synthetic_options(resolved.data) is None:
            given["data"] = os.path.abspath(resolved.data)  # whatever folder it is resumed in
        if among:
            record, run = train_on_ranks(resolved, out, given, resume, debug)
            if record is None:
                return
        else:
            run = start(out, given, resume)
            check_device(Device(run.config.device))
            with lock(run):
                record = train_alone(run, debug)
        show_scores(record, run.path, console_for(json))
        from json import dumps

        write(record, dumps(record, indent=1), json)
