"""The command line. Everything heavy is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gradproof.proof.verdict import Report, SubjectVerdict

EXIT = {"proven": 0, "refuted": 1, "inconclusive": 3}
COULD_NOT_START = 2
COLOURS = {"proven": "green", "refuted": "bold red", "inconclusive": "yellow", "unused": "dim"}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Decision models with explicit backward passes, and the proof that they are right.",
    epilog="Exit codes: 0 done or proven, 1 refuted, 2 could not start, 3 inconclusive, 130 interrupted.",
)


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


Seed = Annotated[int, typer.Option(help="Seeds every random choice; the same seed gives the same figures.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the record; - for standard output.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to look at.")]


@app.command()
def verify(
    case: Annotated[
        str | None,
        typer.Argument(metavar="CASE", help="Your own code: `path/to/file.py:function` or `package.module:function`."),
    ] = None,
    op: Annotated[list[str] | None, typer.Option("--op", help="One of Gradproof's ops; may be repeated.")] = None,
    model: Annotated[list[str] | None, typer.Option("--model", help="moe or dense; may be repeated.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also plant wrong backwards; each must be refuted.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Case: the joint screen alone. Ops: without differences.")
    ] = False,
    json: Json = None,
    html: Html = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Is the backward pass right?

    Without a CASE, proves every op and model of Gradproof. With one, judges your own `nn.Module`: the function takes
    nothing and returns `(module, inputs)`; the gradients of its parameters and floating inputs are held against
    differences of its forward.

    Examples:

        gradproof verify

        gradproof verify my_model.py:case --html report.html

        gradproof verify --op layernorm --mutants
    """
    with _errors(debug):
        _check_outputs(json, html)
        if case is not None and (op or model or mutants):
            raise ValueError("give either a CASE or --op/--model/--mutants, not both")
        _check_device(device)
        if case is not None:
            report = _verify_case(case, device, quick, seed)
        else:
            report = _verify_own(op, model, device, mutants, quick, seed)
        _show(report, _console(json), case is not None)
        _write(report.to_dict(), report.to_json(), json, html, "verify.html")
        raise typer.Exit(EXIT[report.status])


def _verify_case(case: str, device: Device, quick: bool, seed: int) -> Report:
    from gradproof.proof.case import load_case
    from gradproof.proof.module import verify

    target = "cuda" if device is Device.cuda else None
    # What the user's code prints must not get into the record on standard output.
    with redirect_stdout(sys.stderr), _progress("judging each tensor") as progress:
        loaded = load_case(case)
        return verify(loaded.module, loaded.inputs, quick=quick, seed=seed, device=target, name=case, progress=progress)


def _verify_own(
    ops: list[str] | None, models: list[str] | None, device: Device, mutants: bool, quick: bool, seed: int
) -> Report:
    import torch

    from gradproof.models.subject import FAMILIES, family, judge_model
    from gradproof.models.wrong_backwards import MUTANTS as OF_MODELS
    from gradproof.ops import NAMES, load
    from gradproof.proof.judge import judge_op
    from gradproof.proof.mutants import run
    from gradproof.proof.verdict import Report
    from gradproof.proof.wrong_backwards import MUTANTS as OF_OPS

    torch.set_num_threads(1)  # small tensors: a second thread gains nothing, and waits where a core is busy
    chosen: list[str] = list(dict.fromkeys([*(ops or []), *(models or [])])) or [*NAMES, *FAMILIES]

    def judge(name: str) -> Iterator[SubjectVerdict]:
        if name in FAMILIES:
            yield from judge_model(name, seed=seed, device=device.value, quick=quick)
        else:
            yield judge_op(load(name), seed=seed, device=device.value, quick=quick)

    for name in models or []:
        family(name)
    for name in ops or []:
        load(name)
    with _progress("proving") as progress:
        subjects = []
        for done, name in enumerate(chosen):
            progress(done, len(chosen))
            subjects += judge(name)
    if not mutants:
        return Report(subjects, device=device.value)
    planted = [mutant for mutant in (*OF_OPS, *OF_MODELS) if mutant.subject in chosen]
    with _progress("planting mutants") as progress:
        found = []
        for verdict in run(planted, judge):
            found.append(verdict)
            progress(len(found), len(planted))
    return Report(subjects, found, device.value)


