"""`gradproof sizes --mesh`: memory and traffic of each size on several ranks. Everything heavy is imported inside."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

from gradproof.commands.options import Device
from gradproof.commands.terminal import console_for, in_bytes, write

GIGA = 1e9


class GivenRates(NamedTuple):
    """Figures of a machine that is not this one, as the options have them; None is measured here."""

    bandwidth: float | None  # GB/s
    latency: float | None  # µs
    tflops: float | None
    memory_bandwidth: float | None  # GB/s

    @property
    def complete(self) -> bool:
        return None not in self

    def check(self) -> None:
        """ValueError names the first that is not a number above 0."""
        for name, value in self._asdict().items():
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"--{name.replace('_', '-')} {value} must be a number above 0")


def show_mesh(
    mesh: str, batch: int, sharded: bool, size: str | None, device: Device, given: GivenRates, json: str | None
) -> None:
    """Prints the plan of a mesh, and writes its record."""
    from json import dumps

    record = plan_record(mesh, batch, sharded, size, device, given)
    write(record, dumps(record, indent=1), json)
    console = console_for(json)
    console.print(mesh_table(record["sizes"]))
    of = f"{batch:,} rows or tokens over {record['ranks']} ranks ({record['mesh']})"
    console.print(f"MiB of the rank that holds most, and that it sends in a step; fp32, {of}", style="dim")
    if size is not None:
        (own,) = record["sizes"]
        for line in rank_lines(own["ranks"]):
            console.print(line)
    console.print(_said(record["rates"]), style="dim")


def rank_lines(ranks: list[dict[str, Any]]) -> list[str]:
    """A line for each rank; neighbours that are alike share one."""
    lines = []
    for _, group in groupby(ranks, key=lambda rank: {**rank, "rank": None}):
        first, *_, last = [*(members := list(group)), members[-1]]
        name = f"rank {first['rank']}" if first is last else f"ranks {first['rank']} to {last['rank']}, each"
        sent = ", ".join(f"{kind} {_amount(bytes_sent)}" for kind, bytes_sent in first["sent"].items())
        lines.append(f"{name}: {first['rows']:,} rows, {in_bytes(first['total'])}; sends {sent or 'nothing'}")
    return lines


def _amount(amount: int) -> str:
    return f"{amount:,} B" if amount < 2**16 else in_bytes(amount)


def plan_record(
    mesh: str, batch: int, sharded: bool, size: str | None, device: Device, given: GivenRates
) -> dict[str, Any]:
    """The plan of every size that fits the mesh, or of one. ValueError says why one cannot be planned."""
    from gradproof.models.moe import MoEConfig
    from gradproof.models.sizes import named
    from gradproof.ranks.mesh_shape import MeshShape
    from gradproof.train.mesh_plan import plan_of

    given.check()
    shape, sized = MeshShape.parse(mesh), named()
    if size is not None and size not in sized:
        raise ValueError(f"there is no size {size!r}; the sizes are {', '.join(sized)}")
    if batch < shape.ranks:
        raise ValueError(f"--batch {batch} leaves some of the {shape.ranks} ranks of mesh {shape} without a row")
    if size is not None:
        sized = {size: sized[size]}
    elif shape.experts > 1:  # of several sizes, those that have experts to spread
        sized = {name: own for name, own in sized.items() if isinstance(own[1], MoEConfig)}
    plans = {name: plan_of(config, batch, shape, sharded, device.value) for name, (_, config) in sized.items()}
    rates, measured = _rates(given, shape.ranks, device)
    return {
        "mesh": str(shape),
        "ranks": shape.ranks,
        "batch": batch,
        "shard_optimizer": sharded,
        "device": device.value,
        "rates": None if rates is None else {**rates._asdict(), "measured": measured},
        "sizes": [{"name": name, **_planned(plan, rates)} for name, plan in plans.items()],
    }


def _rates(given: GivenRates, ranks: int, device: Device) -> tuple[Any, list[str]]:
    """The figures that the efficiency follows from, and which of them were measured here; none on a GPU where one is
    missing, because ranks there need a GPU each."""
    from gradproof.ranks.traffic import KINDS
    from gradproof.train.mesh_plan import Rates

    if not given.complete and device == Device.cuda:
        return None, []
    rates = None
    if not given.complete:
        from gradproof.train.mesh_rates import measured_rates

        rates = measured_rates(ranks)
    elsewhere = {
        "bandwidth": given.bandwidth and dict.fromkeys(KINDS, given.bandwidth * GIGA),
        "latency": given.latency and given.latency * 1e-6,
        "flops": given.tflops and given.tflops * 1e12,
        "memory": given.memory_bandwidth and given.memory_bandwidth * GIGA,
    }
    said = {name: value for name, value in elsewhere.items() if value}
    return rates._replace(**said) if rates is not None else Rates(**said), [n for n in elsewhere if n not in said]


def _planned(plan: Any, rates: Any) -> dict[str, Any]:
    ranks = [{**own._asdict(), "total": own.total} for own in plan.ranks]
    record: dict[str, Any] = {"ranks": ranks, "busiest": plan.busiest.rank, "seconds": None, "efficiency": None}
    if rates is not None:
        seconds = plan.seconds(rates)
        record["seconds"] = seconds._asdict()
        record["efficiency"] = [seconds.alone / seconds.open, seconds.alone / seconds.hidden]
    return record


def mesh_table(listed: list[Mapping[str, Any]]) -> Any:
    from rich.table import Table

    parts = {"weights": "weights", "gradients": "grads", "moments": "moments", "activations": "activ."}
    parts |= {"working": "working", "buffers": "buffers", "total": "total"}
    table = Table("size", *parts.values(), "sends", "efficiency", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    family, headed = "transformer-", False
    for size in listed:
        name = size["name"]
        if name.startswith(family):  # under a heading, so that the table fits 80 columns
            if not headed:
                table.add_row("transformer")
            name, headed = f"  {name.removeprefix(family)}", True
        own = size["ranks"][size["busiest"]]
        amounts = [*(own[part] for part in parts), sum(own["sent"].values())]
        table.add_row(name, *map(_in_mebibytes, amounts), _percent(size["efficiency"]))
    return table


def _in_mebibytes(amount: int) -> str:
    """Without the unit."""
    return f"{amount / 2**20:,.{0 if amount >= 100 * 2**20 else 1}f}"


def _percent(efficiency: list[float] | None) -> str:
    """From nothing hidden to everything."""
    if efficiency is None:
        return ""
    low, high = (f"{100 * share:.0f}" for share in efficiency)
    return f"{low}%" if low == high else f"{low}–{high}%"


def _said(rates: Mapping[str, Any] | None) -> str:
    if rates is None:
        return (
            "no efficiency: on GPUs it follows from --bandwidth, --latency, --tflops and --memory-bandwidth, which are "
            "not measured here"
        )
    bandwidth = ", ".join(f"{kind} {amount / GIGA:.3g}" for kind, amount in rates["bandwidth"].items())
    if len(set(rates["bandwidth"].values())) == 1:
        bandwidth = f"{next(iter(rates['bandwidth'].values())) / GIGA:.3g}"
    measured = rates["measured"]
    said = {
        "bandwidth": f"sent GB/s: {bandwidth}",
        "latency": f"{rates['latency'] * 1e6:.3g} µs an operation",
        "flops": f"{rates['flops'] / 1e12:.3g} TFLOP/s in products",
        "memory": f"{rates['memory'] / GIGA:.3g} GB/s in the optimizer",
    }
    return "; ".join(f"{text} ({'measured' if name in measured else 'given'})" for name, text in said.items())
