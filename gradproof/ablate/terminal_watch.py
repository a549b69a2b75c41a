"""Shows the runs of a study: bars on a terminal, a line per finished run elsewhere, and the table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradproof.ablate.unit import Unit


class TerminalStudyWatch:
    """`bar` is None where there is no terminal."""

    def __init__(self, bar: Any, done: int, total: int):
        self.bar, self.done, self.total, self.tasks = bar, done, total, {}
        self.begun, self.before = time.monotonic(), done
        if bar is not None:
            self.whole = bar.add_task("all runs", completed=done, total=total, figures="")

    def started(self, unit: Unit) -> None:
        if self.bar is not None:
            self.tasks[unit.name] = self.bar.add_task(f"  {unit.name}", total=None, figures="")

    def moved(self, unit: Unit, done: int, total: int) -> None:
        if self.bar is not None:
            self.bar.update(self.tasks[unit.name], completed=done, total=total)

    def ended(self, unit: Unit, result: dict[str, Any]) -> None:
        self.done += 1
        outcome = "diverged" if "diverged" in result else f"validation {result['validation']['accuracy']:.2%}"
        figures = f"{outcome} in {result['seconds']:.1f} s"
        if self.bar is None:
            print(f"[{self.done} of {self.total}] {unit.name}: {figures}", file=sys.stderr, flush=True)
            return
        self.bar.remove_task(self.tasks.pop(unit.name))
        seconds_per_run = (time.monotonic() - self.begun) / (self.done - self.before)
        left = seconds_per_run * (self.total - self.done)
        last = f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"
        self.bar.update(self.whole, completed=self.done, figures=f"{self.done} of {self.total}, {last}")


@contextmanager
def watching(done: int, total: int) -> Iterator[TerminalStudyWatch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield TerminalStudyWatch(None, done, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn())
    with Progress(*columns, TextColumn("{task.fields[figures]}"), console=console, transient=True) as bar:
        yield TerminalStudyWatch(bar, done, total)


def show_study(record: dict[str, Any], console: Any) -> None:
    """The table, the other comparisons of families, and the answer."""
    from rich.table import Table

    heads = ("contestant", "accuracy (95% CI)", "parameters", "active", "MFLOP/row", "seconds")
    table = Table(*heads, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in record["rows"]:
        accuracy = row["accuracy"]
        # The width of the margin is kept where there is none, so that the means stand below one another.
        margin = " " * 6 if accuracy["margin"] is None else f" ± {100 * accuracy['margin']:.1f}"
        counts = ["" if row[name] is None else f"{row[name]:,}" for name in ("total", "active")]
        flops = "" if row["flops"] is None else f"{row['flops'] / 1e6:,.3g}"
        score = f"{accuracy['mean']:.2%}{margin}"
        table.add_row(row["label"], score, *counts, flops, f"{row['seconds']:.1f}")
    for name, label in (("majority", "majority class"), ("bayes", "best possible")):
        if record["study"][name] is not None:
            table.add_row(label, f"{record['study'][name]:.2%}{' ' * 6}")
    console.print(table)
    if any(row["accuracy"]["margin"] is None for row in record["rows"]):
        console.print("  No intervals: they need three seeds or more (--seeds 5).", style="dim")
    for note in record["notes"]:
        console.print(f"  {note}", style="dim", markup=False)
    for answer in record["answers"][1:]:
        console.print(f"{answer}.", soft_wrap=True, markup=False)
    console.print(record["summary"], soft_wrap=True, markup=False, style="bold")


def show_budgets(listed: Sequence[dict[str, Any]], console: Any) -> None:
    """The solved configurations of a preview."""
    from rich.table import Table

    table = Table("family", "parameters", "active", "MFLOP/row", "off", "shape", box=None, pad_edge=False)
    for column in table.columns[1:5]:
        column.justify = "right"
    for solved in listed:
        counts = [f"{solved[name]:,}" for name in ("total", "active")]
        shape = ", ".join(f"{name} {value}" for name, value in solved["shape"].items())
        table.add_row(solved["family"], *counts, f"{solved['flops'] / 1e6:,.3g}", f"{solved['off']:+.2%}", shape)
    console.print(table)
    for solved in listed:
        if solved["note"]:
            console.print(f"  {solved['note']}", style="dim", markup=False)
