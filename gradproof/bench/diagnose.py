"""The cost of a diagnosis: the overhead of the mode for each op, nano from end to end, and a large module compared with
a plain step.

    python -m gradproof.bench.diagnose step|diagnose DEVICE

runs one of the two large measurements in a process of its own, so that its peak of memory is its own too.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.precision.mode import rounding
from gradproof.precision.watching import Watching

REPEATS, INNER = 15, 20
WAYS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "watched": Watching,
    "nearest": lambda: rounding("bf16"),
    "stochastic": lambda: rounding("bf16", mode="stochastic"),
}
CALLS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda x, w, b: x + x,
    "linear": lambda x, w, b: F.linear(x, w, b),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (128,), b, b),
    "gelu": lambda x, w, b: F.gelu(x),
    "softmax": lambda x, w, b: torch.softmax(x, -1),
    "sum": lambda x, w, b: x.sum(0),
    "topk": lambda x, w, b: torch.topk(x, 2).values,
}


def overheads(device: str, rows: int) -> list[dict[str, Any]]:
    """Microseconds a call of each op by itself and inside the mode, interleaved; medians."""
    listed = []
    given = [torch.randn(shape, device=device) for shape in ((rows, 128), (128, 128), (128,))]
    for name, call in CALLS.items():
        microseconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(REPEATS):
            for way, context in WAYS.items():
                with context():
                    inside = [tensor.clone() for tensor in given]  # what comes from outside is rounded at each use
                    call(*inside)
                    _wait(device)
                    started = time.perf_counter()
                    for _ in range(INNER):
                        call(*inside)
                    _wait(device)
                    microseconds[way].append((time.perf_counter() - started) / INNER * 1e6)
        listed.append({"op": name, **{way: statistics.median(times) for way, times in microseconds.items()}})
    return listed


def nano(device: str, rows: int) -> dict[str, Any]:
    """A whole diagnosis of nano: three formats, 8 replicas each."""
    from gradproof.diagnosis.diagnose import PRECISIONS, checked_formats, examine, settled
    from gradproof.models.moe import MoE
    from gradproof.streams import seeded
    from gradproof.train.loss import Loss
    from gradproof.train.model_specimen import ModelSpecimen

    model = MoE.sized("nano", seed=0, device=device)
    x_TI = torch.randn(rows, 96, generator=seeded("bench")).to(device)
    target_T = torch.randint(0, 20, (rows,), generator=seeded("bench", "target")).to(device)
    started = time.perf_counter()
    with settled():
        specimen = ModelSpecimen(model, Loss("cross_entropy"), x_TI, target_T, name="nano")
        diagnosis = examine(specimen, checked_formats(PRECISIONS), "cast", 8, 0, lambda what: None)
    return {
        "rows": rows,
        "replicas": 8,
        "formats": len(PRECISIONS),
        "verdict": diagnosis.verdict,
        "seconds": _since(started),
    }


class Large(nn.Module):
    """A transformer of 104.7 million parameters."""

    def __init__(self, words: int = 8192, width: int = 768, layers: int = 13):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        x_BSD = self.embed(tokens_BS)
        for block in self.blocks:
            x_BSD = block(x_BSD)
        return self.head(self.norm(x_BSD))


def large(device: str) -> dict[str, Any]:
    """Seconds and peak bytes of diagnosing `Large` on 512 tokens, beside those of a plain float64 step."""
    costs = {}
    for what in ("step", "diagnose"):
        command = [sys.executable, "-m", "gradproof.bench.diagnose", what, device]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        costs[what] = json.loads(done.stdout.splitlines()[-1])
    return {**costs, "memory_ratio": costs["diagnose"]["bytes"] / costs["step"]["bytes"]}


def _alone(what: str, device: str) -> dict[str, Any]:
    from gradproof.diagnosis.diagnose import diagnose

    torch.manual_seed(0)
    torch.eye(8, device=device, dtype=torch.float64).matrix_power(2).sum().item()  # libraries are loaded
    before = _peak(device)
    module, tokens = Large().to(device), torch.randint(0, 8192, (1, 512), device=device)
    record: dict[str, Any] = {"parameters": sum(p.numel() for p in module.parameters())}
    started = time.perf_counter()
    if what == "step":
        module.double()(tokens).square().mean().backward()
        _wait(device)
    else:
        diagnosis = diagnose(module, (tokens,), device=device, progress=lambda stage: print(stage, file=sys.stderr))
        record |= {
            "verdict": diagnosis.verdict,
            "summary": diagnosis.summary,
            "replicas": diagnosis.precisions[0].replicas,
        }
    return {**record, "seconds": _since(started), "bytes": _peak(device) - before}


def _peak(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _since(started: float) -> float:
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(_alone(*sys.argv[1:3])))
