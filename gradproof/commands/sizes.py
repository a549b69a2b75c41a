"""`gradproof sizes`. Everything heavy is imported inside."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from gradproof.commands.mesh_sizes import GivenRates, show_mesh
from gradproof.commands.options import Debug, Device, Json, NoSeed
from gradproof.commands.terminal import check_device, check_outputs, console_for, errors, in_bytes, progress_of, write


def sizes(
    rows: Annotated[int, typer.Option(help="Rows per batch; tokens for a transformer.", min=1)] = 8192,
    measure: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Run training steps of these sizes (a,b) and measure the peak memory."),
    ] = None,
    device: Annotated[Device, typer.Option(help="Device to measure on, and to plan a mesh for.")] = Device.cpu,
    mesh: Annotated[
        str | None, typer.Option(metavar="AXES", help="Plan a mesh of ranks: data=2,experts=2. See docs/ranks.md.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="With --mesh: rows per step, over all ranks.", min=1)] = None,
    shard_optimizer: Annotated[
        bool, typer.Option("--shard-optimizer", help="With --mesh: spread AdamW's moments over the data axis.")
    ] = False,
    size: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --mesh: show only this size, rank by rank.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="With --mesh: bandwidth of a rank, in GB/s. Default: measured here.")
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(help="With --mesh: latency of a collective, in microseconds. Default: measured here."),
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(help="With --mesh: matrix product speed of a rank, in TFLOP/s. Default: measured here."),
    ] = None,
    memory_bandwidth: Annotated[
        float | None,
        typer.Option(help="With --mesh: memory bandwidth of a rank's optimizer, in GB/s. Default: measured here."),
    ] = None,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """List the model sizes and the memory of a training step.

    Columns: weights, gradients, AdamW's moments, the activations of one forward pass, and the working memory of the
    backward pass.

    \b
    Examples:
      gradproof sizes --rows 1024
      gradproof sizes --rows 1024 --measure nano,tiny
      gradproof sizes --mesh data=2,experts=2 --batch 4096
      gradproof sizes --mesh data=4 --batch 4096 --size tiny --bandwidth 1
    """
    with errors(debug):
        from json import dumps

        given = GivenRates(bandwidth, latency, tflops, memory_bandwidth)
        if mesh is not None:
            if measure is not None:
                raise ValueError("--measure runs in one process and cannot be combined with --mesh")
            check_outputs(json, None)
            show_mesh(mesh, batch or rows, shard_optimizer, size, device, given, json)
            return
        of_mesh = {"--batch": batch, "--size": size, "--shard-optimizer": shard_optimizer or None}
        of_mesh |= {f"--{name.replace('_', '-')}": value for name, value in given._asdict().items()}
        if (flag := next((flag for flag, value in of_mesh.items() if value is not None), None)) is not None:
            raise ValueError(f"{flag} needs --mesh, for example --mesh data=2")

        from gradproof.gate.network import GateConfig, GateNetwork
        from gradproof.models.sizes import cost, named

        check_outputs(json, None)
        sized = {**named(), "gate": (GateNetwork, GateConfig())}
        costs = [cost(name, config, rows, device.value) for name, (_, config) in sized.items()]
        chosen = [name.strip() for name in measure.split(",")] if measure is not None else []
        for name in chosen:
            if name not in sized:
                raise ValueError(f"there is no size {name!r} to measure; the sizes are {', '.join(sized)}")
        check_device(device)
        peaks = _measured({name: sized[name] for name in chosen}, rows, device) if chosen else {}
        listed = [
            {**size_cost._asdict(), "total": size_cost.total, "measured": peaks.get(size_cost.name)}
            for size_cost in costs
        ]
        record = {"rows": rows, "device": device.value, "sizes": listed}
        write(record, dumps(record, indent=1), json)
        console_for(json).print(sizes_table(listed))
        console_for(json).print(f"MiB, fp32; activated and working: of {rows:,} rows or tokens (--rows)", style="dim")
        for row in listed:
            if row["measured"] is not None:
                ratio = row["measured"] / row["total"]
                said = f"{row['name']}: {in_bytes(row['measured'])} measured, {ratio:.3f} of the prediction"
                console_for(json).print(said)


def _measured(sized: dict[str, tuple[Any, Any]], rows: int, device: Device) -> dict[str, int]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would announce itself
    from gradproof.train.peak import step_bytes

    with progress_of("measuring") as progress:
        peaks = {}
        for done, (name, (kind, config)) in enumerate(sized.items()):
            progress(done, len(sized))
            peaks[name] = step_bytes(kind, config, rows, device.value)
    return peaks


def sizes_table(listed: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    parts = {"weights": "weights", "gradients": "grads", "moments": "moments", "activations": "activated"}
    parts |= {"working": "working", "total": "total"}
    table = Table("size", "parameters", *parts.values(), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for cost in listed:
        table.add_row(cost["name"], f"{cost['parameters']:,}", *(_in_mebibytes(cost[part]) for part in parts))
    return table


def _in_mebibytes(amount: int) -> str:
    """Without the unit, so that a table with long names fits on a terminal of 80 columns."""
    return f"{amount / 2**20:,.{0 if amount >= 100 * 2**20 else 1}f}"
