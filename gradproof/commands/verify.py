"""`gradproof verify`. Everything heavy is imported inside; the command alone knows models, kernels and the gate."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradproof.commands.kernel_survey import kernel_table, surveyed
from gradproof.commands.options import EXIT, Debug, Device, Html, Json, Seed
from gradproof.commands.terminal import (
    check_device,
    check_outputs,
    coloured,
    console_for,
    errors,
    figure,
    progress_of,
    write,
)

if TYPE_CHECKING:
    from gradproof.proof.verdict import Report, SubjectVerdict


def verify(
    case: Annotated[
        str | None,
        typer.Argument(metavar="CASE", help="Your own code: `path/to/file.py:function` or `package.module:function`."),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", metavar="NAME", help="Verify this op of Gradproof, such as layernorm; repeatable."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="NAME", help="Verify this model: moe, dense, ensemble, transformer or gate; repeatable."
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = Device.cpu,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also plant wrong backward passes; each must be refuted.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Case: judge all tensors jointly. Ops: skip finite differences.")
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="Case: the training dtype, such as bf16. Default: the module's dtype."),
    ] = None,
    autocast: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="Case: train under torch.autocast with this dtype, bf16 or fp16."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHECK",
            help="Case: skip this check (dtype, point, parameters_only, inputs_only, strided_cotangent, "
            "in_flight, retained_graph, accumulation, second_step, one_output, layout, eval, one_row; "
            "with --ranks: dtype, accumulation, no_sync); repeatable.",
        ),
    ] = None,
    allow_unjudged: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Case: accept that this tensor cannot be judged; repeatable."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Case: save digests and projections of the gradients to this file."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Case: compare the gradients with this file and name those that changed."),
    ] = None,
    json: Json = None,
    html: Html = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Case: run its gradproof.RankCase on N processes of this machine and compare with one rank. Each "
            "process gets its share of every input's rows.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="With --ranks: time that a part of a step may take before a rank counts as hung."
        ),
    ] = 60.0,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Check that a backward pass computes the right gradients.

    A CASE is a function that takes no arguments and returns `(module, inputs)`. Compares the gradients of the module's
    parameters and floating-point inputs with finite differences of its forward pass. If the function returns a
    `gradproof.KernelCase`, compares the kernel with its reference; if it returns a `gradproof.RankCase`, runs it on
    `--ranks N` processes and compares it with the same module on one rank. Without a CASE, verifies every op and model
    of Gradproof.

    \b
    Examples:
      gradproof verify
      gradproof verify my_model.py:case --html report.html
      gradproof verify my_model.py:case --autocast bf16
      gradproof verify my_model.py:case --record before.json
      gradproof verify my_model.py:case --against before.json   (after an upgrade)
      gradproof verify my_model.py:case --ranks 2   (a distributed step)
      gradproof verify --op layernorm --mutants
    """
    with errors(debug):
        check_outputs(json, html, record)
        if case is not None and (op or model or mutants):
            raise ValueError("give either a CASE or --op/--model/--mutants, not both")
        if case is None and (dtype or autocast or skip or allow_unjudged or record or against or ranks):
            raise ValueError("--dtype, --autocast, --skip, --allow-unjudged, --record, --against, --ranks need a CASE")
        if ranks is not None and (record or against or device is not Device.cpu):
            raise ValueError("--ranks runs on the CPU and cannot be combined with --record or --against")
        check_device(device)
        if case is not None:
            how = dict(dtype=dtype, autocast=autocast, skip=skip or (), allow_unjudged=allow_unjudged or ())
            if ranks is None:
                report = _verify_case(case, device, quick, seed, how, record, against)
            else:
                report = _verify_ranks(case, ranks, quick, seed, timeout, how)
        else:
            report = _verify_own(op, model, device, mutants, quick, seed)
        show_report(report, console_for(json), case is not None)
        write(report.to_dict(), report.to_json(), json, html, "verify.html")
        raise typer.Exit(EXIT[report.status])


def _verify_case(
    case: str,
    device: Device,
    quick: bool,
    seed: int,
    how: dict[str, Any],
    to: Path | None,
    against: Path | None,
) -> Report:
    from gradproof.files import write_atomically
    from gradproof.proof.case import KernelCase, load_case
    from gradproof.proof.kernel import judge_kernel
    from gradproof.proof.module import Options, torch_device, torch_dtype, verify
    from gradproof.proof.rank_case import RankCase
    from gradproof.proof.record import compare_with, load_record, record
    from gradproof.proof.verdict import finite

    target = "cuda" if device is Device.cuda else None
    before = None if against is None else load_record(against)
    # What the user's code prints must not get into the record on standard output.
    with redirect_stdout(sys.stderr), progress_of("judging each tensor") as progress:
        loaded = load_case(case, seed)
        if isinstance(loaded, KernelCase):
            if quick or to or against or any(how.values()):
                raise ValueError(f"{case} returns a KernelCase; it takes none of the options for modules")
            return judge_kernel(loaded, seed=seed, device=target, name=case, progress=progress)
        if isinstance(loaded, RankCase):
            raise ValueError(f"{case} returns a RankCase; give the number of ranks: gradproof verify {case} --ranks 2")
        asked = (loaded.module, loaded.inputs)
        report = verify(*asked, quick=quick, seed=seed, device=target, name=case, progress=progress, **how)
        if to is not None or before is not None:
            options = Options(
                seed=seed % 2**63,
                device=torch_device(target),
                dtype=torch_dtype(how["dtype"]),
                autocast=torch_dtype(how["autocast"]),
            )
            now = record(*asked, options, case)
            if to is not None:
                write_atomically(to, jsonlib.dumps(finite(now), indent=1))
            if before is not None:
                report.against = compare_with(before, now)
        return report


