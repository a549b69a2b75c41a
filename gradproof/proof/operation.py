"""An op on one example, as a Subject."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gradproof.contract import Example, Gradients, Outputs, Subject


def subject(op: ModuleType, name: str, example: Example, dtype: torch.dtype, device: str) -> Subject:
    """Runs `op.forward` and `op.backward`; they are looked up at each run, as the models do."""
    arguments, options = tree_map(lambda leaf: moved(leaf, dtype, device), (example.arguments, example.options))
    grads = op.CONTRACT.grads

    def run(values: Mapping[str, Tensor], cotangents: Outputs | None) -> tuple[Outputs, Gradients]:
        given = {**arguments, **options, **values}
        y, saved = op.forward(**wanted(op.forward, given))
        outputs = tuple(y) if isinstance(y, tuple) else (y,)
        if cotangents is None or not grads:
            return outputs, {}
        dy = type(y)(*cotangents) if isinstance(y, tuple) else cotangents[0]
        gradients = op.backward(dy, saved, **wanted(op.backward, given))
        return outputs, dict(zip(grads, gradients if isinstance(gradients, tuple) else (gradients,), strict=True))

    values = {argument: arguments[argument] for argument in grads}
    return Subject(name, values, run, frozenset(grads) - frozenset(op.CONTRACT.parameters))


def moved(leaf: Any, dtype: torch.dtype, device: str) -> Any:
    """A tensor on the device, in `dtype` if it is floating; anything else as it is."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.to(device=device, dtype=dtype if leaf.dtype.is_floating_point else leaf.dtype)


def wanted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What `function` asks for by name; a shape suffix (`x_TI`) is not part of the name."""
    names = {name: re.sub(r"_[A-Z0-9]+$", "", name) for name in argument_names(function)}
    return {name: given[plain] for name, plain in names.items() if plain in given}


@lru_cache
def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's arguments, in order."""
    return tuple(inspect.signature(function).parameters)
