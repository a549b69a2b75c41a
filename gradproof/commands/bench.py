"""`gradproof bench`. Everything heavy is imported inside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gradproof.commands.options import STOPPED, Debug, Device, Json, NoSeed, Precision
from gradproof.commands.terminal import check_device, check_outputs, console_for, errors, in_bytes, stages, write


def bench(
    suite: Annotated[str, typer.Option(metavar="step|ops|diagnose|gate", help="What to measure.")] = "step",
    device: Annotated[Device, typer.Option(help="Where to measure.")] = Device.cpu,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="step: nano, tiny, medium, full, dense-0.7b, transformer-causal, -seq2seq, -gate (padded) or "
            "-gate-unpadded. Default: all rows of docs/speed.md for this device. "
            "diagnose: nano, or 100m, a transformer with 104.7 million parameters, which takes minutes.",
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Rows per batch; for step, only with --size.", min=1)] = None,
    precision: Annotated[
        Precision | None,
        typer.Option(help="step, ops: precision of products and activations. Default: fp32 on a CPU, bf16 on a GPU."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="step: only these peers (a,b), or none. Default: all.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="step: keep results of the same code in the --json file, and measure the rest."),
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="step, with --resume: retry peers that failed.")] = False,
    minutes: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="step: start no new measurement after this time.", min=0.0)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="step, ops, gate: fewer rounds, less precise figures.")
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="step: measure the admitted kernels and keep the fastest for this shape.")
    ] = False,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Measure the speed of Gradproof and of its PyTorch peers.

    step (default): a training step, interleaved with peers: the same model in plain PyTorch, as a loop over the
    experts, with all experts dense, or with torch._grouped_mm; eager, compiled, or captured in a CUDA graph. Prints
    medians, useful TFLOP/s, their share of the throughput of a large matrix product on the warm device, and peak
    memory. Each peer is first measured roughly, then in full if it is close to the best. The --json file is written
    after each peer, so an interrupted run can be resumed.

    ops: bias + LayerNorm + GELU, and AdamW, compared with eager and compiled PyTorch.

    diagnose: the overhead of the rounding mode for each op, and the time of whole diagnoses.

    gate: the latency of a decision while the learner trains, and the records lost to kill -9.

    \b
    Examples:
      gradproof bench --suite step --json step.json --resume
      gradproof bench --suite step --device cuda --json gpu.json --minutes 8
      gradproof bench --suite step --size nano --rows 256 --peers loop --quick
      gradproof bench --suite ops --device cuda --precision bf16
      gradproof bench --suite step --size nano --rows 256 --tune
      gradproof bench --suite diagnose --size 100m
    """
    with errors(debug):
        check_outputs(json, None)
        check_device(device)
        if suite != "step" and (resume or retry or minutes is not None):
            raise ValueError("--resume, --retry and --minutes are for the suite step")
        if tune:
            if resume or retry or minutes is not None:
                raise ValueError("--tune cannot be combined with --resume, --retry or --minutes")
            if suite != "step" or size is None or peers is not None:
                raise ValueError("--tune needs --suite step and --size, and takes no --peers")
            _tune(device, size, rows, precision, quick, json)
        elif suite == "diagnose":
            if precision or peers is not None or quick:
                raise ValueError("--precision, --peers and --quick are for the suites step and ops")
            _bench_diagnose(device, size or "nano", rows or 256, json)
        elif suite == "step":
            _bench_step(device, size, rows, precision, peers, quick, json, resume, retry, minutes)
        elif suite == "ops":
            if size is not None or peers is not None:
                raise ValueError("--size and --peers are for the suite step; ops has widths and contestants of its own")
            from gradproof.bench import ops

            with stages() as say:
                records = ops.suite(device.value, _precision(device, precision), rows, quick, say)
                _show_rows(records, show_op, json)
        elif suite == "gate":
            _bench_gate(quick, json)
        else:
            raise ValueError(f"there is no suite {suite!r}; the suites are step, ops, diagnose, gate")


def _bench_gate(quick: bool, json: str | None) -> None:
    from json import dumps

    from gradproof.bench import gate as suite

    with stages() as say:
        record = suite.suite(quick, say)
    show_gate(record, console_for(json))
    write(record, dumps(record, indent=1), json)


def _precision(device: Device, precision: Precision | None) -> str:
    return precision.value if precision else "bf16" if device is Device.cuda else "fp32"


def _tune(
    device: Device, size: str, rows: int | None, precision: Precision | None, quick: bool, json: str | None
) -> None:
    from json import dumps

    from gradproof.bench import tune
    from gradproof.bench.step import cases

    listed: list[dict[str, Any]] = []
    with stages() as say:
        for case in cases(device.value, size, rows):
            tuned = tune.tune(case, device.value, _precision(device, precision), quick, say)
            listed.append({"size": case.size, "rows": case.rows, "ops": tuned})
    show_tuned(listed, console_for(json))
    record = {"suite": "tune", "device": device.value, "rows": listed}
    write(record, dumps(record, indent=1), json)


