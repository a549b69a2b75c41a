"""`gradproof gate evaluate`. Everything heavy is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradproof.commands.options import INTERRUPTED, Debug, Json, Seed
from gradproof.commands.terminal import check_outputs, console_for, errors, stages, write


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
