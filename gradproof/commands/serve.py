"""`gradproof serve`. Everything heavy is imported inside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradproof.commands.options import Debug, Device, NoSeed, RunFolder
from gradproof.commands.terminal import check_device, errors


def serve(
    run: RunFolder,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="Address to listen on. Any address but loopback opens the service to the network."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 8080,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = Device.cpu,
    body_limit: Annotated[int, typer.Option(metavar="BYTES", help="Maximum size of a request body.", min=1)] = 1 << 20,
    batching: Annotated[bool, typer.Option(help="Process concurrent requests as one batch.")] = True,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Serve the predictions of a run over HTTP.

    Routes: POST /predict, GET /healthz, /schema and /metrics (Prometheus). A request {"records": [...], "explain":
    true} also returns the columns that moved each decision most.

    \b
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
