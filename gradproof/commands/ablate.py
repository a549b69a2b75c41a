"""`gradproof ablate`. Everything heavy is imported inside."""

from __future__ import annotations

import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gradproof.commands.options import (
    INTERRUPTED,
    STOPPED,
    ConfigFile,
    Data,
    Debug,
    Device,
    Ignore,
    Json,
    TargetColumn,
    said,
)
from gradproof.commands.terminal import (
    check_device,
    check_folder,
    check_outputs,
    console_for,
    errors,
    progress_of,
    write,
)


class MatchOption(StrEnum):
    total = "total"
    active = "active"
    flops = "flops"


def ablate(
    config: ConfigFile = None,
    data: Data = None,
    target: TargetColumn = None,
    ignore: Ignore = None,
    budget: Annotated[
        int | None, typer.Option(metavar="N", help="Parameters of the dense model. Default: 200000.")
    ] = None,
    match: Annotated[
        MatchOption | None,
        typer.Option(help="What to match: all parameters, those active per row, or FLOPs. Default: total."),
    ] = None,
    families: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Families to compare: moe or dense, with -sheaf or -padic. Default: moe,moe-sheaf-padic,dense.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Number of train/test splits. Default: 5.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Training steps per run. Default: chosen by the number of rows; 3000 for the synthetic set.",
        ),
    ] = None,
    tests: Annotated[
        bool | None, typer.Option("--test/--no-test", help="Test differences for significance. Default: test.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Parallel runs. Default: one per core.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster instead of this machine.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the configurations that match the budget and exit.")
    ] = False,
    device: Annotated[Device | None, typer.Option(help="Device to train on. Default: cpu.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder of the study. Default: a folder under runs/, named after the options."
        ),
    ] = None,
    json: Json = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first split. Default: 0.")] = None,
    debug: Debug = False,
) -> None:
    """Compare MoE with dense on your data, at the same budget.

    Trains each family (MoE, MoE with the sheaf router and p-adic inputs, dense) with the same budget, splits, steps and
    learning rates, beside scikit-learn's HistGradientBoosting, logistic regression and a PyTorch MLP, and tests whether
    the differences are significant. To resume an interrupted study, run the same command again.

    \b
    Examples:
      gradproof ablate --data loans.csv --target approved --budget 200000
      gradproof ablate --data synthetic:regimes=1 --families moe,dense
      gradproof ablate --budget 1000000 --match active --dry-run
    """
    with errors(debug):
        from gradproof.ablate.study import StudyConfig, start
        from gradproof.data.source import check, synthetic_options
        from gradproof.train.config import fill, read_config
        from gradproof.train.run import lock

        check_outputs(json, None)
        check_folder(out)
        flags = dict(data=data, target=target, budget=budget, match=match, seeds=seeds, steps=steps, tests=tests)
        lists = dict(families=families, ignore=ignore)
        given = read_config(config) if config else {}
        given |= said(**flags, jobs=jobs, device=device, seed=seed)
        given |= {name: [word.strip() for word in value.split(",")] for name, value in said(**lists).items()}
        known = out is not None and (out / "study.json").is_file()
        if not known:
            wanted = fill(StudyConfig, given)
            check(wanted.data, wanted.target, [*wanted.metrics, *wanted.categorical, *wanted.ignore])
            check_device(Device(wanted.device))
        if "data" in given and synthetic_options(given["data"]) is None:
            given["data"] = os.path.abspath(given["data"])  # whatever folder it goes on in
        if dry_run:
            _preview(fill(StudyConfig, given), json)
            return
        study = start(out, given)
        with lock(study):
            record = _studied(study, ray, debug)
        from gradproof.ablate.terminal_watch import show_study

        show_study(record, console_for(json))
        console_for(json).print(f"report: {study.path / 'report.html'}", soft_wrap=True)
        from json import dumps

        write(record, dumps(record, indent=1), json)


def _preview(config: Any, json: str | None) -> None:
    from json import dumps
    from tempfile import TemporaryDirectory

    from gradproof.ablate.plan import preview
    from gradproof.ablate.terminal_watch import show_budgets

    with TemporaryDirectory() as folder:
        solved = preview(config, Path(folder))
    listed = [{"family": s.family, **s.to_dict(), "shape": s.shape, "note": s.note()} for s in solved]
    show_budgets(listed, console_for(json))
    record = {"budget": config.budget, "match": config.match, "families": listed}
    write(record, dumps(record, indent=1), json)


def _studied(study: Any, ray: bool, debug: bool) -> dict[str, Any]:
    """A study that cannot start is taken back; exit code 130 where it was interrupted, 1 where a run had to stop."""
    import signal

    from gradproof.ablate.plan import StudyPlan
    from gradproof.ablate.runs import Failed

    try:
        if ray:
            from gradproof.ablate.cluster import check_ray

            check_ray()
        with progress_of("reading the table") as progress:
            plan = StudyPlan(study, progress)
    except BaseException:
        study.discard()
        raise
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _planned(plan, ray)
    except KeyboardInterrupt:
        again = f"gradproof ablate --out {study.path}"
        print(f"interrupted; to resume: {again}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except Failed as failed:
        if debug:
            traceback.print_exc()
        print(f"gradproof: {failed}; to resume: gradproof ablate --out {study.path}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _planned(plan: Any, ray: bool) -> dict[str, Any]:
    from gradproof.ablate.record import record, write
    from gradproof.ablate.runs import run_all
    from gradproof.ablate.terminal_watch import watching
    from gradproof.ablate.unit import finished

    unfinished = [unit for unit in plan.units if finished(unit) is None]
    if len(unfinished) < len(plan.units):
        print(f"{len(plan.units) - len(unfinished)} of {len(plan.units)} runs are already done", file=sys.stderr)
    with watching(len(plan.units) - len(unfinished), len(plan.units)) as watch:
        if ray:
            from gradproof.ablate.cluster import run_on_ray

            run_on_ray(unfinished, watch, plan.study.config.device)
        else:
            run_all(unfinished, plan.jobs, watch)
    results = [result for unit in plan.units if (result := finished(unit)) is not None]
    study_record = record(plan.study, plan.solved, results, plan.notes)
    write(plan.study, study_record)
    return study_record