def _verify_ranks(case: str, ranks: int, quick: bool, seed: int, timeout: float, how: dict[str, Any]) -> Report:
    from gradproof.proof.module import torch_dtype
    from gradproof.proof.rank_judge import verify_ranks

    how = {**how, "dtype": torch_dtype(how["dtype"]), "autocast": torch_dtype(how["autocast"])}
    with redirect_stdout(sys.stderr), progress_of("steps on all ranks") as progress:
        return verify_ranks(case, ranks, quick=quick, seed=seed, timeout=timeout, progress=progress, **how)


def _verify_own(
    ops: list[str] | None, models: list[str] | None, device: Device, mutants: bool, quick: bool, seed: int
) -> Report:
    import torch

    from gradproof.gate.network import GateNetwork
    from gradproof.gate.wrong_backwards import MUTANTS as OF_GATE
    from gradproof.models.families import FAMILIES
    from gradproof.models.subject import judge_model
    from gradproof.models.wrong_backwards import MUTANTS as OF_MODELS
    from gradproof.ops import ENCODERS, NAMES, load
    from gradproof.proof.judge import judge_op
    from gradproof.proof.mutants import run
    from gradproof.proof.verdict import Report
    from gradproof.proof.wrong_backwards import MUTANTS as OF_OPS

    torch.set_num_threads(1)  # small tensors: a second thread gains nothing, and waits where a core is busy
    kinds = {**FAMILIES, "gate": GateNetwork}
    chosen: list[str] = list(dict.fromkeys([*(ops or []), *(models or [])])) or [*NAMES, *ENCODERS, *kinds]

    def judge(name: str, quick: bool = quick, first: str = "") -> Iterator[SubjectVerdict]:
        if name in kinds:
            yield from judge_model(name, kinds[name], seed=seed, device=device.value, quick=quick, first=first)
        else:
            yield judge_op(load(name), seed=seed, device=device.value, quick=quick)

    def suspect(name: str, option: str) -> Iterator[SubjectVerdict]:
        """A mutant that is refuted without differences need not be tried by them."""
        for without in dict.fromkeys((True, quick)):
            yield from judge(name, without, option)

    for name in models or []:
        if name not in kinds:
            raise ValueError(f"there is no model {name!r}; the models are {', '.join(kinds)}")
    for name in ops or []:
        load(name)
    with progress_of("proving") as progress:
        subjects = []
        for done, name in enumerate(chosen):
            progress(done, len(chosen))
            subjects += judge(name)
    if not mutants:
        return Report(subjects, device=device.value, kernels=None if ops or models else surveyed(device))
    planted = [mutant for mutant in (*OF_OPS, *OF_MODELS, *OF_GATE) if mutant.subject in chosen]
    with progress_of("planting mutants") as progress:
        verdicts = []
        for verdict in run(planted, suspect):
            verdicts.append(verdict)
            progress(len(verdicts), len(planted))
    return Report(subjects, verdicts, device.value)


def show_report(report: Report, console: Any, by_tensor: bool) -> None:
    """The subjects, or their tensors one by one; mutants and kernels; and the answer."""
    from rich.markup import escape

    console.print(_tensor_table(report) if by_tensor else _subject_table(report))
    if report.mutants is not None:
        console.print(_mutant_table(report))
    if report.kernels:
        console.print(kernel_table(report.kernels))
    for subject in report.subjects if by_tensor else []:
        for note in subject.notes:
            console.print(f"  {escape(note)}", style="dim")
        passed = [check.name for check in subject.checks if check.status == "proven"]
        if passed:
            console.print(f"  also passed: {', '.join(passed)}", style="dim")
        spent = f"{subject.calls} calls" if subject.kind == "kernel" else f"{subject.forwards} forward passes"
        spent = f"{subject.forwards} steps on {subject.ranks} ranks" if subject.ranks else spent
        console.print(f"  {spent}", style="dim")
    if report.against is not None:
        console.print(escape(report.against.summary), soft_wrap=True)
    console.print(f"{coloured(report.status)}: {escape(report.summary)}", soft_wrap=True)


def _tensor_table(report: Report) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "tensor", "status", "error", "bound", "resolution", box=None, pad_edge=False)
    table.columns[1].overflow = "fold"
    for column in table.columns[2:]:
        column.no_wrap = True
    for subject in report.subjects:
        kind = "" if subject.kind == "kernel" else "input"
        rows = [("parameter", j) for j in subject.parameters] + [(kind, j) for j in subject.inputs]
        order = ["refuted", "inconclusive", "proven", "unused"]
        for role, j in sorted(rows, key=lambda row: order.index(row[1].status)):
            status = coloured(j.status)
            table.add_row(role, escape(j.name), status, figure(j.error), figure(j.bound), figure(j.resolution))
    return table


def _subject_table(report: Report) -> Any:
    from rich.table import Table

    table = Table("subject", "status", "tensors", "claims", "resolution", box=None, pad_edge=False)
    for subject in report.subjects:
        judged = [*subject.parameters, *subject.inputs]
        finest = max((j.resolution for j in judged if j.resolution), default=None)
        status = coloured(subject.status)
        table.add_row(subject.name, status, str(len(judged)), str(len(subject.evidence)), figure(finest))
    return table


def _mutant_table(report: Report) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("mutant", "status", "refuted by", "in", "tensor", box=None, pad_edge=False)
    for m in report.mutants or []:
        status = "[green]refuted[/]" if m.status == "refuted" else "[bold red]survived[/]"
        table.add_row(escape(m.name), status, m.claim or "", m.subject, escape(m.parameter or ""))
    return table
