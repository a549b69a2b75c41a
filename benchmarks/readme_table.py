"""The tables of speed in docs/speed.md and the README, made from benchmarks/results/step_*.json.

    python benchmarks/readme_table.py                 # rewrites the sections between the two markers
    python benchmarks/readme_table.py --check         # exits with 1 where they are not what the results say
    python benchmarks/readme_table.py --one-commit    # exits with 1 where one clean commit has not made all rows

The results come from `gradproof bench --suite step --json benchmarks/results/step_NAME.json --resume`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"
COLUMNS = (
    *("hardware", "size, rows", "ours", "best peer", "speed-up"),
    *("share of the hot peak", "memory against best peer"),
)
FEW_COLUMNS = ("hardware", "size, rows", "Gradproof", "best PyTorch peer", "speed-up")
FEW = ("2 CPU cores, nano, 256", "NVIDIA H200, nano, 8,192", "NVIDIA H200, medium, 32,768")  # the README's rows
OLD = "before records carried commits"
HERE = Path(__file__).resolve().parent


class Measured(NamedTuple):
    """A row of a record, and the record."""

    file: str
    record: dict[str, Any]
    row: dict[str, Any]

    @property
    def hardware(self) -> str:
        environment = self.record["environment"]
        if environment["device"] != "cpu":
            return environment["device"]
        return f"{environment['threads']} CPU core{'s' if environment['threads'] > 1 else ''}"

    @property
    def case(self) -> str:
        """Size and rows; of a gate, whether its sequences are padded."""
        size, padded = self.row["size"].removesuffix("-unpadded"), ""
        if size == "transformer-gate":
            padded = ", unpadded" if self.row["size"].endswith("-unpadded") else ", padded"
        return f"{size}, {self.row['rows']:,}{padded}"

    @property
    def commits(self) -> set[str | None]:
        """Of everybody in the row; None for figures that do not say."""
        return {entry.get("commit") for entry in self.row["contestants"]}

    @property
    def codes(self) -> set[str | None]:
        """Digests of the code that was measured."""
        return {entry.get("code") for entry in self.row["contestants"]}


def rows_of(results: dict[str, dict[str, Any]]) -> list[Measured]:
    """All rows of the table; ValueError where two files have the same one."""
    rows = [Measured(file, record, row) for file, record in results.items() for row in record["rows"]]
    rows = [measured for measured in rows if measured.row.get("speedup")]
    seen: dict[tuple[str, ...], str] = {}
    for measured in rows:
        key = (measured.hardware, measured.case, measured.row["precision"])
        if key in seen:
            raise ValueError(f"{seen[key]} and {measured.file} both have {measured.case} on {measured.hardware}")
        seen[key] = measured.file
    return rows


def section(rows: list[Measured]) -> str:
    """The table in Markdown and what it was measured with, between its markers."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(cells(measured))} |" for measured in rows]
    return "\n".join([BEGIN, *lines, "", *origins(rows), END])


def few(rows: list[Measured]) -> str:
    """The README's three rows, between their markers."""
    chosen = [measured for measured in rows if f"{measured.hardware}, {measured.case}" in FEW]
    lines = [f"| {' | '.join(FEW_COLUMNS)} |", f"|{'---|' * len(FEW_COLUMNS)}"]
    for measured in chosen:
        hardware, case, ours, _, speedup, *_ = cells(measured)
        lines.append(f"| {hardware} | {case} | {ours} | {milliseconds(best_peer(measured)['ms'])} | {speedup} |")
    return "\n".join([BEGIN, *lines, END])


def best_peer(measured: Measured) -> dict[str, Any]:
    """The fastest peer, captured or not."""
    peers = (measured.row["best_uncaptured"], measured.row["best_captured"])
    return min((peer for peer in peers if peer), key=lambda peer: peer["ratio"])


def cells(measured: Measured) -> list[str]:
    """One size at one number of rows."""
    row, ours = measured.row, measured.row["contestants"][0]
    uncaptured, captured = row["best_uncaptured"], row["best_captured"]
    best = best_peer(measured)
    named = f"{best['name']}, {milliseconds(best['ms'])}"
    if best is captured and uncaptured:
        named += f" (uncaptured: {uncaptured['name']}, {milliseconds(uncaptured['ms'])}, {uncaptured['ratio']:.1f}x)"
    return [
        f"{measured.hardware}, {row['precision']}",
        measured.case,
        milliseconds(best.get("ours_ms", ours["ms"])),  # in the turns that the two took together
        named + lacking(row),
        f"**{row['speedup']:.2f}x**",
        share(measured, ours),
        f"{row['memory_against_best']:.2f}x",
    ]


