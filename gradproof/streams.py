"""Random streams keyed by purpose: every draw can be reproduced from its key alone."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch


def seeded(*key: Any) -> torch.Generator:
    """A CPU generator keyed by all arguments: each key has its own stream."""
    return torch.Generator().manual_seed(int.from_bytes(_digest(key)[:8], "little", signed=True))


def philox(*key: Any) -> np.random.Philox:
    """numpy's counter-based generator with the same keys: the same bits on every machine."""
    return np.random.Philox(key=int.from_bytes(_digest(key)[:16], "little"))


def _digest(key: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(":".join(map(str, key)).encode()).digest()


def on_device(generator: torch.Generator, device: torch.device | str) -> torch.Generator:
    """A generator with the same seed on `device`, so that large draws need no transfer."""
    if torch.device(device).type == "cpu":
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())
