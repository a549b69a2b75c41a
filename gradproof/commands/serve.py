"""`gradproof serve`. Everything heavy is imported inside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradproof.commands.options import Debug, Device, NoSeed, RunFolder
from gradproof.commands.terminal import check_device, errors


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

    {"records": [...], "explain": true} also says which columns moved each decision most.

    Example:

        gradproof serve runs/loans --port 8080
    """
    with errors(debug):
        from gradproof.serve.service import serve as serve_forever
        from gradproof.train.explanation import load_explainer
        from gradproof.train.load import load_predictor

        check_device(device)
        predictor, step = load_predictor(run, device.value)
        explainer = load_explainer(run, predictor)
        options: dict[str, Any] = dict(run=str(run), step=step, body_limit=body_limit, batching=batching)
        serve_forever(predictor, host, port, explainer=explainer, **options)
