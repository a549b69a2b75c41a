"""`gradproof gate evaluate`. Everything heavy is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradproof.commands.options import INTERRUPTED, Debug, Json, Seed
from gradproof.commands.terminal import check_outputs, console_for, errors, stages, write


def evaluate(
    data: Annotated[list[Path], typer.Option("--data", metavar="FILE.jsonl", help="Labelled calls; repeatable.")],
    folds: Annotated[int | None, typer.Option(help="Number of folds for cross-validation. Default: 5.", min=2)] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Replay the calls in order and correct mistakes, with and without learning."),
    ] = False,
    train: Annotated[
        list[Path] | None,
        typer.Option("--train", metavar="FILE.jsonl", help="Stream: labelled calls for the first model; repeatable."),
    ] = None,
    delay: Annotated[int, typer.Option(help="Stream: calls between a mistake and its correction.", min=0)] = 0,
    share: Annotated[float, typer.Option(help="Stream: share of mistakes that are corrected.")] = 1.0,
    equal: Annotated[
        bool,
        typer.Option("--equal-form", help="First rewrite each call as one line, without shebangs, comments or #{x}."),
    ] = False,
    leave_source_out: Annotated[
        bool, typer.Option("--leave-source-out", help="Score each --data with a gate trained on the others only.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(help="Folds: number of repetitions, each with other folds and initial weights.", min=1)
    ] = 1,
    json: Json = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML report.")] = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Measure how well the gate would do on labelled calls.

    By default, cross-validates: each fold is scored by a gate trained on the others, and by a logistic regression on
    character n-grams for comparison; near-duplicates stay in one fold. With --stream, decides one call after another
    and corrects mistakes, with and without learning. The report gives the recall of block at a given percentage of good
    calls blocked.

    \b
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
