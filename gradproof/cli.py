"""The command line: assembles the commands.

Each command is a file of `gradproof/commands`; everything heavy is imported inside it, so that --help answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gradproof.commands.ablate import ablate
from gradproof.commands.bench import bench
from gradproof.commands.diagnose import diagnose
from gradproof.commands.doctor import doctor
from gradproof.commands.export import export
from gradproof.commands.gate import app as gate
from gradproof.commands.predict import predict
from gradproof.commands.serve import serve
from gradproof.commands.sizes import sizes
from gradproof.commands.train import train
from gradproof.commands.usage import Commands, DocumentedCommand
from gradproof.commands.verify import verify
from gradproof.version import __version__

app = typer.Typer(
    name="gradproof",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Decision models with explicit backward passes, and the proof that they are right.",
    epilog="Exit codes: 0 done or proven, 1 refuted or stopped, 2 could not start, 3 inconclusive, 130 interrupted.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"gradproof {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Decision models with explicit backward passes, and the proof that they are right."""


app.add_typer(gate, name="gate")
for command in (verify, train, ablate, predict, serve, export, diagnose, bench, sizes, doctor):  # as --help lists them
    app.command(cls=DocumentedCommand)(command)


def main() -> None:
    """The console script. Typer itself exits with 130 when interrupted."""
    app()
