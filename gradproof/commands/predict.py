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
    data: Annotated[Path, typer.Option(metavar="FILE", help="CSV or Parquet with the columns that were trained on.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or Parquet to write; CSV on standard output if left out.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="COLS|all", help="Input columns to copy to the output: a,b,c.")
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(metavar="CLASS=COST,…", help="What a wrong decision costs for rows of each class; default: 1."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Name the five columns that moved each decision most.")
    ] = False,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    json: Json = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Decide every row of a file: decision, probabilities, metrics and gates; of a number, mean, low and high.

    The best checkpoint of the run decides. Missing values and names that were never seen are fine; values that do not
    fit their column count as missing, with a warning. Where the file has the target too, the accuracy is told.

    With --costs the decision is the class with the lowest expected cost of a mistake instead of the most probable one.
    The probabilities stay the same.

    --explain adds because_1 to because_5, such as `Age = 62 (+1.31)`: the column, its value, and by how much it moved
    the logit of the decision, against the mean training row. --json has all of it as numbers.

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
            raise ValueError("--json - and the predictions would share standard output; give --out a file")
        check_device(device)
        predictor, _ = load_predictor(run, device.value)
        if predictor.schema.quantity and (costs is not None or explain):
            raise ValueError("--costs and --explain are for decisions; this run predicts a number")
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
        return said + (f", mistakes cost {cost:.4g} a row" if cost is not None else "")
    said, error, coverage = f"{scored.rows:,} rows predicted", scored.rmse, scored.coverage  # type: ignore[union-attr]
    if error is None:
        return said
    known = f"{scored.known:,} with a known value"
    return f"{said}; RMSE {error:.4g} on the {known}, {coverage:.1%} of them in their intervals"
