"""Writes the decision as a `torch.export` program, a .pt2 file that torch runs without Gradproof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradproof.export.decision import decide
from gradproof.export.frozen import Frozen

DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
DESCRIPTION = "schema.json"  # among the extra files of the program


class TorchOps:
    """The functions of a decision, in torch."""

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    tanh = staticmethod(torch.tanh)
    sqrt = staticmethod(torch.sqrt)
    sign = staticmethod(torch.sign)
    sigmoid = staticmethod(torch.sigmoid)
    log_sigmoid = staticmethod(nn.functional.logsigmoid)
    is_nan = staticmethod(torch.isnan)
    round = staticmethod(torch.round)
    absolute = staticmethod(torch.abs)
    both = staticmethod(torch.logical_and)
    either = staticmethod(torch.logical_or)

    @staticmethod
    def where(condition: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.where(condition, x, y)

    @staticmethod
    def take(x: Tensor, index: Tensor) -> Tensor:
        return torch.index_select(x, 1, index)

    @staticmethod
    def look_up(table: Tensor, index: Tensor) -> Tensor:
        return table[index]

    @staticmethod
    def cast(x: Tensor, dtype: str) -> Tensor:
        return x.to(DTYPES[dtype])

    @staticmethod
    def join(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts, 1)

    @staticmethod
    def clip(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def remainder(x: Tensor, by: int) -> Tensor:
        return x.remainder(by)

    @staticmethod
    def quotient(x: Tensor, by: int) -> Tensor:
        return torch.div(x, by, rounding_mode="floor")

    @staticmethod
    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    @staticmethod
    def log_softmax(x: Tensor) -> Tensor:
        return torch.log_softmax(x, -1)

    @staticmethod
    def total(x: Tensor, axis: int, keep: bool = False) -> Tensor:
        return x.sum(axis, keepdim=keep)

    @staticmethod
    def mean(x: Tensor, axis: int, keep: bool = False) -> Tensor:
        return x.mean(axis, keepdim=keep)

    @staticmethod
    def most(x: Tensor, axis: int) -> Tensor:
        return x.amax(axis, keepdim=True)

    @staticmethod
    def widen(x: Tensor, axis: int) -> Tensor:
        return x.unsqueeze(axis)

    @staticmethod
    def swap(x: Tensor) -> Tensor:
        return x.transpose(-1, -2)

    @staticmethod
    def columns(x: Tensor, start: int, stop: int) -> Tensor:
        return x[..., start:stop]


class DecisionModule(nn.Module):
    """`decision(codes, numbers)`: probabilities, or probabilities and metrics."""

    def __init__(self, frozen: Frozen):
        super().__init__()
        self.frozen = frozen
        for name, array in frozen.constants.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)))

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        constants = {name: getattr(self, name) for name in self.frozen.constants}
        probability_TC, metrics_TM = decide(TorchOps(), constants, self.frozen, codes, numbers)
        return probability_TC if metrics_TM is None else (probability_TC, metrics_TM)


def write_torch(file: Path, frozen: Frozen, columns: tuple[int, int], description: dict[str, Any]) -> None:
    """`columns` are how many codes and numbers a row has."""
    rows = torch.export.Dim("rows")
    example = torch.zeros(3, columns[0], dtype=torch.int64), torch.zeros(3, columns[1], dtype=torch.float64)
    shapes = {"codes": {0: rows}, "numbers": {0: rows}}
    with torch.no_grad():
        program = torch.export.export(DecisionModule(frozen).eval(), example, dynamic_shapes=shapes)
    torch.export.save(program, file, extra_files={DESCRIPTION: json.dumps(description, indent=1)})


def run_torch(file: Path) -> Any:
    """The decision in the file, as a function of arrays."""
    module = torch.export.load(file).module()

    def run(codes_TC: np.ndarray, numbers_TN: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            results = module(torch.from_numpy(codes_TC), torch.from_numpy(numbers_TN))
        return [part.numpy() for part in (results if isinstance(results, tuple) else (results,))]

    return run
