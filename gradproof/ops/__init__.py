"""One file an operation: `forward(...) -> (y, saved)`, `backward(dy, saved, ...) -> gradients`, `CONTRACT`.

`backward` names the forward's arguments that it needs; `dy` has the structure of `y`.
"""

from importlib import import_module
from types import ModuleType

NAMES = (
    "linear",
    "layernorm",
    "gelu",
    "gelu_erf",
    "softmax",
    "topk",
    "route",
    "dispatch",
    "combine",
    "cross_entropy",
    "bce",
    "mse",
    "quality",
)


def load(name: str) -> ModuleType:
    """The op's module; a sentence for a name that is none."""
    if name not in NAMES:
        raise ValueError(f"there is no op {name!r}; the ops are {', '.join(NAMES)}")
    return import_module(f"gradproof.ops.{name}")
