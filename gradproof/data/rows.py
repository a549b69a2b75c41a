"""Rows: a table as compact arrays, in memory or mapped from a folder, so that a table need not fit into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """R rows. A code is a slot of its `Category` (−1: none), a missing number is NaN, a metric is on [0, 1]. Where the
    target is a `Quantity`, it is the only metric, standardised, and the outcome is its stratum."""

    codes_RC: np.ndarray  # int32
    numbers_RN: np.ndarray  # float64
    outcome_R: np.ndarray  # int64, the class; −1 without a target
    metrics_RM: np.ndarray  # float32

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return len(self.outcome_R)

    def take(self, index_T: np.ndarray) -> Rows:
        """The rows at `index_T`, in that order."""
        return Rows(*(array[index_T] for array in self))

    def slice(self, start: int, stop: int) -> Rows:
        """Rows start : stop, as views."""
        return Rows(*(array[start:stop] for array in self))

    def save(self, folder: Path) -> None:
        """Writes one .npy file an array, synced."""
        folder.mkdir(parents=True)
        for name, array in self._asdict().items():
            with open(folder / f"{name}.npy", "wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())

    @classmethod
    def open(cls, folder: Path) -> Rows:
        """The arrays, mapped: pages are read when a batch asks for them."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in cls._fields))
