"""Random streams keyed by what they are for: every draw can be made again, from nothing but its key."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch


def seeded(*key: Any) -> torch.Generator:
    """A torch generator on the CPU, keyed by everything given: each draw has a stream of its own."""
    return torch.Generator().manual_seed(int.from_bytes(_digest(key)[:8], "little", signed=True))


def philox(*key: Any) -> np.random.Philox:
    """numpy's counter-based bits, keyed the same way: the same bits on every machine."""
    return np.random.Philox(key=int.from_bytes(_digest(key)[:16], "little"))


def _digest(key: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(":".join(map(str, key)).encode()).digest()


def on_device(generator: torch.Generator, device: torch.device | str) -> torch.Generator:
    """One of the same seed whose numbers are drawn on a device: what is large is not carried there."""
    if torch.device(device).type == "cpu":
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())
