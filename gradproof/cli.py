"""The command line. Everything heavy is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradproof.ablate.commands import ablate
from gradproof.bench.commands import bench
from gradproof.gate.commands import app as gate
from gradproof.options import (
    INTERRUPTED,
    STOPPED,
    ConfigFile,
    Data,
    Debug,
    Device,
    Html,
    Ignore,
    Json,
    NoSeed,
    Precision,
    Seed,
    Target,
    said,
)
from gradproof.terminal import (
    check_device,
    check_outputs,
    console_for,
    errors,
    in_bytes,
    progress_of,
    sentence,
    show_diagnosis,
    show_report,
    sizes_table,
    stages,
    write,
)

if TYPE_CHECKING:
    from gradproof.precision.diagnose import Diagnosis
    from gradproof.proof.verdict import Report, SubjectVerdict

EXIT = {"proven": 0, "refuted": 1, "inconclusive": 3}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Decision models with explicit backward passes, and the proof that they are right.",
    epilog="Exit codes: 0 done or proven, 1 refuted or stopped, 2 could not start, 3 inconclusive, 130 interrupted.",
)
app.add_typer(gate, name="gate")


@app.command()
def verify(
    case: Annotated[
        str | None,
        typer.Argument(metavar="CASE", help="Your own code: `path/to/file.py:function` or `package.module:function`."),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", help="One of Gradproof's ops or encoders; may be repeated.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="moe, dense, transformer or gate; may be repeated.")
    ] = None,
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
    with errors(debug):
        check_outputs(json, html)
        if case is not None and (op or model or mutants):
            raise ValueError("give either a CASE or --op/--model/--mutants, not both")
        check_device(device)
        if case is not None:
            report = _verify_case(case, device, quick, seed)
        else:
            report = _verify_own(op, model, device, mutants, quick, seed)
        show_report(report, console_for(json), case is not None)
        write(report.to_dict(), report.to_json(), json, html, "verify.html")
        raise typer.Exit(EXIT[report.status])


Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The run's folder; numbered under runs/ if left out.")
]


class Family(StrEnum):
    moe = "moe"
    dense = "dense"
    transformer = "transformer"


class Encoding(StrEnum):
    onehot = "onehot"
    padic = "padic"


class Router(StrEnum):
    softmax = "softmax"
    sheaf = "sheaf"


@app.command()
def train(
    config: ConfigFile = None,
    model: Annotated[
        Family | None, typer.Option(help="A mixture of experts, the dense baseline, or a transformer on text.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="nano, tiny, medium, full, or a parameter count; dense also 0.7b.")
    ] = None,
    data: Data = None,
    target: Target = None,
    metrics: Annotated[str | None, typer.Option(metavar="COLS", help="Numbers to predict beside it: a,b,c.")] = None,
    categorical: Annotated[str | None, typer.Option(metavar="COLS", help="Number-like columns that are names.")] = None,
    ignore: Ignore = None,
    encoding: Annotated[
        Encoding | None, typer.Option(help="padic: numbers also by their lowest digits, for what repeats.")
    ] = None,
    router: Annotated[
        Router | None, typer.Option(help="moe: one linear map, or patches of the inputs that must agree.")
    ] = None,
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

        gradproof train --model transformer --data book.txt --out runs/book

        gradproof train --resume --out runs/loans
    """
    with errors(debug):
        from gradproof.data.source import check, synthetic_options
        from gradproof.data.text import check as check_text
        from gradproof.train.config import read_config, resolve
        from gradproof.train.run import lock, start
        from gradproof.train.watch import show_scores

        check_outputs(json, None)
        flags = dict(model=model, size=size, data=data, target=target, steps=steps, batch=batch, lr=lr, seed=seed)
        lists = dict(metrics=metrics, categorical=categorical, ignore=ignore)
        given = read_config(config) if config else {}
        given |= said(**flags, encoding=encoding, router=router, device=device, precision=precision)
        given |= {name: [each.strip() for each in value.split(",")] for name, value in said(**lists).items()}
        resolved = resolve(given)
        if out is None or not (out / "config.json").is_file():
            named = [*resolved.metrics, *resolved.categorical, *resolved.ignore]
            if resolved.model == "transformer":
                check_text(resolved.data, [*([resolved.target] if resolved.target else []), *named])
            else:
                check(resolved.data, resolved.target, named)
            check_device(Device(resolved.device))
        if "data" in given and synthetic_options(resolved.data) is None:
            given["data"] = os.path.abspath(resolved.data)  # whatever folder it is resumed in
        run = start(out, given, resume)
        check_device(Device(run.config.device))
        with lock(run):
            record = _train(run, debug)
        show_scores(record, run.path, console_for(json))
        from json import dumps

        write(record, dumps(record, indent=1), json)


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
    from gradproof.train.text import TextTrainer
    from gradproof.train.text_report import text_report

    done = finished_report(run.path)
    if done is not None:
        watch.say(f"{run.path} is finished; nothing to do")
        return done
    try:
        trainer = TextTrainer(run, watch) if run.config.model == "transformer" else Trainer(run, watch)
    except Exception:
        run.discard()
        raise
    try:
        prove(run, trainer.model)
        trainer.resume()
        trainer.train()
        record = text_report(trainer) if isinstance(trainer, TextTrainer) else report(trainer)
        write_report(run.path, record)
    except Stopped as stopped:
        print(f"gradproof: {stopped}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"gradproof: {sentence(error)}; then: gradproof train --resume --out {run.path}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    return record


app.command()(ablate)

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
    with errors(debug):
        from json import dumps

        from gradproof.serve.predict import predict_file

        check_outputs(json, None)
        if json == "-" and out is None:
            raise ValueError("--json - and the predictions would share standard output; give --out a file")
        check_device(device)
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
        write(record, dumps(record, indent=1), json)


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
    with errors(debug):
        from gradproof.serve.service import serve as serve_forever

        check_device(device)
        predictor, step = _predictor(run, device)
        serve_forever(predictor, host, port, run=str(run), step=step, body_limit=body_limit, batching=batching)


def _predictor(run: Path, device: Device) -> tuple[Any, int]:
    from gradproof.train.load import load_model
    from gradproof.train.predictor import Predictor

    model, schema, step = load_model(run, device.value)
    return Predictor(model, schema, device=device.value), step


class Policy(StrEnum):
    cast = "cast"
    autocast = "autocast"


@app.command()
def diagnose(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CASE",
            help="The folder of a run, or your own code: `path/to/file.py:function` or `module:function`.",
        ),
    ],
    precisions: Annotated[
        str, typer.Option(metavar="FORMATS", help="bf16, fp16, fp8_e4m3, fp8_e5m2, tf32, fp32, or e5m7 and the like.")
    ] = "bf16,fp16,fp8_e4m3",
    policy: Annotated[
        Policy | None, typer.Option(help="Case: how it gets there; left out, cast where the module runs so.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    fail_on: Annotated[
        str, typer.Option(metavar="VERDICTS", help="Exit with 1 if any format has one of these; none to never do.")
    ] = "bug,overflow",
    json: Json = None,
    html: Html = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Rounding noise or a bug? Did the router flip?

    Runs the same state and input in float64 and in each format (simulated to nearest, stochastically rounded several
    times, and for real where the device can), and says for every parameter: bug, overflow, underflow, routing, noise
    or clean. The first format op whose error leaves the band of noise is named, flips are held against their margins.

    A CASE's function takes nothing and returns `(module, inputs)` or `(module, inputs, reference)`.

    Examples:

        gradproof diagnose my_model.py:case --html report.html

        gradproof diagnose runs/loans --precisions bf16 --fail-on bug,overflow,routing
    """
    with errors(debug):
        check_outputs(json, html)
        check_device(device)
        chosen = {word.strip() for word in fail_on.split(",")} - {"", "none"}
        words = ("bug", "overflow", "underflow", "routing", "noise", "clean", "inconclusive")
        if not chosen <= set(words):
            raise ValueError(f"--fail-on {min(chosen - set(words))!r}: a verdict is one of {', '.join(words)}")
        found = _diagnose(subject, [name.strip() for name in precisions.split(",")], policy, device, seed)
        show_diagnosis(found, console_for(json))
        write(found.to_dict(), found.to_json(), json, html, "diagnose.html")
        if chosen & {found.verdict, *(p.verdict for p in found.precisions)}:
            raise typer.Exit(EXIT["refuted"])
        raise typer.Exit(EXIT["inconclusive"] if found.verdict == "inconclusive" else 0)


def _diagnose(subject: str, precisions: list[str], policy: Policy | None, device: Device, seed: int) -> Diagnosis:
    from gradproof.precision.diagnose import checked_formats, diagnose, examine, settled

    formats, way = checked_formats(precisions), policy.value if policy else None
    # What the user's code prints must not get into the record on standard output.
    with redirect_stdout(sys.stderr), stages() as progress:
        if Path(subject).is_dir() or (":" not in subject and "." not in subject):
            from gradproof.train.specimen import run_specimen

            with settled():
                return examine(run_specimen(Path(subject), device.value, seed), formats, "cast", None, seed, progress)
        from gradproof.proof.case import load_case

        progress(f"importing {subject}")
        case = load_case(subject)
        target = "cuda" if device is Device.cuda else None
        options: dict[str, Any] = dict(precisions=formats, policy=way, device=target, seed=seed, name=case.name)
        return diagnose(case.module, case.inputs, reference=case.reference, progress=progress, **options)


def _verify_case(case: str, device: Device, quick: bool, seed: int) -> Report:
    from gradproof.proof.case import load_case
    from gradproof.proof.module import verify

    target = "cuda" if device is Device.cuda else None
    # What the user's code prints must not get into the record on standard output.
    with redirect_stdout(sys.stderr), progress_of("judging each tensor") as progress:
        loaded = load_case(case)
        return verify(loaded.module, loaded.inputs, quick=quick, seed=seed, device=target, name=case, progress=progress)


def _kernels(device: Device) -> list[dict[str, Any]]:
    """The fast kernels at the widths of nano, mixture and transformer: which were admitted on this machine, and by how
    many claims."""
    import torch

    from gradproof.kernels.registry import survey
    from gradproof.models.moe import MoE
    from gradproof.models.transformer import Transformer

    sized = ((MoE.sized("nano"), 256), (Transformer.sized("nano"), 16))
    dtypes = [torch.float32, torch.bfloat16, torch.float16] if device is Device.cuda else [torch.float32]
    with progress_of("admitting kernels") as progress:
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        for done, dtype in enumerate(dtypes):
            progress(done, len(dtypes))
            for model, rows in sized:
                shape = replace(model.shape(rows, dtype), device=device.value)
                found |= {(each["op"], each["kernel"], each["dtype"]): each for each in survey(shape)}
    return list(found.values())


def _verify_own(
    ops: list[str] | None, models: list[str] | None, device: Device, mutants: bool, quick: bool, seed: int
) -> Report:
    import torch

    from gradproof.gate.network import GateNetwork
    from gradproof.gate.wrong_backwards import MUTANTS as OF_GATE
    from gradproof.models.subject import FAMILIES, judge_model
    from gradproof.models.wrong_backwards import MUTANTS as OF_MODELS
    from gradproof.ops import ENCODERS, NAMES, load
    from gradproof.proof.judge import judge_op
    from gradproof.proof.mutants import run
    from gradproof.proof.verdict import Report
    from gradproof.proof.wrong_backwards import MUTANTS as OF_OPS

    torch.set_num_threads(1)  # small tensors: a second thread gains nothing, and waits where a core is busy
    kinds = {**FAMILIES, "gate": GateNetwork}
    chosen: list[str] = list(dict.fromkeys([*(ops or []), *(models or [])])) or [*NAMES, *ENCODERS, *kinds]

    def judge(name: str, quick: bool = quick) -> Iterator[SubjectVerdict]:
        if name in kinds:
            yield from judge_model(name, kinds[name], seed=seed, device=device.value, quick=quick)
        else:
            yield judge_op(load(name), seed=seed, device=device.value, quick=quick)

    def suspect(name: str) -> Iterator[SubjectVerdict]:
        """A mutant that is refuted without differences need not be tried by them."""
        for without in dict.fromkeys((True, quick)):
            yield from judge(name, without)

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
        return Report(subjects, device=device.value, kernels=None if ops or models else _kernels(device))
    planted = [mutant for mutant in (*OF_OPS, *OF_MODELS, *OF_GATE) if mutant.subject in chosen]
    with progress_of("planting mutants") as progress:
        found = []
        for verdict in run(planted, suspect):
            found.append(verdict)
            progress(len(found), len(planted))
    return Report(subjects, found, device.value)


app.command()(bench)


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
