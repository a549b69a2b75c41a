"""The state of a user's module: swapped in place for the time of a judgement, and put back exactly.

What is judged is the user's own object, hooks and all, so nothing is copied or called functionally: each tensor gets
other data under it (`tensor.data`, as `Module.double()` does), and gets its own back at the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class ModuleState:
    """Everything a forward of `module` may read or change: parameters, buffers, plain tensor attributes, gradients,
    flags, attributes, generators. `swap` puts copies in place, `reset` rewinds them before each probe, `restore` ends
    it."""

    def __init__(self, module: nn.Module):
        self._scopes: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (scope, dict(scope)) for m in module.modules() for scope in (vars(m), m._parameters, m._buffers, m._modules)
        ]
        self.tensors = _tensors(module)
        self.parameters = {id(p) for p in module.parameters()}
        for tensor in self.tensors:
            if tensor.is_meta or is_lazy(tensor):
                raise ValueError(
                    "the module has parameters without values (meta or lazy); run it once before verifying"
                )
        self._original = [(tensor, tensor.data, tensor.grad, tensor.requires_grad) for tensor in self.tensors]
        self._generators = [(g, g.get_state()) for g in _generators(module)]
        self._start: list[tuple[Tensor, Tensor]] = []

    def swap(self, dtype: torch.dtype | None, device: torch.device | None) -> None:
        """Puts copies under every tensor, floating ones in `dtype`. Tensors that share memory go on sharing it."""
        self.restore()
        copies: dict[Any, Tensor] = {}
        for tensor, data, _, _ in self._original:
            storage = data.untyped_storage()
            key = (storage.data_ptr(), storage.nbytes(), data.dtype)
            if key not in copies:
                whole = data.new_empty(0).set_(storage)  # pyright: ignore[reportCallIssue]
                target = dtype if dtype is not None and data.dtype.is_floating_point else data.dtype
                copies[key] = whole.to(device=device or data.device, dtype=target, copy=True)
            tensor.grad = None
            tensor.data = copies[key].as_strided(data.shape, data.stride(), data.storage_offset())
        self._start = [(t, t.data.clone()) for t in self.tensors if id(t) not in self.parameters]

    def reset(self, seed: int) -> None:
        """Rewinds what a forward may have changed, and every random generator."""
        self._restore_scopes()
        for tensor, start in self._start:
            tensor.data.copy_(start)
        for generator, state in self._generators:
            generator.set_state(state)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    def restore(self) -> None:
        """The module as it was found."""
        self._restore_scopes()
        for tensor, data, grad, requires_grad in self._original:
            tensor.grad = None
            tensor.data = data
            tensor.grad = grad
            if tensor.is_leaf:
                tensor.requires_grad_(requires_grad)
        for generator, state in self._generators:
            generator.set_state(state)

    def _restore_scopes(self) -> None:
        for scope, copy in self._scopes:
            if scope.keys() != copy.keys() or any(scope[key] is not value for key, value in copy.items()):
                scope.clear()
                scope.update(copy)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """torch's (every device), Python's and numpy's generators, and torch's default dtype, as they were."""
    python, numpy, dtype = random.getstate(), np.random.get_state(), torch.get_default_dtype()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_default_dtype(dtype)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, buffers and plain tensor attributes, each object once."""
    found: dict[int, Tensor] = {}
    for m in module.modules():
        for scope in (m._parameters, m._buffers, vars(m)):
            found |= {id(value): value for value in scope.values() if isinstance(value, Tensor)}
    return list(found.values())


def _generators(module: nn.Module) -> list[torch.Generator]:
    values = [value for m in module.modules() for value in vars(m).values()]
    return [value for value in values if isinstance(value, torch.Generator)]
