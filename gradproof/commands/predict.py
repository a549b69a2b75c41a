"""`gradproof predict`. Everything heavy is imported inside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradproof.commands.options import Debug, Device, Json, NoSeed, RunFolder
from gradproof.commands.terminal import check_device, check_outputs, errors, write

if TYPE_CHECKING:
    from gradproof.serve.predict import PredictedFile, PredictedNumbers


def predict(
    run: RunFolder,
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV or Parquet file with the columns of the training table.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or Parquet file to write. Default: CSV on standard output.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="COLS|all", help="Input columns to copy to the output: a,b,c, or all.")
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(metavar="CLASS=COST,...", help="Cost of a wrong decision for rows of each class. Default: 1."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the five columns that moved each decision most.")
    ] = False,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = Device.cpu,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Predict every row of a file with a trained run.

    Writes the decision, the probabilities, metrics and gates of each row; for a numeric target, the mean and a 90%
    interval. The best checkpoint is used. Missing values and unseen categories are allowed. Values that do not fit
    their column count as missing, with a warning. If the file has the target, the accuracy is printed.

    With --costs, the decision is the class with the lowest expected cost instead of the most probable one. The
    probabilities do not change.

    --explain adds the columns because_1 to because_5, such as `Age = 62 (+1.31)`: the column, its value, and how far it
    moved the logit of the decision, compared with the mean training row. --json gives them as numbers.

    \b
    Examples:
      gradproof predict runs/loans --data new.csv --out decided.csv
      gradproof predict runs/loans --data new.csv --keep id,name --out decided.csv
      gradproof predict runs/loans --data new.csv --costs bad=5 --out out.csv
      gradproof predict runs/loans --data new.csv --explain --out decided.csv
    """
    with errors(debug):
        from json import dumps

        from gradproof.serve.predict import predict_file
        from gradproof.train.costs import read_costs
        from gradproof.train.explanation import load_explainer
        from gradproof.train.load import load_predictor

        check_outputs(json, None, out)
        kept = None if keep == "all" else [name.strip() for name in (keep or "").split(",") if name.strip()]
        if json == "-" and out is None:
            raise ValueError(
                "--json - and the predictions would both go to standard output; use --out for the predictions"
            )
        check_device(device)
        predictor, _ = load_predictor(run, device.value)
        if predictor.schema.quantity and (costs is not None or explain):
            raise ValueError("--costs and --explain need a classifier; this run predicts a number")
        cost_C = None if costs is None else read_costs(costs, predictor.schema.classes)
        explainer = load_explainer(run, predictor) if explain else None
        try:
            scored = predict_file(predictor, data, out, kept, cost_C, explainer, record_explanations=json is not None)
        except BrokenPipeError:  # whoever read standard output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        print(_counted(scored) + (f"; written to {out}" if out else ""), file=sys.stderr)
        for name, unread in scored.unread.items():
            print(f"warning: {unread.sentence(name)}", file=sys.stderr)
        unread = {name: {"values": u.values, "row": u.row, "first": u.value} for name, u in scored.unread.items()}
        record = {**scored._asdict(), "unread": unread, "out": str(out) if out else None}
        if not explain:
            record.pop("explanations", None)
        write(record, dumps(record, indent=1), json)


def _counted(scored: PredictedFile | PredictedNumbers) -> str:
    """How many rows, and how well where that is known."""
    if hasattr(scored, "accuracy"):
        said, good, cost = f"{scored.rows:,} rows decided", scored.accuracy, scored.cost  # type: ignore[union-attr]
        said += f", {good:.2%} of the {scored.known:,} with a known outcome correctly" if good is not None else ""
        return said + (f", mistakes cost {cost:.4g} per row" if cost is not None else "")
    said, error, coverage = f"{scored.rows:,} rows predicted", scored.rmse, scored.coverage  # type: ignore[union-attr]
    if error is None:
        return said
    known = f"{scored.known:,} with a known value"
    return f"{said}; RMSE {error:.4g} on the {known}, {coverage:.1%} of them in their intervals"
