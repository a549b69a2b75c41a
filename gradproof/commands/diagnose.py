"""`gradproof diagnose`. Everything heavy is imported inside."""

from __future__ import annotations

import math
import sys
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradproof.commands.options import EXIT, Debug, Device, Html, Json, Seed
from gradproof.commands.terminal import (
    check_device,
    check_outputs,
    coloured,
    console_for,
    errors,
    figure,
    stages,
    write,
)

if TYPE_CHECKING:
    from gradproof.diagnosis.diagnose import Diagnosis
    from gradproof.diagnosis.verdict import FormatVerdict


class CastOption(StrEnum):
    cast = "cast"
    autocast = "autocast"


def diagnose(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CASE",
            help="The folder of a run, or your own code: `path/to/file.py:function` or `module:function`.",
        ),
    ],
    precisions: Annotated[
        str, typer.Option(metavar="FORMATS", help="bf16, fp16, fp8_e4m3, fp8_e5m2, tf32, fp32, or eXmY, such as e5m7.")
    ] = "bf16,fp16,fp8_e4m3",
    policy: Annotated[
        CastOption | None,
        typer.Option(
            help="Case: cast the module, or use autocast. Default: cast, or autocast if the module"
            " does not run when cast."
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = Device.cpu,
    fail_on: Annotated[
        str,
        typer.Option(metavar="VERDICTS", help="Exit with 1 if a format has one of these verdicts; none disables it."),
    ] = "bug,overflow",
    json: Json = None,
    html: Html = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Tell rounding noise from bugs in a low-precision run.

    Runs the same state and input in float64 and in each format: rounded to nearest, rounded stochastically several
    times, and in the format itself if the device supports it. Each gradient gets a verdict: bug, overflow, underflow,
    routing, noise or clean. The report names the first op whose error exceeds the noise, and compares changed top-k
    choices with their margins.

    A CASE is a function that takes no arguments and returns `(module, inputs)` or `(module, inputs, reference)`.

    \b
    Examples:
      gradproof diagnose my_model.py:case --html report.html
      gradproof diagnose runs/loans --precisions bf16 --fail-on bug,routing
    """
    with errors(debug):
        check_outputs(json, html)
        check_device(device)
        chosen = {word.strip() for word in fail_on.split(",")} - {"", "none"}
        words = ("bug", "overflow", "underflow", "routing", "noise", "clean", "inconclusive")
        if not chosen <= set(words):
            raise ValueError(f"--fail-on {min(chosen - set(words))!r}: the verdicts are {', '.join(words)}")
        diagnosis = _diagnose(subject, [name.strip() for name in precisions.split(",")], policy, device, seed)
        show_diagnosis(diagnosis, console_for(json))
        write(diagnosis.to_dict(), diagnosis.to_json(), json, html, "diagnose.html")
        if chosen & {diagnosis.verdict, *(p.verdict for p in diagnosis.precisions)}:
            raise typer.Exit(EXIT["refuted"])
        raise typer.Exit(EXIT["inconclusive"] if diagnosis.verdict == "inconclusive" else 0)


def _diagnose(subject: str, precisions: list[str], policy: CastOption | None, device: Device, seed: int) -> Diagnosis:
    from gradproof.diagnosis.diagnose import checked_formats, diagnose, examine, settled

    formats, way = checked_formats(precisions), policy.value if policy else None
    # What the user's code prints must not get into the record on standard output.
    with redirect_stdout(sys.stderr), stages() as progress:
        if Path(subject).is_dir() or (":" not in subject and "." not in subject):
            from gradproof.train.model_specimen import run_specimen

            with settled():
                return examine(run_specimen(Path(subject), device.value, seed), formats, "cast", None, seed, progress)
        from gradproof.proof.case import KernelCase, load_case
        from gradproof.proof.rank_case import RankCase

        progress(f"importing {subject}")
        case = load_case(subject, seed)
        if isinstance(case, KernelCase):
            raise ValueError(f"{subject} returns a KernelCase; `gradproof verify {subject}` judges it")
        if isinstance(case, RankCase):
            raise ValueError(f"{subject} returns a RankCase; `gradproof verify {subject} --ranks 2` judges it")
        target = "cuda" if device is Device.cuda else None
        options: dict[str, Any] = dict(precisions=formats, policy=way, device=target, seed=seed, name=case.name)
        return diagnose(case.module, case.inputs, reference=case.reference, progress=progress, **options)


def show_diagnosis(diagnosis: Diagnosis, console: Any, most: int = 8) -> None:
    """The formats, the tensors that stand out in the worst of them, and the answer."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("format", "verdict", "error", "noise", "flips", "run", box=None, pad_edge=False)
    for p in diagnosis.precisions:
        flips = f"{p.routing.flips} of {p.routing.decisions}" if p.routing.decisions else ""
        run = "simulated only" if p.simulated_only else f"{p.policy} on {diagnosis.device}"
        run += f", loss scale 2^{math.log2(p.scale):.0f}" if p.scale != 1 else ""
        table.add_row(p.format, coloured(p.verdict), figure(p.rel_error), figure(p.noise), flips, run)
    console.print(table)
    worst = diagnosis.worst
    if worst is not None:
        console.print(f"\nin {worst.format}:", style="dim")
        console.print(_judged_table(worst, most))
    for note in diagnosis.notes:
        console.print(f"  {escape(note)}", style="dim")
    console.print(f"{coloured(diagnosis.verdict)}: {escape(diagnosis.summary)}", soft_wrap=True)


def _judged_table(worst: FormatVerdict, most: int) -> Any:
    from rich.markup import escape
    from rich.table import Table

    from gradproof.diagnosis.verdict import severity

    table = Table("tensor", "verdict", "norm ratio", "cosine", "error", "noise", "z", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    judged = sorted((*worst.parameters, *worst.inputs), key=severity)
    for j in judged[:most]:
        ratio, cosine = ("" if x != x else f"{x:.4g}" for x in (j.norm_ratio, j.cosine))
        figures = (ratio, cosine, figure(j.rel_error), figure(j.noise), f"{j.z:.1f}")
        table.add_row(escape(j.name), coloured(j.verdict), *figures)
    if len(judged) > most:
        table.add_row(f"and {len(judged) - most} more", style="dim")
    return table
