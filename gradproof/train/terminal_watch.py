"""Shows a training run: a bar on a terminal, lines elsewhere, and the table at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONGEST = 30  # characters of a class name in a table's header


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


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _validated(record: dict[str, Any]) -> str:
    """What a validation came to; empty where there was none."""
    if "validation_rmse" in record:
        return f"RMSE {record['validation_rmse']:.4g}"
    if "validation_bits_per_byte" in record:
        return f"{record['validation_bits_per_byte']:.3f} bits/byte"
    return f"{record['validation_accuracy']:.2%}" if "validation_accuracy" in record else ""


def _scored_on(test: dict[str, Any]) -> str:
    """On how many rows, and which class fares worst; older records do not know. Of numbers, what intervals cover."""
    if "coverage" in test:
        covered = f"its {test['covered']:.0%} intervals cover {test['coverage']:.1%} and are {test['width']:.4g} wide"
        return f"scored on {test['rows']:,} rows; {covered} on average; log likelihood {test['log_likelihood']:.4f}"
    if "worst_class" not in test:
        return f"scored on {test['rows']:,} rows"
    lowest = test["worst_class"]
    recall = f"recall {lowest['recall']:.2%} on its {lowest['support']:,} rows"
    return f"scored on {test['rows']:,} rows; worst class {lowest['name']!r}: {recall}"


def _numbers_table(scores: list[dict[str, Any]]) -> Any:
    """The scores of a run that predicts a number."""
    from rich.table import Table

    table = Table("held-out score", "RMSE", "MAE", "R²", "", box=None, pad_edge=False)
    for row in scores:
        figures = _figure(row["rmse"], ".4g"), _figure(row["mae"], ".4g"), _figure(row["r2"], ".2%")
        table.add_row(row["name"], *figures, f"[dim]{row['note']}[/]")
    return table


def _score_table(scores: list[dict[str, Any]]) -> tuple[Any, list[str]]:
    """The scores of decisions, and what is to be said of rows below the table: in 80 columns it has no room."""
    from rich.table import Table

    headers = ("held-out score", "accuracy", "balanced", "AUC", "log loss", "seconds", "train rows")
    keys = {"accuracy": ".2%", "balanced_accuracy": ".2%", "auc": ".4f", "log_loss": ".4f", "seconds": ".1f"}
    table, notes = Table(*headers, box=None, pad_edge=False), []
    for row in scores:
        figures = [_figure(row.get(key), form) for key, form in (*keys.items(), ("rows", ","))]
        if any(figures):
            table.add_row(row["name"], *figures)
        if row["note"] and row.get("rows") is None:  # else the last column says it
            notes.append(f"{row['name']}: {row['note']}")
    return table, notes


def _show_costs(costs: dict[str, Any], path: Path, console: Any) -> None:
    """Where the threshold lies if one kind of mistake costs more, and how to ask for it."""
    from rich.markup import escape
    from rich.table import Table

    name = costs["class"]
    threshold = "threshold for " + escape(repr(_cut(name)))
    table = Table("cost ratio", threshold, "recall", "precision", box=None, pad_edge=False)
    for row in costs["rows"]:
        shares = (_figure(row[key], ".2%") for key in ("recall", "precision"))
        table.add_row(f"{row['ratio']}:1", f"{row['threshold']:.3f}", *shares)
    console.print(table)
    command = f"gradproof predict {shlex.quote(str(path))} --data FILE --costs {shlex.quote(f'{name}=5')}"
    console.print(
        "5:1 means that a missed row costs five times as much as a false alarm. To predict with these costs:",
        style="dim",
    )
    console.print(f"  {command}", style="dim", markup=False, soft_wrap=True)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _text_table(scores: list[dict[str, Any]]) -> Any:
    """The scores of a text: what a byte takes is in the notes."""
    from rich.table import Table

    table = Table("held-out score", "accuracy", "log loss", "", box=None, pad_edge=False)
    for row in scores:
        figures = _figure(row["accuracy"], ".2%"), _figure(row["log_loss"], ".4f")
        table.add_row(row["name"], *figures, f"[dim]{row['note']}[/]")
    return table


def show_scores(record: dict[str, Any], path: Path, console: Any) -> None:
    test = record.get("test")
    if record.get("task") == "regression":
        table, remarks = _numbers_table(record["scores"]), []
    else:
        table, remarks = _score_table(record["scores"]) if test else (_text_table(record["scores"]), [])
    console.print(table)
    for remark in remarks:
        console.print(remark, style="dim", markup=False, soft_wrap=True)
    if test:
        console.print(_scored_on(test), markup=False, soft_wrap=True)
        if costs := test.get("costs"):
            _show_costs(costs, path, console)
    for warning in record.get("warnings", []):
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    for note in record["notes"]:
        console.print(f"  {note}", style="dim", markup=False)
    for sample in record.get("samples", []):
        console.print(f"sample after {sample['prompt']!r}:" if sample["prompt"] else "sample without a prompt:")
        console.print(sample["text"], style="dim", markup=False)
    run = record["run"]
    what = f"windows of {run['inputs']} bytes" if "samples" in record else f"{run['inputs']} inputs"
    name = record["scores"][0]["name"] if run.get("members", 1) > 1 else f"{run['model']} {run['size']}"
    console.print(f"{name} for {what}: {run['parameters']:,} parameters")
    console.print(
        f"{record['status']} after {run['steps']:,} steps in {run['seconds']:.1f} s, best at step {run['best_step']:,}"
    )
    console.print(f"report: {path / 'report.html'}", soft_wrap=True)
