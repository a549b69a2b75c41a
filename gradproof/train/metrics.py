"""metrics.jsonl: one JSON line per logged step, truncated to the checkpoint when a run resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradproof.files import sync, write_atomically

KEPT, DECAY = 20, 0.99


def ema(previous: float | None, loss: float) -> float:
    """0.99·ema + 0.01·loss; the first value is the loss itself."""
    return loss if previous is None else DECAY * previous + (1 - DECAY) * loss


def trend(losses: Sequence[float]) -> float:
    """Mean of the last 10 losses minus the mean of the 10 before; 0 while there are fewer than 20."""
    if len(losses) < KEPT:
        return 0.0
    return sum(losses[-10:]) / 10 - sum(losses[-20:-10]) / 10


class MetricsFile:
    """Appends lines; what is not finite is written as null."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        line = json.dumps({name: finite(value) for name, value in record.items()}, allow_nan=False)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def sync(self) -> None:
        """What was appended is on disk when this returns."""
        if self.path.exists():
            sync(self.path)

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; a line torn by a crash is none."""
        if not self.path.exists():
            return []
        records = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
        return records

    def cut(self, step: int) -> None:
        """Forgets everything after `step`."""
        kept = [json.dumps(record) for record in self.read() if record["step"] <= step]
        if kept or self.path.exists():
            write_atomically(self.path, "".join(line + "\n" for line in kept))


def finite(value: Any) -> Any:
    """NaN and infinities as None, in lists too."""
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def memory_bytes(device: str) -> int:
    """The most memory used so far: by tensors on a GPU, by the process on a CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