def lacking(row: dict[str, Any]) -> str:
    """Says so where some peers are still to be measured, or where the row was measured before all peers were."""
    done = {entry["name"] for entry in row["contestants"] if "ms" in entry or "tries" not in entry}
    peers = row.get("peers")
    if peers is None:
        return f"; {len(done) - 1} peer{'s' if len(done) > 2 else ''} measured"
    return "" if done.issuperset(peers) else f"; {len(done & set(peers))} of {len(peers)} peers measured"


def share(measured: Measured, ours: dict[str, Any]) -> str:
    """Of the peak of a product on a hot device; older records have the peak of a short burst."""
    fraction = ours.get("share_of_peak")
    hot = "peak_tflops_hot" in measured.row or "peak_tflops_hot" in measured.record
    return "" if fraction is None else f"{fraction:.0%}" if hot else f"{fraction:.0%} of the cold"


def origins(rows: list[Measured]) -> list[str]:
    """For each hardware: commits, days, power limit and clock."""
    sentences = []
    for hardware in dict.fromkeys(measured.hardware for measured in rows):
        own = [measured for measured in rows if measured.hardware == hardware]
        commits = sorted({commit for measured in own for commit in measured.commits if commit})
        named = [f"commit{'s' if len(commits) > 1 else ''} {', '.join(f'`{commit}`' for commit in commits)}"]
        old = [measured for measured in own if None in measured.commits]
        if old:
            named = [*(named if commits else []), OLD if len(old) == len(own) else f"{len(old)} rows {OLD}"]
        days = sorted({measured.row["date"][:10] for measured in own if "date" in measured.row})
        named += [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else []
        sentences.append(f"{hardware}: {', '.join([*named, *powers(own)])}.")
    return [f"Measured on {' '.join(sentences)}"] if sentences else []


def powers(rows: list[Measured]) -> list[str]:
    """Power limits and highest clocks, as far as they are known."""
    machines = [measured.record.get("machine", {}) for measured in rows]
    limits = sorted({machine["power_limit_w"] for machine in machines if machine.get("power_limit_w")})
    clocks = sorted({machine["clock_max_mhz"] for machine in machines if machine.get("clock_max_mhz")})
    limited = [f"power limit {', '.join(f'{limit:.0f}' for limit in limits)} W"] if limits else []
    return limited + ([f"at most {', '.join(f'{clock:,.0f}' for clock in clocks)} MHz"] if clocks else [])


def check_one_commit(rows: list[Measured]) -> str | None:
    """Why these rows are not all of one clean commit, or None."""
    without = [measured for measured in rows if None in measured.commits]
    if without:
        return (
            f"{len(without)} of {len(rows)} rows carry no commit, the first is {without[0].case} in {without[0].file}"
        )
    commits = sorted({str(commit) for measured in rows for commit in measured.commits})
    if len(commits) > 1 or len(set().union(*(measured.codes for measured in rows))) > 1:
        return f"the rows are of more than one commit: {', '.join(commits)}"
    if commits[0].endswith("-dirty"):
        return f"the rows were measured with changes that are in no commit: {commits[0]}"
    return None


def milliseconds(ms: float) -> str:
    """Three digits that mean something."""
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:.0f} ms"


def replaced(page: str, table: str) -> str:
    """The page with the section put in."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no section between {BEGIN} and {END}; put the two lines where the table belongs")
    return before + table + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 where the section is stale")
    parser.add_argument("--one-commit", action="store_true", help="change nothing, exit with 1 where commits differ")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "speed.md", help="gets all rows")
    parser.add_argument("--readme", type=Path, default=HERE.parent / "README.md", help="gets three of them")
    options = parser.parse_args()
    try:
        results = {path.name: json.loads(path.read_text()) for path in sorted(options.results.glob("step_*.json"))}
        rows = rows_of(results)
        if not rows:
            raise ValueError(f"there is no step_*.json in {options.results}; `gradproof bench --suite step` makes them")
        files = {options.page: section(rows), options.readme: few(rows)}
        stale = {}
        for file, table in files.items():
            text = file.read_text()
            if (wanted := replaced(text, table)) != text:
                stale[file] = wanted
    except (OSError, ValueError, KeyError) as error:
        print(f"readme_table: {error}", file=sys.stderr)
        return 2
    reasons = [f"{file} is stale: run python benchmarks/readme_table.py" for file in stale]
    if options.one_commit:
        reasons = [*(reasons if options.check else []), *filter(None, [check_one_commit(rows)])]
    if options.check or options.one_commit:
        for reason in reasons:
            print(f"readme_table: {reason}", file=sys.stderr)
        return int(bool(reasons))
    for file, wanted in stale.items():
        file.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
