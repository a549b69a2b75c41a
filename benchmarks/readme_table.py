"""The README's table of speed, made from benchmarks/results/step_*.json.

    python benchmarks/readme_table.py            # rewrites the section between the two markers
    python benchmarks/readme_table.py --check    # exits with 1 where it is not what the results say

The results come from `gradproof bench --suite step --json benchmarks/results/step_NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"
COLUMNS = ("hardware", "size, rows", "ours", "best peer", "speed-up", "share of peak", "memory against best peer")
HERE = Path(__file__).resolve().parent


def section(results: list[dict[str, Any]]) -> str:
    """The table in Markdown, between its markers."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for record in results:
        lines += [f"| {' | '.join(cells(record, row))} |" for row in record["rows"] if row.get("speedup")]
    return "\n".join([BEGIN, *lines, END])


def cells(record: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """One size at one number of rows."""
    ours = row["contestants"][0]
    uncaptured, captured = row["best_uncaptured"], row["best_captured"]
    best = min((peer for peer in (uncaptured, captured) if peer), key=lambda peer: peer["ratio"])
    named = f"{best['name']}, {milliseconds(best['ms'])}"
    if best is captured and uncaptured:
        named += f" (uncaptured: {uncaptured['name']}, {milliseconds(uncaptured['ms'])}, {uncaptured['ratio']:.1f}x)"
    share = ours.get("share_of_peak")
    return [
        f"{hardware(record)}, {row['precision']}",
        f"{row['size']}, {row['rows']:,}",
        milliseconds(ours["ms"]),
        named,
        f"**{row['speedup']:.2f}x**",
        "" if share is None else f"{share:.0%}",
        f"{row['memory_against_best']:.2f}x",
    ]


def hardware(record: dict[str, Any]) -> str:
    """What the figures were measured on."""
    environment = record["environment"]
    if environment["device"] != "cpu":
        return environment["device"]
    return f"{environment['threads']} CPU core{'s' if environment['threads'] > 1 else ''}"


def milliseconds(ms: float) -> str:
    """Three digits that mean something."""
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:.0f} ms"


def replaced(readme: str, table: str) -> str:
    """The README with the section put in."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no section between {BEGIN} and {END}; put the two lines where the table belongs")
    return before + table + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 where the section is stale")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--readme", type=Path, default=HERE.parent / "README.md")
    options = parser.parse_args()
    try:
        results = [json.loads(path.read_text()) for path in sorted(options.results.glob("step_*.json"))]
        if not results:
            raise ValueError(f"there is no step_*.json in {options.results}; `gradproof bench --suite step` makes them")
        readme = options.readme.read_text()
        wanted = replaced(readme, section(results))
    except (OSError, ValueError, KeyError) as error:
        print(f"readme_table: {error}", file=sys.stderr)
        return 2
    if options.check:
        if wanted != readme:
            print(f"{options.readme} is stale: run python benchmarks/readme_table.py", file=sys.stderr)
        return int(wanted != readme)
    options.readme.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
