"""`gradproof export`. Everything heavy is imported inside."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gradproof.commands.options import STOPPED, Debug, Json, NoSeed, RunFolder
from gradproof.commands.terminal import check_outputs, errors, in_bytes, write


class FormatOption(StrEnum):
    onnx = "onnx"
    torch = "torch"


def export(
    run: RunFolder,
    format: Annotated[FormatOption, typer.Option(help="ONNX, or a torch.export program (.pt2).")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Export a run as one file that runs without Gradproof.

    The file holds the encoding of a row, all members of an ensemble, their average and the temperature. It takes codes
    (names as integers, int64) and numbers (float64, NaN if missing), and returns probabilities, and metrics if the run
    has them. The metadata of the file maps names to codes. A Python example that calls the file is printed.

    The file is checked on the test rows of the run (at most 5,000). If a probability differs by 1e-5 or more, nothing
    is written and the exit code is 1.

    \b
    Examples:
      gradproof export runs/loans --format onnx --out loans.onnx
      gradproof export runs/loans --format torch --out loans.pt2
    """
    with errors(debug):
        from dataclasses import asdict
        from json import dumps

        from gradproof.export.checked_file import Differs
        from gradproof.export.checked_file import export as export_run

        check_outputs(json, None, out)
        try:
            checked = export_run(run, format.value, out)
        except Differs as differs:
            print(f"gradproof: {differs}", file=sys.stderr)
            raise typer.Exit(STOPPED) from None
        ties = f" ({checked.near_ties} left out: nearly tied experts)" if checked.near_ties else ""
        print(
            f"{checked.out}: {in_bytes(checked.bytes)}; largest difference of probabilities on {checked.rows:,} test "
            f"rows{ties}: {checked.difference:.1e}",
            file=sys.stderr,
        )
        if json != "-":
            print(checked.lesson)
        write(asdict(checked), dumps(asdict(checked), indent=1), json)