@app.command()
def sizes(
    rows: Annotated[int, typer.Option(help="Rows in a batch, for the activations.", min=1)] = 8192,
    json: Json = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """The named sizes and their memory: weights, gradients, AdamW's moments, and the activations of one forward."""
    with _errors(debug):
        from json import dumps

        from rich.table import Table

        from gradproof.models.sizes import costs

        _check_outputs(json, None)
        found = costs(rows)
        record = {"rows": rows, "sizes": [{**cost._asdict(), "total": cost.total} for cost in found]}
        _write(record, dumps(record, indent=1), json, None, "")
        table = Table(
            "size", "parameters", "weights", "gradients", "moments", "activations", "total", box=None, pad_edge=False
        )
        for column in table.columns[1:]:
            column.justify = "right"
        for cost in found:
            amounts = (cost.weights, cost.gradients, cost.moments, cost.activations, cost.total)
            table.add_row(cost.name, f"{cost.parameters:,}", *map(_bytes, amounts))
        _console(json).print(table)
        _console(json).print(f"fp32; activations of one forward of {rows:,} rows (--rows)", style="dim")


def _bytes(amount: int) -> str:
    return f"{amount / 2**30:.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"


# What the commands share.


def main() -> None:
    """The console script. Typer itself exits with 130 when interrupted."""
    app()


@contextmanager
def _errors(debug: bool) -> Iterator[None]:
    """Bad input is one sentence and exit code 2; --debug shows where it came from. What nobody foresaw is no verdict
    either: it must not leave with the exit code of `refuted`."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        foreseen = isinstance(error, (ValueError, OSError))
        sentence = " ".join(str(error).split())
        said = sentence if foreseen else f"{type(error).__name__}: {sentence} (--debug shows where)"
        print(f"gradproof: {said}", file=sys.stderr)
        raise typer.Exit(COULD_NOT_START) from None


def _check_outputs(json: str | None, html: Path | None) -> None:
    """Refuses a place that cannot be written before any work is done."""
    files = [Path(json)] if json is not None and json != "-" else []
    files += [html] if html is not None else []
    for file in files:
        if file.is_dir():
            raise ValueError(f"{file} is a directory; name a file in it")
        existing = next(parent for parent in file.absolute().parents if parent.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK)) or existing.is_relative_to("/proc"):
            raise ValueError(f"{file} cannot be written: {existing} is no folder that may be written to")
    if len({file.absolute() for file in files}) < len(files):
        raise ValueError(f"--json and --html both name {html}; give each its own file")


def _check_device(device: Device) -> None:
    if device is Device.cuda:
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no CUDA device here; use --device cpu")


def _write(record: dict[str, Any], text: str, json: str | None, html: Path | None, template: str) -> None:
    if json == "-":
        print(text)
    elif json:
        Path(json).parent.mkdir(parents=True, exist_ok=True)
        Path(json).write_text(text + "\n")
    if html:
        from gradproof.report.page import render

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(render(template, record))
        print(f"page: {html}", file=sys.stderr)


def _console(json: str | None) -> Any:
    from rich.console import Console

    return Console(stderr=json == "-", highlight=False)


@contextmanager
def _progress(what: str) -> Iterator[Any]:
    """A bar on a terminal, a line at each tenth elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(what)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    shown = -1

    def line(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown and total >= 10:
            shown = tenth
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

    yield line


def _show(report: Report, console: Any, by_tensor: bool) -> None:
    from rich.markup import escape

    console.print(_tensor_table(report) if by_tensor else _subject_table(report))
    if report.mutants is not None:
        console.print(_mutant_table(report))
    for subject in report.subjects if by_tensor else []:
        for note in subject.notes:
            console.print(f"  {escape(note)}", style="dim")
        console.print(f"  {subject.forwards} forwards, one backward", style="dim")
    console.print(f"[{COLOURS[report.status]}]{report.status}[/]: {escape(report.summary)}", soft_wrap=True)


def _tensor_table(report: Report) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "tensor", "status", "error", "bound", "resolution", box=None, pad_edge=False)
    table.columns[1].overflow = "fold"
    for column in table.columns[2:]:
        column.no_wrap = True
    for subject in report.subjects:
        rows = [("parameter", j) for j in subject.parameters] + [("input", j) for j in subject.inputs]
        order = ["refuted", "inconclusive", "proven", "unused"]
        for kind, j in sorted(rows, key=lambda row: order.index(row[1].status)):
            status = f"[{COLOURS[j.status]}]{j.status}[/]"
            table.add_row(kind, escape(j.name), status, _figure(j.error), _figure(j.bound), _figure(j.resolution))
    return table


def _subject_table(report: Report) -> Any:
    from rich.table import Table

    table = Table("subject", "status", "tensors", "claims", "resolution", box=None, pad_edge=False)
    for subject in report.subjects:
        judged = [*subject.parameters, *subject.inputs]
        finest = max((j.resolution for j in judged if j.resolution), default=None)
        status = f"[{COLOURS[subject.status]}]{subject.status}[/]"
        table.add_row(subject.name, status, str(len(judged)), str(len(subject.evidence)), _figure(finest))
    return table


def _mutant_table(report: Report) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("mutant", "status", "refuted by", "in", "tensor", box=None, pad_edge=False)
    for m in report.mutants or []:
        status = "[green]refuted[/]" if m.status == "refuted" else "[bold red]survived[/]"
        table.add_row(escape(m.name), status, m.claim or "", m.subject, escape(m.parameter or ""))
    return table


def _figure(number: float | None) -> str:
    return "" if number is None or number != number else f"{number:.1e}"