def _bench_step(
    device: Device,
    size: str | None,
    rows: int | None,
    precision: Precision | None,
    peers: str | None,
    quick: bool,
    json: str | None,
    resume: bool,
    retry: bool,
    minutes: float | None,
) -> None:
    import time
    from dataclasses import replace
    from json import dumps
    from math import inf

    deadline = inf if minutes is None else time.monotonic() + 60 * minutes
    if resume and json in (None, "-"):
        raise ValueError("--resume needs --json FILE, the record to resume")
    if retry and not resume:
        raise ValueError("--retry needs --resume: it retries the peers that failed in that record")
    from gradproof.bench import step
    from gradproof.files import write_atomically

    listed = step.cases(device.value, size, rows)
    names = None if peers is None else [name.strip() for name in peers.split(",") if name.strip() not in ("", "none")]
    step.check_peers(names or [], listed, device.value)
    record = earlier = _earlier(device, json) if resume and json else {"rows": []}

    def keep(made: dict[str, Any]) -> None:
        nonlocal record
        record = made
        if json not in (None, "-"):
            Path(json).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(json), dumps(made, indent=1) + "\n")  # may be cut off at any time

    if size is None:
        print(
            f"measuring {len(listed)} sizes beside all their peers takes a while; for a first look: "
            "gradproof bench --size nano --rows 256 --quick",
            file=sys.stderr,
        )
    with stages() as say:
        setting = step.Setting(device.value, _precision(device, precision), quick, retry, deadline, say)
        try:
            for row in step.suite(listed, setting, names, record, keep):
                show_step(row, console_for(json))
        except step.DeviceLost as error:
            print(f"gradproof: {error}", file=sys.stderr)
            raise typer.Exit(STOPPED) from None
    if json == "-":
        print(dumps(record, indent=1))
    lacking = step.left(record, listed, replace(setting, retry=False), names)
    if resume and not lacking and record is earlier:
        console_for(json).print(f"nothing is left to measure: {json} has every contestant for this code")
    if lacking:
        count = sum(len(contestants) for contestants in lacking.values())
        console_for(json).print(f"{count} contestants in {len(lacking)} rows are left; run again with --resume")
    measured = {(case.size, case.rows) for case in listed}
    if any("error" in row["contestants"][0] for row in record["rows"] if (row["size"], row["rows"]) in measured):
        raise typer.Exit(STOPPED)


def _earlier(device: Device, json: str) -> dict[str, Any]:
    """The record to go on with; an empty one where there is none yet."""
    from json import loads

    from gradproof.bench.step import check_same_machine

    if not Path(json).exists():
        return {"rows": []}
    try:
        record = loads(Path(json).read_text())
    except ValueError as error:
        raise ValueError(f"{json} is not valid JSON ({error}); name another file, or omit --resume") from None
    check_same_machine(record, device.value, json)
    return record


def _show_rows(records: Iterator[dict[str, Any]], show: Any, json: str | None) -> dict[str, Any]:
    """Shows the newest row of each record, and writes the file anew: who is cut off keeps what was measured."""
    from json import dumps

    record: dict[str, Any] = {}
    for record in records:
        show(record["rows"][-1], console_for(json))
        if json != "-":
            write(record, dumps(record, indent=1), json)
    if json == "-":
        write(record, dumps(record, indent=1), json)
    return record


def _bench_diagnose(device: Device, size: str, rows: int, json: str | None) -> None:
    from json import dumps

    if size not in ("nano", "100m"):
        raise ValueError(f"there is no size {size!r} to diagnose; the sizes are nano, 100m")
    from gradproof.bench.diagnose import large, nano, overheads
    from gradproof.proof.verdict import environment

    record: dict[str, Any] = {"suite": "diagnose", "device": device.value, "environment": environment(device.value)}
    if size == "nano":
        record |= {"rows": rows, "overheads": overheads(device.value, rows), "nano": nano(device.value, rows)}
    else:
        record["large"] = large(device.value)
    show_diagnose_bench(record, console_for(json))
    write(record, dumps(record, indent=1), json)


