"""What the commands share: how errors end them, progress, where records go, and the tables on the terminal."""

from __future__ import annotations

import math
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gradproof.precision.diagnose import Diagnosis
    from gradproof.precision.verdict import FormatVerdict
    from gradproof.proof.verdict import Report

COULD_NOT_START = 2
COLOURS = {"proven": "green", "refuted": "bold red", "inconclusive": "yellow", "unused": "dim"}
COLOURS |= {"bug": "bold red", "overflow": "red", "underflow": "red", "routing": "magenta"}
COLOURS |= {"noise": "green", "clean": "green"}


@contextmanager
def errors(debug: bool) -> Iterator[None]:
    """Bad input is one sentence and exit code 2; --debug shows where it came from. What nobody foresaw is no verdict
    either: it must not leave with the exit code of `refuted`."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"gradproof: {sentence(error)}", file=sys.stderr)
        raise typer.Exit(COULD_NOT_START) from None


def sentence(error: Exception) -> str:
    """An error in one sentence."""
    said = " ".join(str(error).split())
    return said if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {said} (--debug shows where)"


def check_outputs(json: str | None, html: Path | None) -> None:
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


def check_device(device: str) -> None:
    """Refuses a device that is not here."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no CUDA device here; use --device cpu")


def write(record: dict[str, Any], text: str, json: str | None, html: Path | None = None, template: str = "") -> None:
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


def console_for(json: str | None) -> Any:
    from rich.console import Console

    return Console(stderr=json == "-", highlight=False)


@contextmanager
def progress_of(what: str) -> Iterator[Any]:
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


@contextmanager
def stages() -> Iterator[Any]:
    """What is being done: a line that changes on a terminal, a line for each stage elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            yield lambda what: status.update(what)
        return
    shown = ""

    def line(what: str) -> None:
        nonlocal shown
        stage = re.sub(r" \d+ of \d+.*", "", what)
        if stage != shown:
            shown = stage
            print(stage, file=sys.stderr, flush=True)

    yield line


def show_diagnosis(diagnosis: Diagnosis, console: Any, most: int = 8) -> None:
    """The formats, the tensors that stand out in the worst of them, and the answer."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("format", "verdict", "error", "noise", "flips", "run", box=None, pad_edge=False)
    for p in diagnosis.precisions:
        flips = f"{p.routing.flips} of {p.routing.decisions}" if p.routing.decisions else ""
        run = "simulated only" if p.simulated_only else f"{p.policy} on {diagnosis.device}"
        run += f", loss scale 2^{math.log2(p.scale):.0f}" if p.scale != 1 else ""
        table.add_row(p.format, _coloured(p.verdict), _figure(p.rel_error), _figure(p.noise), flips, run)
    console.print(table)
    worst = diagnosis.worst
    if worst is not None:
        console.print(f"\nin {worst.format}:", style="dim")
        console.print(_judged_table(worst, most))
    for note in diagnosis.notes:
        console.print(f"  {escape(note)}", style="dim")
    console.print(f"{_coloured(diagnosis.verdict)}: {escape(diagnosis.summary)}", soft_wrap=True)


def show_diagnose_bench(record: dict[str, Any], console: Any) -> None:
    """The overheads, or the large module beside a plain step."""
    from rich.table import Table

    if "large" in record:
        step, whole = record["large"]["step"], record["large"]["diagnose"]
        console.print(
            f"{whole['parameters']:,} parameters, 512 tokens: {whole['verdict']} in {whole['seconds']:.0f} s with "
            f"{whole['replicas']} replicas a format; {in_bytes(whole['bytes'])}, {record['large']['memory_ratio']:.2f} "
            f"times a float64 step's {in_bytes(step['bytes'])} ({step['seconds']:.1f} s)",
            soft_wrap=True,
        )
        return
    ways = ("plain", "watched", "nearest", "stochastic")
    table = Table("op", *ways, "overhead", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in record["overheads"]:
        added = f"{each['nearest'] - each['plain']:.0f} µs"
        table.add_row(each["op"], *(f"{each[way]:.0f}" for way in ways), added)
    console.print(table)
    console.print(f"microseconds a call on [{record['rows']}, 128], medians, interleaved", style="dim")
    found = record["nano"]
    console.print(
        f"nano, {found['rows']} rows, {found['formats']} formats, {found['replicas']} replicas each: "
        f"{found['verdict']} in {found['seconds']:.1f} s",
        soft_wrap=True,
    )


def _judged_table(worst: FormatVerdict, most: int) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("tensor", "verdict", "norm ratio", "cosine", "error", "noise", "z", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    judged = sorted((*worst.parameters, *worst.inputs), key=lambda j: -j.z if j.z == j.z else 0.0)
    for j in judged[:most]:
        ratio, cosine = ("" if x != x else f"{x:.4g}" for x in (j.norm_ratio, j.cosine))
        figures = (ratio, cosine, _figure(j.rel_error), _figure(j.noise), f"{j.z:.1f}")
        table.add_row(escape(j.name), _coloured(j.verdict), *figures)
    if len(judged) > most:
        table.add_row(f"and {len(judged) - most} more", style="dim")
    return table


def _coloured(word: str) -> str:
    return f"[{COLOURS[word]}]{word}[/]"


def show_report(report: Report, console: Any, by_tensor: bool) -> None:
    from rich.markup import escape

    console.print(_tensor_table(report) if by_tensor else _subject_table(report))
    if report.mutants is not None:
        console.print(_mutant_table(report))
    if report.kernels:
        console.print(_kernel_table(report.kernels))
    for subject in report.subjects if by_tensor else []:
        for note in subject.notes:
            console.print(f"  {escape(note)}", style="dim")
        console.print(f"  {subject.forwards} forwards, one backward", style="dim")
    console.print(f"{_coloured(report.status)}: {escape(report.summary)}", soft_wrap=True)


def _kernel_table(kernels: list[dict[str, Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("kernel", "of", "dtype", "", "claims", "", box=None, pad_edge=False, title_justify="left")
    colours = {"admitted": "green", "refused": "red", "missing": "dim"}
    for each in kernels:
        status = f"[{colours[each['status']]}]{each['status']}[/]"
        claims = str(each["claims"] or "")
        table.add_row(each["kernel"], each["op"], each["dtype"], status, claims, escape(each["reason"]))
    return table


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
            status = _coloured(j.status)
            table.add_row(kind, escape(j.name), status, _figure(j.error), _figure(j.bound), _figure(j.resolution))
    return table


def _subject_table(report: Report) -> Any:
    from rich.table import Table

    table = Table("subject", "status", "tensors", "claims", "resolution", box=None, pad_edge=False)
    for subject in report.subjects:
        judged = [*subject.parameters, *subject.inputs]
        finest = max((j.resolution for j in judged if j.resolution), default=None)
        status = _coloured(subject.status)
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


def sizes_table(listed: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    parts = {"weights": "weights", "gradients": "grads", "moments": "moments", "activations": "activated"}
    parts |= {"working": "working", "total": "total"}
    table = Table("size", "parameters", *parts.values(), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for cost in listed:
        table.add_row(cost["name"], f"{cost['parameters']:,}", *(_in_mebibytes(cost[part]) for part in parts))
    return table


def _in_mebibytes(amount: int) -> str:
    """Without the unit, so that a table with long names fits on a terminal of 80 columns."""
    return f"{amount / 2**20:,.{0 if amount >= 100 * 2**20 else 1}f}"


def in_bytes(amount: int) -> str:
    return f"{amount / 2**30:.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"
