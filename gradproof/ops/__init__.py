"""One file per operation: `forward(...) -> (y, saved)`, `backward(dy, saved, ...) -> gradients`, `CONTRACT`.

`backward` takes the forward arguments that it needs, under the same names. `dy` has the structure of `y`.
"""

from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

NARROW = (torch.bfloat16, torch.float16)

NAMES = (
    "linear",
    "layernorm",
    "gelu",
    "gelu_erf",
    "norm_gelu",
    "softmax",
    "topk",
    "route",
    "sheaf",
    "dispatch",
    "combine",
    "experts",
    "mixture",
    "embedding",
    "positional",
    "attention",
    "ffn",
    "pool",
    "vote",
    "pool_gaussians",
    "hashed_ngrams",
    "cross_entropy",
    "bce",
    "mse",
    "quality",
    "gaussian",
)
UPDATES = ("adamw", "update", "lesson")
READINGS = ("reading",)  # forward only
ENCODERS = ("padic",)  # nothing to differentiate


def wide(x: Tensor) -> Tensor:
    """Converts bf16 and fp16 to fp32, the precision of statistics, sums and elementwise math; other dtypes pass
    through.
    """
    return x.float() if x.dtype in NARROW else x


def load(name: str) -> ModuleType:
    """The module of an op or encoder. The error for an unknown name lists only those that have a backward to prove."""
    if name not in (*NAMES, *ENCODERS, *UPDATES, *READINGS):
        raise ValueError(f"unknown op {name!r}; the ops are {', '.join((*NAMES, *ENCODERS))}")
    return import_module(f"gradproof.ops.{name}")
