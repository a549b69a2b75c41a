"""Shared by the gate's commands: the store, the warning about its location, and the status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradproof.commands.terminal import console_for, write
from gradproof.gate.place import default_folder, warning

if TYPE_CHECKING:
    from gradproof.gate.store import Store


StoreFolder = Annotated[
    Path,
    typer.Option(
        "--store",
        metavar="DIR",
        envvar="GRADPROOF_GATE",
        default_factory=default_folder,
        show_default=False,
        help="Folder of the gate. Default: $XDG_STATE_HOME/gradproof/gates/default.",
    ),
]


def warn(store: Path) -> None:
    """What commands that change the gate say of a store within an agent's reach."""
    if said := warning(store):
        print(f"gradproof: warning: {said}", file=sys.stderr, flush=True)


@contextmanager
def opened_store(kind: Any, folder: Path) -> Iterator[Store]:
    store = kind(folder)
    try:
        yield store
    finally:
        store.close()


def show_status(record: dict[str, Any], json: str | None) -> None:
    from json import dumps

    from gradproof.gate.status import lines

    write(record, dumps(record, indent=1), json)
    for line in lines(record):
        console_for(json).print(line, markup=False, soft_wrap=True)
