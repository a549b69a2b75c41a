"""Checkpoints: `checkpoints/step-N/` with the weights, the rest of the training state, and checksums.

Written as `.partial-step-N`, synced, renamed: what has its name is whole, and a crash costs at most the newest one. No
file but state.json knows a time or a host, and nothing is pickled.

Several ranks write one checkpoint: rank 0 the files above, rank R `model-R.safetensors` and `step-R.safetensors`. Names
are those of the whole model, and `NAME@START` is a piece of a tensor, from its number START on. So a checkpoint does
not depend on how the ranks had shared the work.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from gradproof.files import publish, sync

MODEL, STEP, STATE, SUMS = "model.safetensors", "step.safetensors", "state.json", "sha256.json"
KEEP = 2


class Checkpoint(NamedTuple):
    """`state` is plain data: the step, the best validation so far, the last losses."""

    folder: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return self.state["step"]

    def tensors(self, file: str) -> Stored:
        """MODEL: parameters and buffers by name. STEP: moments, counts, loss scale. Read when they are asked for."""
        parts = self.folder.glob(f"{Path(file).stem}-*.safetensors")
        return Stored([self.folder / file, *sorted(parts)])


class Stored(Mapping[str, Tensor]):
    """The tensors in some files by name. One that was stored in pieces is put together, as a vector."""

    def __init__(self, files: Sequence[Path]):
        self._files = [safe_open(file, framework="numpy") for file in files]
        self._pieces: dict[str, list[tuple[int, Any, str]]] = {}
        for file in self._files:
            for key in file.keys():  # noqa: SIM118
                name, _, start = key.partition("@")
                self._pieces.setdefault(name, []).append((int(start or 0), file, key))

    def __getitem__(self, name: str) -> Tensor:
        pieces = [torch.from_numpy(file.get_tensor(key)) for _, file, key in sorted(self._pieces[name], key=_start)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)


def _start(piece: tuple[int, Any, str]) -> int:
    return piece[0]


def save(
    checkpoints: Path, step: int, model: Mapping[str, Tensor], rest: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Checkpoint:
    """Writes step-N, or nothing: on an error the folder being written is removed."""
    aside = begin(checkpoints, step)
    try:
        return finish(aside, step, write_part(aside, model, rest), state)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def begin(checkpoints: Path, step: int) -> Path:
    """An empty folder to write step-N in."""
    aside = checkpoints / f".partial-step-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    return aside


def write_part(aside: Path, model: Mapping[str, Tensor], rest: Mapping[str, Tensor], rank: int = 0) -> dict[str, str]:
    """What one rank has of a checkpoint. Returns the digest of each file, which is on disk then."""
    sums = {}
    for file, tensors in ((MODEL, model), (STEP, rest)):
        name = f"{Path(file).stem}-{rank}.safetensors" if rank else file
        if rank and not tensors:
            continue
        save_file({key: tensor.detach().cpu().numpy() for key, tensor in tensors.items()}, aside / name)
        sync(aside / name)
        sums[name] = _sha256(aside / name)
    return sums


def finish(aside: Path, step: int, sums: Mapping[str, str], state: Mapping[str, Any]) -> Checkpoint:
    """Gives a checkpoint its name, when all its parts are there."""
    record = {**state, "step": step}
    (aside / STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")
    (aside / SUMS).write_text(json.dumps({**sums, STATE: _sha256(aside / STATE)}, indent=1), encoding="utf-8")
    folder = aside.parent / f"step-{step}"
    publish(aside, folder)
    return Checkpoint(folder, record)


def load(folder: Path) -> Checkpoint:
    """A checkpoint whose every byte is what was written; ValueError says what is not."""
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        for file in dict.fromkeys((MODEL, STEP, STATE, *sums)):
            if _sha256(folder / file) != sums[file]:
                raise ValueError(f"{file} is damaged")
        return Checkpoint(folder, json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"checkpoint {folder.name} cannot be read: {error}") from None


def steps(checkpoints: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    names = [folder.name.removeprefix("step-") for folder in checkpoints.glob("step-*")]
    return sorted(int(step) for step in names if step.isdigit())


def best(checkpoints: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The one with the best validation, or the newest where that one is damaged, saying so."""
    latest = newest(checkpoints, say)
    step = latest.state["progress"]["best_step"] if latest is not None else None
    if latest is None or step in (None, latest.step):
        return latest
    try:
        return load(checkpoints / f"step-{step}")
    except ValueError as error:
        say(f"{error}; taking the newest, step {latest.step}")
        return latest


def set_aside(checkpoints: Path, after: int) -> None:
    """Takes away what a crash left half written, and out of the way what is damaged, later than the step `after`."""
    for leftover in checkpoints.glob(".partial-*"):
        shutil.rmtree(leftover)
    for step in steps(checkpoints):
        if step > after:
            damaged = checkpoints / f".damaged-step-{step}"
            shutil.rmtree(damaged, ignore_errors=True)
            (checkpoints / f"step-{step}").rename(damaged)


def newest(checkpoints: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest that is whole; what is damaged is said and passed over."""
    for step in reversed(steps(checkpoints)):
        try:
            return load(checkpoints / f"step-{step}")
        except ValueError as error:
            say(f"{error}; falling back to the one before")
    return None


def prune(checkpoints: Path, best: int | None) -> None:
    """Keeps the newest few and the best."""
    for step in steps(checkpoints)[:-KEEP]:
        if step != best:
            shutil.rmtree(checkpoints / f"step-{step}")


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
