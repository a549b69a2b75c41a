"""Fetches the public data sets behind the figures in docs, as the benchmarks read them.

    python benchmarks/fetch_data.py DIR        # then: export GRADPROOF_DATA=DIR
    python benchmarks/fetch_data.py DIR --only magic,slp
    python benchmarks/fetch_data.py DIR --check    # fetches nothing, compares what is there

Sources that change (GitHub) give other rows than those that were measured. Each file is compared with the rows behind
the figures, whatever way its numbers are written, and a line says whether it has the same rows.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import re
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

UCI = "https://archive.ics.uci.edu/static/public"
GITHUB = "https://codeload.github.com"
Row = dict[str, Any]

MAGIC = "Length Width Size Conc Conc1 Asym M3Long M3Trans Alpha Dist class"
LETTER = "x_box y_box width high onpix x_bar y_bar x2bar y2bar xybar x2ybr xy2br x_ege xegvy y_ege yegvx"


def magic(archive: zipfile.ZipFile) -> Iterator[Row]:
    for values in _lines(archive, "magic04.data"):
        yield dict(zip(MAGIC.split(), values, strict=True))


def letter(archive: zipfile.ZipFile) -> Iterator[Row]:
    for first, *values in _lines(archive, "letter-recognition.data"):
        yield {**dict(zip(LETTER.split(), values, strict=True)), "letter": first}


def credit_default(archive: zipfile.ZipFile) -> Iterator[Row]:
    """A spreadsheet whose second line has the names."""
    import polars as pl

    (name,) = (name for name in archive.namelist() if name.endswith(".xls"))
    try:
        frame = pl.read_excel(archive.read(name), read_options={"header_row": 1})
    except ImportError:
        raise SystemExit("credit_default is a spreadsheet: pip install fastexcel") from None
    return frame.rename({frame.columns[-1]: "DEFAULT"}).iter_rows(named=True)


def slp(archive: zipfile.ZipFile) -> Iterator[Row]:
    """Ordinary command lines from nl2bash, and malicious ones."""
    for group, label in (("nl2bash", "allow"), ("malicious", "block")):
        for line in dict.fromkeys(_text(archive, f"data/{group}.cm").splitlines()):
            if line.strip():
                yield {"command": line.strip(), "label": label, "group": group}


def tldr(archive: zipfile.ZipFile) -> Iterator[Row]:
    """The examples of the manual pages; `{{path/to/file}}` is what a user fills in."""
    for name in sorted(archive.namelist()):
        page = re.search(r"/(pages/(?:common|linux)/[^/]+\.md)$", name)
        for command in re.findall(r"^`(.+)`$", archive.read(name).decode(), re.MULTILINE) if page else ():
            yield {"command": re.sub(r"\{\{(.*?)\}\}", r"\1", command), "label": "allow", "group": page[1]}  # type: ignore[index]


def redcode_bash(archive: zipfile.ZipFile) -> Iterator[Row]:
    for name in sorted(archive.namelist()):
        if re.search(
            r"RedCode-Exec/bash2text_dataset_json/.*\.json$|RedCode-Exec/bash.*/index.*_full_upd\.json$", name
        ):
            for item in json.loads(archive.read(name)):
                yield {"command": item["Code"], "label": "block", "group": name.rpartition("/")[2]}


def atomic_red_team(archive: zipfile.ZipFile) -> Iterator[Row]:
    """The tests that run in sh or bash, with their placeholders as they stand."""
    import yaml

    for name in sorted(archive.namelist()):
        if re.search(r"/atomics/(T[\d.]+)/\1\.yaml$", name):
            for test in yaml.safe_load(archive.read(name))["atomic_tests"]:
                executor = test.get("executor", {})
                if executor.get("name") in ("sh", "bash") and "linux" in test.get("supported_platforms", ()):
                    command = executor["command"].strip()
                    yield {"command": command, "label": "block", "group": name.rpartition("/")[2]}


class Source(NamedTuple):
    """Where a file comes from, how it is read, and the number and digest of the rows behind the figures."""

    file: str
    url: str | None
    read: Callable[[zipfile.ZipFile], Iterator[Row]] | None
    rows: int
    digest: str


SOURCES = {
    "magic": Source("tables/magic.csv", f"{UCI}/159/magic+gamma+telescope.zip", magic, 19_020, "7984dd7efe876a42"),
    "letter": Source("tables/letter.csv", f"{UCI}/59/letter+recognition.zip", letter, 20_000, "0056e03cbe8b2f9e"),
    "credit_default": Source(
        "tables/credit_default.csv",
        f"{UCI}/350/default+of+credit+card+clients.zip",
        credit_default,
        30_000,
        "b425e94673cb69ff",
    ),
    # Kaggle asks for an account.
    "bank_churn": Source("tables/bank_churn.csv", None, None, 10_000, "5810f523b0b3ab5e"),
    "slp": Source(
        "gate/slp.jsonl",
        f"{GITHUB}/dtrizna/slp/zip/a5c3035f7c9f9491028123c99e15ee3cc612e0ac",
        slp,
        10_742,
        "97980cbd0bbe4ec3",
    ),
    "tldr": Source(
        "gate/tldr.jsonl", f"{GITHUB}/tldr-pages/tldr/zip/refs/heads/main", tldr, 29_488, "a8271eb1af42eca1"
    ),
    "redcode_bash": Source(
        "gate/redcode_bash.jsonl",
        f"{GITHUB}/AI-secure/RedCode/zip/refs/heads/main",
        redcode_bash,
        600,
        "ed268f2c22065adf",
    ),
    "atomic_red_team": Source(
        "gate/atomic_red_team.jsonl",
        f"{GITHUB}/redcanaryco/atomic-red-team/zip/refs/heads/master",
        atomic_red_team,
        509,
        "0171129bb660fa37",
    ),
}


def digest(rows: list[Row]) -> str:
    """Of the values in their order: 22.821 and 22.820999999999998 are the same number."""
    kept = hashlib.sha256()
    for row in rows:
        kept.update(json.dumps([_value(value) for value in row.values()]).encode() + b"\n")
    return kept.hexdigest()[:16]


def _value(value: Any) -> str:
    try:
        return f"{float(value):.9g}"
    except ValueError:
        return str(value).strip()


def read_back(path: Path) -> list[Row]:
    """The rows of a file that was written here."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    return list(csv.DictReader(io.StringIO(text)))


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
            return
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def compared(source: Source, rows: list[Row]) -> str:
    """Whether these are the rows behind the figures."""
    if digest(rows) == source.digest:
        return f"{len(rows):,} rows, those behind the figures"
    return f"{len(rows):,} rows, not the {source.rows:,} behind the figures: expect other scores"


