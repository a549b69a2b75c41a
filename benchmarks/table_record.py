"""The record of benchmarks/tables.py: a JSON file that is whole after every figure, and says where each comes from.

It has four parts, `folds`, `search`, `sizes` and `regression`, each a list of entries. An entry carries the commit, a
digest of the code that was measured, the date, and whether its seconds were measured with nothing running beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from table_contestants import ROOT

SUITE = "tables"
# What tells an entry from the others of its part; a new entry replaces the one that agrees in all of them.
KEYS = {
    "folds": ("table", "repeat", "fold", "contestant"),
    "search": ("table", "contestant", "trial"),
    "sizes": ("rows",),
    "regression": ("table", "repeat", "fold", "contestant"),
}
LIBRARIES = ("torch", "numpy", "polars", "scikit-learn", "lightgbm")
MEASURED = ("gradproof", *(f"benchmarks/table_{name}.py" for name in ("contestants", "scores", "search", "sets")))
THREADS = 2  # that seconds are measured with


class Record:
    """Figures by part, kept in a file if there is one."""

    def __init__(self, file: Path | None, setting: Mapping[str, Any]):
        """`setting` is what every new entry says of how it was measured."""
        self.file = file
        self.origin = {"commit": commit(), "code": code()}
        self.setting = dict(setting)
        self.content: dict[str, Any] = {"suite": SUITE, "environment": environment(), **{part: [] for part in KEYS}}
        if file is not None and file.exists():
            before = read(file)
            check_environment(before, self.content["environment"], file)
            self.content |= {part: before.get(part, []) for part in KEYS}

    def known(self, part: str, **key: Any) -> dict[str, Any] | None:
        """The entry under this key, if this code made it and its seconds are as good as those of this run."""
        wanted = [key[name] for name in KEYS[part]]
        for entry in self.content[part]:
            if [entry[name] for name in KEYS[part]] == wanted and self._current(entry):
                return entry
        return None

    def add(self, part: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps an entry in place of an older one, and writes the file. SystemExit where the code was edited since the
        run began: nobody could say what was measured."""
        from gradproof.bench.origin import now
        from gradproof.files import write_atomically

        if code() != self.origin["code"]:
            raise SystemExit("the code changed during the run; start it again, with --resume to keep what is recorded")
        stamped = {**entry, **self.origin, "date": now(), **self.setting}
        others = [e for e in self.content[part] if any(e[name] != entry[name] for name in KEYS[part])]
        self.content[part] = [*others, stamped]
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, json.dumps(self.content, indent=1) + "\n")
        return stamped

    def _current(self, entry: Mapping[str, Any]) -> bool:
        """A clean commit's entry stays good while later commits leave the code alone."""
        same_commit = entry["commit"] == self.origin["commit"]
        clean = entry["commit"] is not None and not entry["commit"].endswith("-dirty")
        timed = entry["seconds_comparable"] or not self.setting["seconds_comparable"]
        return entry["code"] == self.origin["code"] and (same_commit or clean) and timed


def read(file: Path) -> dict[str, Any]:
    """A record of this script; SystemExit with a sentence for anything else."""
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(record, dict) or record.get("suite") != SUITE:
        raise SystemExit(
            f"{file} is no record of this version of benchmarks/tables.py; name another file, or delete it"
        )
    return record


def check_environment(record: Mapping[str, Any], here: Mapping[str, Any], file: Path) -> None:
    """Figures made with other libraries or on another processor do not belong beside these."""
    for name, value in here.items():
        if record["environment"].get(name) != value:
            raise SystemExit(
                f"{file} was measured with {name} {record['environment'].get(name)}, here it is {value}; name another "
                "file with --json"
            )


def environment() -> dict[str, str | None]:
    """Versions of the libraries and the processor."""
    from gradproof.bench.origin import machine

    versions = {name: _version(name) for name in LIBRARIES}
    return {"python": sys.version.split()[0], **versions, "processor": machine("cpu")["processor"]}


def setting(jobs: int, threads: int, minutes: float | None = None) -> dict[str, Any]:
    """How entries are measured. Seconds compare only with two threads on two cores, one fold at a time, and in the
    default time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    comparable = jobs == 1 and threads == THREADS and cores >= THREADS and minutes is None
    return {"jobs": jobs, "threads": threads, "minutes": minutes, "seconds_comparable": comparable}


def code(root: Path = ROOT) -> str:
    """A digest of all that the figures depend on, read anew at each call."""
    files = [
        file for part in MEASURED for file in ((root / part).rglob("*") if (root / part).is_dir() else [root / part])
    ]
    sources = sorted(file for file in files if file.suffix in (".py", ".h", ".cpp"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]


def commit(root: Path = ROOT) -> str | None:
    """As gradproof finds it, with `-dirty` where anything that the figures depend on differs from it."""
    from gradproof.bench.origin import VARIABLE
    from gradproof.bench.origin import commit as head

    found = head(root)
    if found is None or found.endswith("-dirty") or os.environ.get(VARIABLE, "").strip():
        return found
    status = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain", "--", *MEASURED], capture_output=True, text=True
    )
    return found + ("-dirty" if status.stdout.strip() else "")


def commits(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """All commits that made these entries, sorted."""
    return sorted({str(entry["commit"]) for entry in entries})


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
