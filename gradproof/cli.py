"""The command line: the commands, each of which is beside its noun, and `gradproof sizes`.

Everything heavy is imported inside the commands, so that --help answers at once.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from gradproof.ablate.commands import ablate
from gradproof.bench.commands import bench
from gradproof.gate.commands import app as gate
from gradproof.options import Debug, Device, Json, NoSeed
from gradproof.precision.commands import diagnose
from gradproof.proof.commands import verify
from gradproof.serve.commands import predict, serve
from gradproof.terminal import (
    check_device,
    check_outputs,
    console_for,
    errors,
    in_bytes,
    progress_of,
    sizes_table,
    write,
)
from gradproof.train.commands import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Decision models with explicit backward passes, and the proof that they are right.",
    epilog="Exit codes: 0 done or proven, 1 refuted or stopped, 2 could not start, 3 inconclusive, 130 interrupted.",
)
app.add_typer(gate, name="gate")
for command in (verify, train, ablate, predict, serve, diagnose, bench):  # as --help lists them
    app.command()(command)


@app.command()
def sizes(
    rows: Annotated[
        int, typer.Option(help="Rows in a batch, for the activations; tokens of a transformer.", min=1)
    ] = 8192,
    measure: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Take training steps of these sizes (a,b) and measure the peak.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to measure.")] = Device.cpu,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """The named sizes and the memory of a training step: weights, gradients, AdamW's moments, the activations of one
    forward, and what the backward works in.

    Examples:

        gradproof sizes --rows 1024

        gradproof sizes --rows 1024 --measure nano,tiny
    """
    with errors(debug):
        from json import dumps

        from gradproof.gate.network import GateConfig, GateNetwork
        from gradproof.models.sizes import cost, named

        check_outputs(json, None)
        sized = {**named(), "gate": (GateNetwork, GateConfig())}
        found = [cost(name, config, rows, device.value) for name, (_, config) in sized.items()]
        chosen = [name.strip() for name in measure.split(",")] if measure is not None else []
        for name in chosen:
            if name not in sized:
                raise ValueError(f"there is no size {name!r} to measure; the sizes are {', '.join(sized)}")
        check_device(device)
        peaks = _measured({name: sized[name] for name in chosen}, rows, device) if chosen else {}
        listed = [{**each._asdict(), "total": each.total, "measured": peaks.get(each.name)} for each in found]
        record = {"rows": rows, "device": device.value, "sizes": listed}
        write(record, dumps(record, indent=1), json)
        console_for(json).print(sizes_table(listed))
        console_for(json).print(f"MiB, fp32; activated and working: of {rows:,} rows or tokens (--rows)", style="dim")
        for each in listed:
            if each["measured"] is not None:
                ratio = each["measured"] / each["total"]
                said = f"{each['name']}: {in_bytes(each['measured'])} measured, {ratio:.3f} of what is predicted"
                console_for(json).print(said)


def _measured(sized: dict[str, tuple[Any, Any]], rows: int, device: Device) -> dict[str, int]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would announce itself
    from gradproof.train.memory import step_bytes

    with progress_of("measuring") as progress:
        peaks = {}
        for done, (name, (kind, config)) in enumerate(sized.items()):
            progress(done, len(sized))
            peaks[name] = step_bytes(kind, config, rows, device.value)
    return peaks


def main() -> None:
    """The console script. Typer itself exits with 130 when interrupted."""
    app()
