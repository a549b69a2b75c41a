"""`gradproof predict` and `gradproof serve`. Everything heavy is imported inside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gradproof.options import Debug, Device, Json, NoSeed
from gradproof.terminal import check_device, check_outputs, errors, write

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `gradproof train`.")]


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
