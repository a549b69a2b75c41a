"""A run is a directory. Its first file is config.json, and only one process may train in it at a time.

config.json  schema.json  rows/  evidence.jsonl  metrics.jsonl  checkpoints/step-N/  report.json  report.html
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from gradproof.files import claim, take_back, write_atomically
from gradproof.train.config import LAYOUT, TrainConfig, resolve

# Options that older runs do not name, as they were trained: resumed, they must end with the same bits.
BEFORE = {"patience_after": 0, "task": "classification"}
OWN_FILES = {".lock", ".partial-config.json"}  # what a crash before config.json leaves behind


class Folder(Protocol):
    """What one process at a time may work in."""

    @property
    def path(self) -> Path: ...


class Run:
    """An existing run. `fresh` where this process made it, and `made` the outermost folder that it had to make."""

    def __init__(self, path: Path, *, fresh: bool = False, made: Path | None = None):
        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"{path} is not a run: it has no {file.name}")
        try:
            self.config: TrainConfig = resolve(BEFORE, json.loads(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{file} is not the config of a run: {error}") from None
        self.path, self.fresh, self.made = path, fresh, made

    def settle(self, *, write: bool = True, **options: Any) -> None:
        """Options that are known only now that the table is read. Kept in config.json before the first step, so that
        the run ends with the same bits whenever it is resumed."""
        self.config = replace(self.config, **options, settled=True)
        if not write:  # another rank does
            return
        write_atomically(self.path / "config.json", json.dumps(self.config.to_dict(), indent=1) + "\n")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def discard(self) -> None:
        """Takes a run back that this process could not start: nothing is left of it."""
        if self.fresh:
            take_back(self.path, self.made)


def start(out: Path | None, given: Mapping[str, Any], resume: bool) -> Run:
    """A new run of the options `given`, or with `resume` the one in `out`, whose config they must not contradict."""
    if out is None:
        if resume:
            raise ValueError("--resume needs --out, the run to resume")
        return _create(_free_folder(resolve(given)), given)
    if (out / "config.json").is_file():
        run = Run(out)
        _check_same(run, given)
        if not resume:
            raise ValueError(f"{out} already holds this run; resume it with --resume, or choose another --out")
        return run
    if resume and not given:
        raise ValueError(f"{out} is not a run that can be resumed: it has no config.json; omit --resume to start one")
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"--out {out}: {existing} is a file, but a run is a folder")
    if existing == out and {entry.name for entry in out.iterdir()} - OWN_FILES:
        raise ValueError(f"{out} is not empty and is not a run; choose another --out")
    return _create(out, given)


@contextmanager
def lock(run: Folder) -> Iterator[None]:
    """Holds the run for this process; however the process ends, the system lets go of it."""
    descriptor = os.open(run.path / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ValueError(f"another process is training in {run.path}; wait for it or choose another --out") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _create(path: Path, given: Mapping[str, Any]) -> Run:
    config = resolve(given)
    made = claim(path)
    try:
        write_atomically(path / "config.json", json.dumps(config.to_dict(), indent=1) + "\n", new=True)
    except FileExistsError:
        raise ValueError(f"another process has just started a run in {path}; choose another --out") from None
    except OSError:
        take_back(path, made)
        raise
    return Run(path, fresh=True, made=made)


def _check_same(run: Run, given: Mapping[str, Any]) -> None:
    own, other = run.config.to_dict(), resolve(given).to_dict()
    for name in set(given) - LAYOUT:
        if own[name] != other[name]:
            raise ValueError(
                f"{run.path} has a different config: {name} is {own[name]!r} there and {other[name]!r} here; "
                "choose another --out"
            )


def _free_folder(config: TrainConfig) -> Path:
    """runs/<model>-<size>-<data>, numbered where it is taken."""
    data = Path(config.data.partition(":")[0]).stem
    base = f"table-{data}" if config.recipe == "table" else f"{config.model}-{config.size}-{data}"
    number = 1
    while (path := Path("runs") / (base if number == 1 else f"{base}-{number}")).exists():
        number += 1
    return path
