"""Checkpoints: `checkpoints/step-N/` with the weights, what else the next step depends on, and a checksummed state.

Written as `.partial-step-N`, synced, renamed: what has its name is whole, and a crash costs at most the newest one. No
file but state.json knows a time or a host, and nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from gradproof.files import publish

MODEL, STEP, STATE, SUMS = "model.safetensors", "step.safetensors", "state.json", "sha256.json"
KEEP = 2


class Checkpoint(NamedTuple):
    """`state` is plain data: the step, the best validation so far, the last losses."""

    folder: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return self.state["step"]

    def tensors(self, file: str) -> dict[str, Tensor]:
        """MODEL: parameters and buffers by name. STEP: moments, counts, loss scale."""
        return {name: torch.from_numpy(array) for name, array in load_file(self.folder / file).items()}


def save(
    checkpoints: Path, step: int, model: Mapping[str, Tensor], rest: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Checkpoint:
    """Writes step-N, or nothing: on an error the folder being written is removed."""
    aside = checkpoints / f".partial-step-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        for file, tensors in ((MODEL, model), (STEP, rest)):
            save_file({name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, aside / file)
        record = {**state, "step": step}
        (aside / STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")
        sums = {file: _sha256(aside / file) for file in (MODEL, STEP, STATE)}
        (aside / SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
        publish(aside, checkpoints / f"step-{step}")
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return Checkpoint(checkpoints / f"step-{step}", record)


def load(folder: Path) -> Checkpoint:
    """A checkpoint whose every byte is what was written; ValueError says what is not."""
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        for file in (MODEL, STEP, STATE):
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
