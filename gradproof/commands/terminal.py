"""What the commands share: how errors end them, progress, where records go, and how words and figures look."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

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


def coloured(word: str) -> str:
    """A verdict in its colour, as rich's markup."""
    return f"[{COLOURS[word]}]{word}[/]"


def figure(number: float | None) -> str:
    """Two digits and an exponent; nothing for nothing and for NaN."""
    return "" if number is None or number != number else f"{number:.1e}"


def in_bytes(amount: int) -> str:
    """In MiB or GiB."""
    return f"{amount / 2**30:.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"
