"""Options that several commands share, with their help, and exit codes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

EXIT = {"proven": 0, "refuted": 1, "inconclusive": 3}
STOPPED, INTERRUPTED = 1, 130


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


Seed = Annotated[int, typer.Option(help="Random seed; the same seed gives the same results.")]
NoSeed = Annotated[int, typer.Option("--seed", hidden=True)]  # accepted everywhere, shown where something is random
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write a JSON record; - for standard output.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML report.")]
ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="TOML or JSON file with options; flags override it.")
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="synthetic|FILE",
        help="A CSV or Parquet file, or the synthetic set: synthetic:regimes=N,rows=N. Default: synthetic.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `gradproof train`.")]
TargetColumn = Annotated[str | None, typer.Option(metavar="COL", help="The column to predict.")]
Ignore = Annotated[str | None, typer.Option(metavar="COLS", help="Columns to ignore: a,b,c. Default: none.")]


def said(**flags: Any) -> dict[str, Any]:
    """The flags that were given, as plain values."""
    return {name: getattr(value, "value", value) for name, value in flags.items() if value is not None}
