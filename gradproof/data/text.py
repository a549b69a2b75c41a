"""Text as bytes: the training, validation and test parts, and windows of them as tokens.

A byte is a token, so nothing is out of vocabulary; START stands before the first byte of every window. Parts are
stretches of the file in its own order: what is scored comes after what was trained on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradproof.files import sync
from gradproof.streams import philox

START = 256
PADDING = -1  # as ops/embedding.py has it, which would load torch
VOCABULARY = 257
COPY = "text.bin"


@dataclass
class Text:
    """The bytes of a run, mapped, and where its parts begin and end."""

    byte_N: np.ndarray
    bounds: tuple[int, int, int, int]

    def part(self, part: int) -> np.ndarray:
        """The bytes of TRAIN, VALIDATION or TEST."""
        return self.byte_N[self.bounds[part] : self.bounds[part + 1]]


def check(data: str, named: Sequence[str]) -> None:
    """What can be said at once; `named` are columns, which a text does not have."""
    path = Path(data)
    if data.partition(":")[0] == "synthetic":
        raise ValueError("a transformer needs a text file: --data FILE.txt")
    if named:
        raise ValueError(f"--model transformer trains on text, which has no column {named[0]!r}; omit it")
    if not path.is_file():
        raise ValueError(f"--data {data}: there is no such file; a transformer needs a text file")
    if path.suffix.lower() in (".csv", ".parquet"):
        raise ValueError(f"--data {data} is a table; use --model moe or dense; a transformer trains on text")


def open_text(data: str, shares: tuple[float, float], folder: Path, context: int) -> Text:
    """The file `data`, copied into `folder` once and read from there ever after. `shares` of it are held out for
    validation and for test."""
    own = folder / COPY
    if not own.exists():
        aside = folder / f".partial-{COPY}"
        shutil.copyfile(data, aside)
        sync(aside)
        os.replace(aside, own)
        sync(folder)
    length = own.stat().st_size
    held, tested = (max(1, round(share * length)) for share in shares)
    if length - held - tested < context:
        raise ValueError(f"{data} has {length:,} bytes: too few for windows of {context} bytes and held-out text")
    first = length - held - tested
    return Text(np.memmap(own, np.uint8, "r"), (0, first, first + held, length))


class Windows:
    """`windows[s]` are the places in the training bytes where the windows of batch s begin: a function of seed and
    step alone."""

    def __init__(self, length: int, context: int, batch: int, seed: int):
        self.places, self.batch, self.seed = length - context + 1, batch, seed

    def __getitem__(self, step: int) -> np.ndarray:
        return np.random.Generator(philox(self.seed, "windows", step)).integers(0, self.places, self.batch)


def at_places(byte_N: np.ndarray, place_B: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """token_BS and target_BS, int64: START and the bytes but the last of each window, and the bytes."""
    target_BS = byte_N[place_B[:, None] + np.arange(context)].astype(np.int64)
    return _shifted(target_BS), target_BS


def in_turn(byte_N: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for windows that follow each other: every byte is predicted once; the last window is padded."""
    count = -(-len(byte_N) // context)
    target_BS = np.full(count * context, PADDING, np.int64)
    target_BS[: len(byte_N)] = byte_N
    target_BS = target_BS.reshape(count, context)
    return _shifted(target_BS), target_BS


def _shifted(target_BS: np.ndarray) -> np.ndarray:
    """What stands before each target; padding where there is none."""
    token_BS = np.concatenate([np.full((len(target_BS), 1), START), target_BS[:, :-1]], 1)
    return np.where(target_BS == PADDING, PADDING, token_BS)
