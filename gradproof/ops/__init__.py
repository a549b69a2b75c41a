"""One file an operation: `forward(...) -> (y, saved)`, `backward(dy, saved, ...) -> gradients`, `CONTRACT`.

`backward` names the forward's arguments that it needs; `dy` has the structure of `y`.
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
    """bf16 and fp16 as fp32, in which statistics, sums and elementwise mathematics are done; others as they are."""
    return x.float() if x.dtype in NARROW else x


def load(name: str) -> ModuleType:
    """The op's or encoder's module; a sentence for a name that is none. Those without a backward to prove are not
    listed."""
    if name not in (*NAMES, *ENCODERS, *UPDATES, *READINGS):
        raise ValueError(f"there is no op {name!r}; the ops are {', '.join((*NAMES, *ENCODERS))}")
    return import_module(f"gradproof.ops.{name}")
