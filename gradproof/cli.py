"""The command line. Everything heavy is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gradproof.proof.verdict import Report, SubjectVerdict

EXIT = {"proven": 0, "refuted": 1, "inconclusive": 3}
STOPPED, COULD_NOT_START, INTERRUPTED = 1, 2, 130
COLOURS = {"proven": "green", "refuted": "bold red", "inconclusive": "yellow", "unused": "dim"}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Decision models with explicit backward passes, and the proof that they are right.",
    epilog="Exit codes: 0 done or proven, 1 refuted or stopped, 2 could not start, 3 inconclusive, 130 interrupted.",
)


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


Seed = Annotated[int, typer.Option(help="Seeds every random choice; the same seed gives the same figures.")]
NoSeed = Annotated[int, typer.Option("--seed", help="Taken by every command; nothing is random here.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the record; - for standard output.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to look at.")]


@app.command()
def verify(
    case: Annotated[
        str | None,
        typer.Argument(metavar="CASE", help="Your own code: `path/to/file.py:function` or `package.module:function`."),
    ] = None,
    op: Annotated[list[str] | None, typer.Option("--op", help="One of Gradproof's ops; may be repeated.")] = None,
    model: Annotated[list[str] | None, typer.Option("--model", help="moe or dense; may be repeated.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also plant wrong backwards; each must be refuted.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Case: the joint screen alone. Ops: without differences.")
    ] = False,
    json: Json = None,
    html: Html = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Is the backward pass right?

    Without a CASE, proves every op and model of Gradproof. With one, judges your own `nn.Module`: the function takes
    nothing and returns `(module, inputs)`; the gradients of its parameters and floating inputs are held against
    differences of its forward.

    Examples:

        gradproof verify

        gradproof verify my_model.py:case --html report.html

        gradproof verify --op layernorm --mutants
    """
    with _errors(debug):
        _check_outputs(json, html)
        if case is not None and (op or model or mutants):
            raise ValueError("give either a CASE or --op/--model/--mutants, not both")
        _check_device(device)
        if case is not None:
            report = _verify_case(case, device, quick, seed)
        else:
            report = _verify_own(op, model, device, mutants, quick, seed)
        _show(report, _console(json), case is not None)
        _write(report.to_dict(), report.to_json(), json, html, "verify.html")
        raise typer.Exit(EXIT[report.status])


Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The run's folder; numbered under runs/ if left out.")
]


class Family(StrEnum):
    moe = "moe"
    dense = "dense"


class Precision(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="TOML or JSON with any option; flags override it.")
    ] = None,
    model: Annotated[Family | None, typer.Option(help="A sparse mixture of experts, or the dense baseline.")] = None,
    size: Annotated[str | None, typer.Option(help="nano, tiny, medium, full; dense also 0.7b.")] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="synthetic[:regimes=N,rows=N]|FILE", help="The synthetic set, a CSV or a Parquet."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COL", help="The column to decide.")] = None,
    metrics: Annotated[str | None, typer.Option(metavar="COLS", help="Numbers to predict beside it: a,b,c.")] = None,
    categorical: Annotated[str | None, typer.Option(metavar="COLS", help="Number-like columns that are names.")] = None,
    ignore: Annotated[str | None, typer.Option(metavar="COLS", help="Columns to leave out.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates at most; early stopping may end sooner.")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows in an update.")] = None,
    lr: Annotated[float | None, typer.Option(help="The peak learning rate.")] = None,
    device: Annotated[Device | None, typer.Option(help="Where to train.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="Of products and activations.")] = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out; needs no other flag.")] = False,
    json: Json = None,
    seed: Annotated[int | None, typer.Option(help="Seeds weights, split and order of the rows.")] = None,
    debug: Debug = False,
) -> None:
    """Train a decision model, and survive a crash.

    Without a flag, trains the nano mixture of experts on the synthetic set. With --data and --target, on your own
    table: columns, missing values and classes are found out. A run is a folder with checkpoints, metrics.jsonl and
    report.html; after Ctrl-C, a crash or a power cut `gradproof train --resume --out DIR` ends with the same bits as
    if nothing had happened.

    Examples:

        gradproof train

        gradproof train --data loans.csv --target approved --out runs/loans

        gradproof train --resume --out runs/loans
    """
    with _errors(debug):
        from gradproof.data.source import check, synthetic_options
        from gradproof.train.config import read_config, resolve
        from gradproof.train.run import lock, start
        from gradproof.train.watch import show_scores

        _check_outputs(json, None)
        flags = dict(model=model, size=size, data=data, target=target, steps=steps, batch=batch, lr=lr, seed=seed)
        lists = dict(metrics=metrics, categorical=categorical, ignore=ignore)
        given = read_config(config) if config else {}
        given |= _said(**flags, device=device, precision=precision)
        given |= {name: [each.strip() for each in value.split(",")] for name, value in _said(**lists).items()}
        resolved = resolve(given)
        if out is None or not (out / "config.json").is_file():
            check(resolved.data, resolved.target, [*resolved.metrics, *resolved.categorical, *resolved.ignore])
            _check_device(Device(resolved.device))
        if "data" in given and synthetic_options(resolved.data) is None:
            given["data"] = os.path.abspath(resolved.data)  # whatever folder it is resumed in
        run = start(out, given, resume)
        _check_device(Device(run.config.device))
        with lock(run):
            record = _train(run, debug)
        show_scores(record, run.path, _console(json))
        from json import dumps

        _write(record, dumps(record, indent=1), json)


