"""Looking on at a training run: a bar on a terminal, lines elsewhere, and the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class TerminalWatch:
    """Shows a training run: a bar on a terminal, a line at each validation elsewhere. `unit` is what a row is."""

    unit = "rows"

    def __init__(self, bar: Any):
        self.bar, self.task, self.validated = bar, None, ""

    def say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True) if self.bar is None else self.bar.console.print(
            sentence, markup=False, highlight=False, soft_wrap=True
        )

    def reading(self, done: int, total: int) -> None:
        self._show("reading", done, total, "")

    def training(self, record: dict[str, Any], steps: int) -> None:
        loss = record["loss"] if record["loss_ema"] is None else record["loss_ema"]
        speed = f"{record['rows_per_s']:,.0f} {self.unit}/s"
        if validated := _validated(record):
            self.validated = f"  validation {validated}"
            if self.bar is None:
                line = f"step {record['step']:>6} of {steps}  loss {loss:.4f}  lr {record['lr']:.1e}  {speed}"
                self.say(line + self.validated)
        self._show("training", record["step"], steps, f"loss {loss:.4f}  {speed}{self.validated}")

    def _show(self, what: str, done: int, total: int, figures: str) -> None:
        if self.bar is None:
            return
        if self.task is None:
            self.task = self.bar.add_task(what, figures=figures)
        self.bar.update(self.task, description=what, completed=done, total=total, figures=figures)


@contextmanager
def watching() -> Iterator[TerminalWatch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield TerminalWatch(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        yield TerminalWatch(bar)


def _validated(record: dict[str, Any]) -> str:
    """What a validation came to; empty where there was none."""
    if "validation_rmse" in record:
        return f"RMSE {record['validation_rmse']:.4g}"
    if "validation_bits_per_byte" in record:
        return f"{record['validation_bits_per_byte']:.3f} bits/byte"
    return f"{record['validation_accuracy']:.2%}" if "validation_accuracy" in record else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def _scored_on(test: dict[str, Any]) -> str:
    """On how many rows, and which class fares worst; older records do not know. Of numbers, what intervals cover."""
    if "coverage" in test:
        covered = f"its {test['covered']:.0%} intervals cover {test['coverage']:.1%} and are {test['width']:.4g} wide"
        return f"scored on {test['rows']:,} rows; {covered} on average; log likelihood {test['log_likelihood']:.4f}"
    if "worst_class" not in test:
        return f"scored on {test['rows']:,} rows"
    lowest = test["worst_class"]
    recall = f"{lowest['recall']:.2%} of its {lowest['support']:,} rows found"
    return f"scored on {test['rows']:,} rows; worst class {lowest['name']!r}: {recall}"


def _classes_table(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Names and rows of figures."""
    balanced = ["balanced"] if record.get("test") else []
    rows = []
    for row in record["scores"]:
        figures = [_percent(row.get(figure)) for figure in ("accuracy", "balanced_accuracy")[: 1 + len(balanced)]]
        rows.append([*figures, f"{row['log_loss']:.4f}" if row["log_loss"] is not None else ""])
    return ["accuracy", *balanced, "log loss"], rows


def _numbers_table(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The same of a run that predicts a number."""
    rows = [
        [*("" if row[name] is None else f"{row[name]:.4g}" for name in ("rmse", "mae")), _percent(row["r2"])]
        for row in record["scores"]
    ]
    return ["RMSE", "MAE", "R²"], rows


def show_scores(record: dict[str, Any], path: Path, console: Any) -> None:
    from rich.table import Table

    test = record.get("test")
    names, rows = _numbers_table(record) if record.get("task") == "regression" else _classes_table(record)
    table = Table("held-out score", *names, "", box=None, pad_edge=False)
    for row, figures in zip(record["scores"], rows, strict=True):
        table.add_row(row["name"], *figures, f"[dim]{row['note']}[/]")
    console.print(table)
    if test:
        console.print(_scored_on(test), markup=False, soft_wrap=True)
    for warning in record.get("warnings", []):
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    for note in record["notes"]:
        console.print(f"  {note}", style="dim", markup=False)
    for sample in record.get("samples", []):
        console.print(f"after {sample['prompt']!r} it writes:" if sample["prompt"] else "from nothing it writes:")
        console.print(sample["text"], style="dim", markup=False)
    run = record["run"]
    what = f"windows of {run['inputs']} bytes" if "samples" in record else f"{run['inputs']} inputs"
    console.print(f"{run['model']} {run['size']} for {what}: {run['parameters']:,} parameters")
    console.print(
        f"{record['status']} after {run['steps']:,} steps in {run['seconds']:.1f} s, best at step {run['best_step']:,}"
    )
    console.print(f"report: {path / 'report.html'}", soft_wrap=True)