def show_diagnose_bench(record: dict[str, Any], console: Any) -> None:
    """The overheads, or the large module beside a plain step."""
    from rich.table import Table

    if "large" in record:
        step, whole = record["large"]["step"], record["large"]["diagnose"]
        console.print(
            f"{whole['parameters']:,} parameters, 512 tokens: {whole['verdict']} in {whole['seconds']:.0f} s with "
            f"{whole['replicas']} replicas a format; {in_bytes(whole['bytes'])}, {record['large']['memory_ratio']:.2f} "
            f"times a float64 step's {in_bytes(step['bytes'])} ({step['seconds']:.1f} s)",
            soft_wrap=True,
        )
        return
    ways = ("plain", "watched", "nearest", "stochastic")
    table = Table("op", *ways, "overhead", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for overhead in record["overheads"]:
        added = f"{overhead['nearest'] - overhead['plain']:.0f} µs"
        table.add_row(overhead["op"], *(f"{overhead[way]:.0f}" for way in ways), added)
    console.print(table)
    console.print(f"microseconds per call on [{record['rows']}, 128], medians, interleaved", style="dim")
    nano = record["nano"]
    console.print(
        f"nano, {nano['rows']} rows, {nano['formats']} formats, {nano['replicas']} replicas each: "
        f"{nano['verdict']} in {nano['seconds']:.1f} s",
        soft_wrap=True,
    )


def in_ms(ms: float) -> str:
    """Three digits, or all before the point."""
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"


def show_step(row: dict[str, Any], console: Any) -> None:
    """One case as a table, fastest first."""
    from rich.markup import escape
    from rich.table import Table

    from gradproof.bench.row import OURS

    titles = ("", "ms", "quartiles", "slower", "of hot peak", "memory", "")
    table = Table(*titles, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    order = sorted(row["contestants"], key=lambda entry: entry.get("ratio", float("inf")))
    for entry in order:
        if "ms" not in entry:
            continue
        share = entry["share_of_peak"]
        table.add_row(
            entry["name"],
            ("~" if entry.get("rough") else "") + in_ms(entry["ms"]),
            "–".join(in_ms(quartile) for quartile in entry["quartiles"]),
            f"{entry['ratio']:.2f}x",
            "" if share is None else f"{share:.1%}",
            in_bytes(entry["peak_bytes"]),
            f"{entry['memory_ratio']:.2f}x",
            style="bold" if entry["name"] == OURS else "",
        )
    console.print(f"\n{row['size']}, {row['rows']:,} rows, {row['precision']}", style="bold")
    if table.row_count:
        console.print(table)
    for entry in order:
        if "error" in entry:
            console.print(f"{entry['name']} did not run: {escape(entry['error'])}", style="red", soft_wrap=True)
    if row.get("speedup"):
        said = f"{row['speedup']:.2f} times the best peer's speed, {row['memory_against_best']:.2f} of its memory"
        console.print(said, soft_wrap=True)


def show_op(row: dict[str, Any], console: Any) -> None:
    """One op at one shape as a table, fastest first."""
    from rich.markup import escape
    from rich.table import Table

    about = f"{row['rows']:,} rows, {row['width']} wide" if "width" in row else row["size"]
    console.print(f"\n{row['op']}, {about}, {row['precision']}", style="bold")
    table = Table("", "ms", "quartiles", "forward", "ratio", "GB/s", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for entry in sorted((e for e in row["contestants"] if "ms" in e), key=lambda e: e["ms"]):
        forward = in_ms(entry["forward_ms"]) if "forward_ms" in entry else ""
        quartiles = "–".join(in_ms(quartile) for quartile in entry["quartiles"])
        figures = (in_ms(entry["ms"]), quartiles, forward, f"{entry['ratio']:.2f}x", f"{entry['gb_per_s']:.3g}")
        table.add_row(entry["name"], *figures)
    console.print(table)
    for entry in row["contestants"]:
        if "error" in entry:
            console.print(f"{entry['name']} did not run: {escape(entry['error'])}", style="red", soft_wrap=True)


def show_tuned(listed: list[dict[str, Any]], console: Any) -> None:
    """A table for each size."""
    from rich.table import Table

    for case in listed:
        console.print(f"\n{case['size']}, {case['rows']:,} rows")
        table = Table("op", "kernel", "ms a step", box=None, pad_edge=False)
        for op in case["ops"]:
            for i, timed in enumerate(op["order"]):
                table.add_row("" if i else op["op"], timed["kernel"], f"{timed['ms']:.3f}")
        console.print(table)
    console.print("From now on, this machine uses the fastest kernels for these shapes.")


def show_gate(record: dict[str, Any], console: Any) -> None:
    """A decision's time alone and beside the learner, and what kills cost."""
    for name, what in (("alone", "alone"), ("learning", "while the learner trains")):
        timed = record[name]
        console.print(
            f"decision, {record['calls']} calls in turn, {what}: median {timed['p50_ms']:.2f} ms, 99th percentile"
            f" {timed['p99_ms']:.2f} ms (of the thread's own work {timed['cpu_p50_ms']:.2f} and"
            f" {timed['cpu_p99_ms']:.2f} ms; {timed['decisions']:,} decisions, {timed['swaps']} new versions taken)"
        )
    kills = record["kills"]
    console.print(
        f"{kills['kills']} kills: {kills['acknowledged']:,} signals acknowledged, {kills['lost']} lost; the serving"
        f" version whole each time"
    )