def _said(**flags: Any) -> dict[str, Any]:
    """The flags that were given, as plain values."""
    return {name: getattr(value, "value", value) for name, value in flags.items() if value is not None}


def _train(run: Any, debug: bool) -> dict[str, Any]:
    """Exit code 130 where the run was interrupted, by Ctrl-C or SIGTERM."""
    import signal

    from gradproof.train.watch import watching

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with watching() as watch:
            return _train_watched(run, watch, debug)
    except KeyboardInterrupt:
        print(f"interrupted; go on with: gradproof train --resume --out {run.path}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _train_watched(run: Any, watch: Any, debug: bool) -> dict[str, Any]:
    """A run that could not start is taken back; exit code 1 where one that had started must stop."""
    from gradproof.train.loop import Stopped, Trainer, prove
    from gradproof.train.report import finished_report, report, write_report

    done = finished_report(run.path)
    if done is not None:
        watch.say(f"{run.path} is finished; nothing to do")
        return done
    try:
        trainer = Trainer(run, watch)
    except Exception:
        run.discard()
        raise
    try:
        prove(run, trainer.model)
        trainer.resume()
        trainer.train()
        record = report(trainer)
        write_report(run.path, record)
    except Stopped as stopped:
        print(f"gradproof: {stopped}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"gradproof: {_sentence(error)}; then: gradproof train --resume --out {run.path}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    return record


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `gradproof train`.")]


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Option(metavar="FILE", help="CSV or Parquet with the columns that were trained on.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or Parquet to write; CSV on standard output if left out.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Decide every row of a file: decision, probabilities, metrics and gates.

    The best checkpoint of the run decides. Missing values and names that were never seen are fine. Where the file has
    the target too, the accuracy is told.

    Example:

        gradproof predict runs/loans --data new.csv --out decided.csv
    """
    with _errors(debug):
        from json import dumps

        from gradproof.serve.predict import predict_file

        _check_outputs(json, None)
        if json == "-" and out is None:
            raise ValueError("--json - and the predictions would share standard output; give --out a file")
        _check_device(device)
        predictor, _ = _predictor(run, device)
        try:
            scored = predict_file(predictor, data, out)
        except BrokenPipeError:  # whoever read standard output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        said = f"{scored.rows:,} rows decided"
        if scored.accuracy is not None:
            said += f", {scored.accuracy:.2%} of the {scored.known:,} with a known outcome rightly"
        print(said + (f"; written to {out}" if out else ""), file=sys.stderr)
        record = {**scored._asdict(), "out": str(out) if out else None}
        _write(record, dumps(record, indent=1), json)


@app.command()
def serve(
    run: RunFolder,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback let the network in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8080,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    body_limit: Annotated[int, typer.Option(help="Bytes of a request's body at most.", min=1)] = 1 << 20,
    batching: Annotated[bool, typer.Option(help="Decide concurrent requests together.")] = True,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Serve a run over HTTP: POST /predict, GET /healthz, /schema and /metrics (Prometheus).

    Example:

        gradproof serve runs/loans --port 8080
    """
    with _errors(debug):
        from gradproof.serve.service import serve as serve_forever

        _check_device(device)
        predictor, step = _predictor(run, device)
        serve_forever(predictor, host, port, run=str(run), step=step, body_limit=body_limit, batching=batching)


def _predictor(run: Path, device: Device) -> tuple[Any, int]:
    from gradproof.train.load import load_model
    from gradproof.train.predictor import Predictor

    model, schema, step = load_model(run, device.value)
    return Predictor(model, schema, device=device.value), step


def _verify_case(case: str, device: Device, quick: bool, seed: int) -> Report:
    from gradproof.proof.case import load_case
    from gradproof.proof.module import verify

    target = "cuda" if device is Device.cuda else None
    # What the user's code prints must not get into the record on standard output.
    with redirect_stdout(sys.stderr), _progress("judging each tensor") as progress:
        loaded = load_case(case)
        return verify(loaded.module, loaded.inputs, quick=quick, seed=seed, device=target, name=case, progress=progress)


def _verify_own(
    ops: list[str] | None, models: list[str] | None, device: Device, mutants: bool, quick: bool, seed: int
) -> Report:
    import torch

    from gradproof.models.subject import FAMILIES, family, judge_model
    from gradproof.models.wrong_backwards import MUTANTS as OF_MODELS
    from gradproof.ops import NAMES, load
    from gradproof.proof.judge import judge_op
    from gradproof.proof.mutants import run
    from gradproof.proof.verdict import Report
    from gradproof.proof.wrong_backwards import MUTANTS as OF_OPS

    torch.set_num_threads(1)  # small tensors: a second thread gains nothing, and waits where a core is busy
    chosen: list[str] = list(dict.fromkeys([*(ops or []), *(models or [])])) or [*NAMES, *FAMILIES]

    def judge(name: str) -> Iterator[SubjectVerdict]:
        if name in FAMILIES:
            yield from judge_model(name, seed=seed, device=device.value, quick=quick)
        else:
            yield judge_op(load(name), seed=seed, device=device.value, quick=quick)

    for name in models or []:
        family(name)
    for name in ops or []:
        load(name)
    with _progress("proving") as progress:
        subjects = []
        for done, name in enumerate(chosen):
            progress(done, len(chosen))
            subjects += judge(name)
    if not mutants:
        return Report(subjects, device=device.value)
    planted = [mutant for mutant in (*OF_OPS, *OF_MODELS) if mutant.subject in chosen]
    with _progress("planting mutants") as progress:
        found = []
        for verdict in run(planted, judge):
            found.append(verdict)
            progress(len(found), len(planted))
    return Report(subjects, found, device.value)


@app.command()
def sizes(
    rows: Annotated[int, typer.Option(help="Rows in a batch, for the activations.", min=1)] = 8192,
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
    with _errors(debug):
        from json import dumps

        from gradproof.models.sizes import costs

        _check_outputs(json, None)
        found = costs(rows)
        chosen = [name.strip() for name in measure.split(",")] if measure is not None else []
        for name in chosen:
            if name not in [cost.name for cost in found]:
                raise ValueError(
                    f"there is no size {name!r} to measure; the sizes are {', '.join(c.name for c in found)}"
                )
        _check_device(device)
        peaks = _measured(chosen, rows, device) if chosen else {}
        listed = [{**cost._asdict(), "total": cost.total, "measured": peaks.get(cost.name)} for cost in found]
        record = {"rows": rows, "device": device.value, "sizes": listed}
        _write(record, dumps(record, indent=1), json)
        _console(json).print(_sizes_table(listed))
        _console(json).print(f"fp32; activations and working memory for {rows:,} rows (--rows)", style="dim")
        for each in listed:
            if each["measured"] is not None:
                ratio = each["measured"] / each["total"]
                sentence = f"{each['name']}: {_bytes(each['measured'])} measured, {ratio:.3f} of what is predicted"
                _console(json).print(sentence)


def _measured(names: list[str], rows: int, device: Device) -> dict[str, int]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would announce itself
    from gradproof.train.memory import peak_bytes, training_step

    with _progress("measuring") as progress:
        peaks = {}
        for done, name in enumerate(names):
            progress(done, len(names))
            model, size = name.split("-") if "-" in name else ("moe", name)
            peaks[name] = peak_bytes(lambda m=model, s=size: training_step(m, s, rows, device.value), device.value)
    return peaks


def _sizes_table(listed: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    parts = {"weights": "weights", "gradients": "grads", "moments": "moments", "activations": "activated"}
    parts |= {"working": "working", "total": "total"}
    table = Table("size", "parameters", *parts.values(), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for cost in listed:
        table.add_row(cost["name"], f"{cost['parameters']:,}", *(_bytes(cost[part]) for part in parts))
    return table


def _bytes(amount: int) -> str:
    return f"{amount / 2**30:.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"


# What the commands share.


def main() -> None:
    """The console script. Typer itself exits with 130 when interrupted."""
    app()


@contextmanager
def _errors(debug: bool) -> Iterator[None]:
    """Bad input is one sentence and exit code 2; --debug shows where it came from. What nobody foresaw is no verdict
    either: it must not leave with the exit code of `refuted`."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"gradproof: {_sentence(error)}", file=sys.stderr)
        raise typer.Exit(COULD_NOT_START) from None


def _sentence(error: Exception) -> str:
    sentence = " ".join(str(error).split())
    if isinstance(error, (ValueError, OSError)):
        return sentence
    return f"{type(error).__name__}: {sentence} (--debug shows where)"


def _check_outputs(json: str | None, html: Path | None) -> None:
    """Refuses a place that cannot be written before any work is done."""
    files = [Path(json)] if json is not None and json != "-" else []
    files += [html] if html is not None else []
    for file in files:
        if file.is_dir():
            raise ValueError(f"{file} is a directory; name a file in it")
        existing = next(parent for parent in file.absolute().parents if parent.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK)) or existing.is_relative_to("/proc"):
            raise ValueError(f"{file} cannot be written: {existing} is no folder that may be written to")
    if len({file.absolute() for file in files}) < len(files):
        raise ValueError(f"--json and --html both name {html}; give each its own file")


def _check_device(device: Device) -> None:
    if device is Device.cuda:
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no CUDA device here; use --device cpu")


def _write(record: dict[str, Any], text: str, json: str | None, html: Path | None = None, template: str = "") -> None:
    if json == "-":
        print(text)
    elif json:
        Path(json).parent.mkdir(parents=True, exist_ok=True)
        Path(json).write_text(text + "\n")
    if html:
        from gradproof.report.page import render

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(render(template, record))
        print(f"page: {html}", file=sys.stderr)


def _console(json: str | None) -> Any:
    from rich.console import Console

    return Console(stderr=json == "-", highlight=False)


@contextmanager
def _progress(what: str) -> Iterator[Any]:
    """A bar on a terminal, a line at each tenth elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(what)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    shown = -1

    def line(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown and total >= 10:
            shown = tenth
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

    yield line


def _show(report: Report, console: Any, by_tensor: bool) -> None:
    from rich.markup import escape

    console.print(_tensor_table(report) if by_tensor else _subject_table(report))
    if report.mutants is not None:
        console.print(_mutant_table(report))
    for subject in report.subjects if by_tensor else []:
        for note in subject.notes:
            console.print(f"  {escape(note)}", style="dim")
        console.print(f"  {subject.forwards} forwards, one backward", style="dim")
    console.print(f"[{COLOURS[report.status]}]{report.status}[/]: {escape(report.summary)}", soft_wrap=True)


def _tensor_table(report: Report) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "tensor", "status", "error", "bound", "resolution", box=None, pad_edge=False)
    table.columns[1].overflow = "fold"
    for column in table.columns[2:]:
        column.no_wrap = True
    for subject in report.subjects:
        rows = [("parameter", j) for j in subject.parameters] + [("input", j) for j in subject.inputs]
        order = ["refuted", "inconclusive", "proven", "unused"]
        for kind, j in sorted(rows, key=lambda row: order.index(row[1].status)):
            status = f"[{COLOURS[j.status]}]{j.status}[/]"
            table.add_row(kind, escape(j.name), status, _figure(j.error), _figure(j.bound), _figure(j.resolution))
    return table


def _subject_table(report: Report) -> Any:
    from rich.table import Table

    table = Table("subject", "status", "tensors", "claims", "resolution", box=None, pad_edge=False)
    for subject in report.subjects:
        judged = [*subject.parameters, *subject.inputs]
        finest = max((j.resolution for j in judged if j.resolution), default=None)
        status = f"[{COLOURS[subject.status]}]{subject.status}[/]"
        table.add_row(subject.name, status, str(len(judged)), str(len(subject.evidence)), _figure(finest))
    return table


def _mutant_table(report: Report) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("mutant", "status", "refuted by", "in", "tensor", box=None, pad_edge=False)
    for m in report.mutants or []:
        status = "[green]refuted[/]" if m.status == "refuted" else "[bold red]survived[/]"
        table.add_row(escape(m.name), status, m.claim or "", m.subject, escape(m.parameter or ""))
    return table


def _figure(number: float | None) -> str:
    return "" if number is None or number != number else f"{number:.1e}"