def _text(archive: zipfile.ZipFile, ending: str) -> str:
    names = [name for name in archive.namelist() if name.endswith(ending)]
    if not names:
        raise SystemExit(f"the archive holds no {ending}; its layout has changed")
    return archive.read(names[0]).decode("utf-8", "replace")


def _lines(archive: zipfile.ZipFile, ending: str) -> Iterator[list[str]]:
    return (line for line in csv.reader(io.StringIO(_text(archive, ending))) if line)


def fetch(name: str, source: Source, path: Path) -> list[Row]:
    if source.url is None or source.read is None:
        raise SystemExit(f"cannot be fetched without an account; save Kaggle's Churn_Modelling.csv as {path}")
    with urllib.request.urlopen(source.url, timeout=60) as answer:
        archive = zipfile.ZipFile(io.BytesIO(answer.read()))
    rows = list(source.read(archive))
    if not rows:
        raise SystemExit(f"{name}: nothing was found in {source.url}; its layout has changed")
    write(path, rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--only", help=f"names, separated by commas: {', '.join(SOURCES)}")
    parser.add_argument("--check", action="store_true", help="compare the files that are there, fetch nothing")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(SOURCES)
    if unknown := [name for name in names if name not in SOURCES]:
        sys.exit(f"no data set {unknown[0]!r}; choose from {', '.join(SOURCES)}")
    failed = False
    for name in names:
        path = given.folder / SOURCES[name].file
        try:
            if given.check and not path.exists():
                raise SystemExit(f"{path} does not exist")
            rows = read_back(path) if path.exists() else fetch(name, SOURCES[name], path)
        except (OSError, SystemExit, zipfile.BadZipFile, ModuleNotFoundError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        print(f"{name}: {compared(SOURCES[name], rows)} ({path})", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
