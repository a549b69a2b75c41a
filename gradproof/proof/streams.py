"""Random streams keyed by what they are for, so that every draw of a judgement can be made again."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def seeded(*key: Any) -> torch.Generator:
    """A generator on the CPU keyed by everything given: each draw has a stream of its own."""
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
