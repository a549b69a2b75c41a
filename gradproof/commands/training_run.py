"""Takes a run of `gradproof train` from start to report, in one process or on the ranks that torchrun started."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import typer

from gradproof.commands.options import INTERRUPTED, STOPPED, Device
from gradproof.commands.terminal import COULD_NOT_START, check_device, sentence


def train_alone(run: Any, debug: bool) -> dict[str, Any]:
    """The report. Exit code 130 where the run was interrupted, by Ctrl-C or SIGTERM."""
    from gradproof.train.terminal_watch import watching

    with watching() as watch:
        return _interruptible(run, watch, debug, None)


def several_ranks(config: Any, debug: bool) -> bool:
    """Whether this process is one of several ranks; all but the first say nothing unless something is wrong."""
    from gradproof.ranks.mesh_shape import MeshShape

    ranks = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
    shape = MeshShape.parse(config.mesh) if config.mesh else MeshShape(data=ranks)
    if config.shard_optimizer and "RANK" not in os.environ:
        raise ValueError(
            "--shard-optimizer needs several ranks; start them with torchrun --nproc-per-node 2 -m gradproof train …"
        )
    if int(os.environ.get("RANK", 0)) and ranks > 1 and not debug:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if shape.ranks != ranks:
        start = f"torchrun --nproc-per-node {shape.ranks} -m gradproof train --mesh {config.mesh} …"
        have = "this is one process" if ranks == 1 else f"torchrun started {ranks}"
        raise ValueError(f"--mesh {config.mesh} needs {shape.ranks} ranks and {have}; start it with {start}")
    return ranks > 1


def train_on_ranks(
    config: Any, out: Path | None, given: Mapping[str, Any], resume: bool, debug: bool
) -> tuple[dict[str, Any] | None, Any]:
    """The report on rank 0, None on the others, and the run. Rank 0 makes the run's folder and writes to it."""
    import torch
    import torch.distributed as dist

    from gradproof.ranks.mesh import Mesh, RankLost, join, leave
    from gradproof.ranks.mesh_shape import MeshShape

    if config.device == "cuda" and torch.cuda.device_count() <= int(os.environ.get("LOCAL_RANK", 0)):
        raise ValueError(
            f"--device cuda: each rank needs a GPU of its own, and this machine has {torch.cuda.device_count()}; "
            "start fewer ranks or use --device cpu"
        )
    joined = join(config.device, config.timeout)
    shape = MeshShape.parse(config.mesh) if config.mesh else MeshShape(data=dist.get_world_size())
    mesh = Mesh(shape, config.device, config.timeout)
    try:
        run, mesh = _open_run(mesh, out, given, resume)
        record = _locked(run, mesh, debug)
    except RankLost as lost:
        if not lost.told:
            _say(str(lost) + mesh.pulse.advice)
        _leave(mesh, "because another rank failed")
    except typer.Exit as ending:
        mesh.pulse.end("it has finished")
        _flush()
        os._exit(ending.exit_code)
    except Exception as error:
        if debug:
            traceback.print_exc()
        _say(f"rank {mesh.rank}: {sentence(error)}" if mesh.rank else sentence(error))
        _leave(mesh, sentence(error), COULD_NOT_START)
    mesh.meet()
    mesh.close()
    if joined:
        leave()
    return record if mesh.first else None, run


def _open_run(mesh: Any, out: Path | None, given: Mapping[str, Any], resume: bool) -> tuple[Any, Any]:
    """The run, which rank 0 makes or finds, and the mesh that it is to be trained on."""
    from gradproof.ranks.mesh import Mesh
    from gradproof.ranks.mesh_shape import MeshShape
    from gradproof.train.run import Run, start

    run = None
    with mesh.in_turn():
        if mesh.first:
            run = start(out, given, resume)
    path = Path(mesh.text(str(run.path) if run is not None else ""))
    if run is None:
        run = Run(path)
    run.config = run.config.with_layout(given)
    check_device(Device(run.config.device))
    kept = MeshShape.parse(run.config.mesh) if run.config.mesh else None
    if kept is None or kept == mesh.shape:
        return run, mesh
    if kept.ranks == mesh.size:  # a run that goes on as it was
        mesh.pulse.close()
        return run, Mesh(kept, run.config.device, run.config.timeout)
    if mesh.first:
        print(f"the run used mesh {kept}, but there are {mesh.size} ranks now: using {mesh.shape}", file=sys.stderr)
    return run, mesh


