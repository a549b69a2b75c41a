"""Shared by all commands: errors, progress, output files, and formatting."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
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
    if isinstance(error, OSError) and error.strerror:
        # A file is written aside first; the name that the user gave is the one to tell.
        written = re.sub(r"\.partial-([^/]+?)(-[a-z0-9_]{8})?(/[^/]*)?$", r"\1", os.fsdecode(error.filename or ""))
        reason = error.strerror[0].lower() + error.strerror[1:]
        return f"{written}: {reason}" if written else reason
    said = " ".join(str(error).split())
    return (
        said
        if isinstance(error, (ValueError, OSError))
        else f"{type(error).__name__}: {said} (--debug shows the traceback)"
    )


def check_outputs(json: str | None, html: Path | None, *others: Path | None) -> None:
    """Refuses a file that cannot be written before any work is done."""
    files = [Path(json)] if json is not None and json != "-" else []
    files += [file for file in (html, *others) if file is not None]
    for file in files:
        if file.is_dir():
            raise ValueError(f"{file} is a directory; name a file in it")
        if file.exists() and not os.access(file, os.W_OK):
            raise ValueError(f"cannot write {file}: permission denied")
        if not file.exists() or file.is_file():
            _check_place(file, file.absolute().parent)
    for file in files:
        if [other.absolute() for other in files].count(file.absolute()) > 1:
            raise ValueError(f"two options name the same file, {file}; give each its own")


def check_folder(folder: Path | None) -> None:
    """Refuses a folder that is not there and cannot be made, or that cannot be written to."""
    if folder is not None and not folder.is_file():  # each command says what else it expects than a file
        _check_place(folder, folder.absolute())


def _check_place(given: Path, folder: Path) -> None:
    """Tries to write where `given` will be made: as root, on a read-only disk and in /proc permissions tell nothing."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir():
        raise ValueError(f"cannot write {given}: {existing} is a file, not a folder")
    if existing != folder and existing == existing.parent:
        first = folder.relative_to(existing).parts[0]
        raise ValueError(f"cannot write {given}: {existing / first} does not exist; create it first")
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        # The file systems of the kernel answer "no such file" to an attempt to make one.
        reason = "permission denied" if error.strerror in (None, os.strerror(errno.ENOENT)) else error.strerror.lower()
        raise ValueError(f"cannot write {given}: {existing}: {reason}") from None


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
        print(f"report: {html}", file=sys.stderr)


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
        stage = re.sub(r":? \d+ of \d+.*", "", what)
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