def _locked(run: Any, mesh: Any, debug: bool) -> dict[str, Any] | None:
    from gradproof.train.run import lock
    from gradproof.train.terminal_watch import TerminalWatch, watching

    with mesh.in_turn():
        held = lock(run) if mesh.first else nullcontext()
        held.__enter__()
    try:
        with watching() if mesh.first else nullcontext(TerminalWatch(None)) as watch:
            return _interruptible(run, watch, debug, mesh)
    finally:
        held.__exit__(None, None, None)


def _interruptible(run: Any, watch: Any, debug: bool, mesh: Any) -> Any:
    """Exit code 130 where the run was interrupted, by Ctrl-C or SIGTERM."""
    import signal

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _train(run, watch, debug, mesh)
    except KeyboardInterrupt:
        if mesh is None or mesh.first:
            again = "gradproof train" if mesh is None else f"torchrun --nproc-per-node {mesh.size} -m gradproof train"
            print(f"interrupted; to resume: {again} --resume --out {run.path}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _train(run: Any, watch: Any, debug: bool, mesh: Any) -> dict[str, Any] | None:
    """A run that could not start is taken back; exit code 1 where one that had started must stop."""
    from gradproof.data.columns import column_lines
    from gradproof.data.source import task_lines
    from gradproof.ranks.mesh import RankLost
    from gradproof.train.loop import Trainer
    from gradproof.train.report import finished_report
    from gradproof.train.stopped import Stopped
    from gradproof.train.text import TextTrainer

    done = finished_report(run.path)
    if done is not None:
        watch.say(f"{run.path} is finished; nothing to do")
        return done
    kind = TextTrainer if run.config.model == "transformer" else Trainer
    try:
        with nullcontext() if mesh is None else mesh.in_turn():
            trainer = kind(run, watch, mesh)
    except Exception:
        run.discard()
        raise
    if not isinstance(trainer, TextTrainer):
        for line in (*column_lines(trainer.source.columns), *task_lines(trainer.source, run.config.task)):
            watch.say(line)
    try:
        return _to_the_end(run, trainer, mesh)
    except Stopped as stopped:
        print(f"gradproof: {stopped}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    except RankLost:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        rank = "" if mesh is None or mesh.first else f"rank {mesh.rank}: "
        _say(f"{rank}{sentence(error)}; then: {trainer.again()}")
        if mesh is not None:
            _leave(mesh, sentence(error))
        raise typer.Exit(STOPPED) from None


def _to_the_end(run: Any, trainer: Any, mesh: Any) -> dict[str, Any] | None:
    """Proof, rehearsal, training, report. What is kept for other processes, rank 0 makes first."""
    from gradproof.train.evidence import prove
    from gradproof.train.report import report, write_report
    from gradproof.train.text import TextTrainer
    from gradproof.train.text_report import text_report

    def in_turn() -> Any:
        return nullcontext() if mesh is None else mesh.in_turn()

    with in_turn():
        prove(run, trainer.model)
    with in_turn():
        trainer.rehearse()
    trainer.settle()
    with in_turn():
        trainer.resume()
    trainer.train()
    if not trainer.writes:
        return None
    trainer.alone()
    record = text_report(trainer) if isinstance(trainer, TextTrainer) else report(trainer)
    write_report(run.path, record)
    return record


def _say(message: str) -> None:
    """On standard error; on the real one where this rank is silent."""
    silent = getattr(sys.stderr, "name", "") == os.devnull
    print(f"gradproof: {message}", file=sys.__stderr__ if silent else sys.stderr, flush=True)


def _leave(mesh: Any, why: str, code: int = STOPPED) -> NoReturn:
    """Ends this process at once: groups of ranks that are gone would be waited for."""
    mesh.pulse.end(why)
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
