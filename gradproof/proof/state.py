"""The state of a user's module: replaced during a judgement, and restored exactly.

What is judged is the user's own object, hooks and all, so nothing is copied or called functionally: each tensor gets
other data under it (`tensor.data`, as `Module.double()` does), and gets its own back at the end.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

T = TypeVar("T")


class ModuleState:
    """Everything a forward of `module` may read or change: parameters, buffers, plain tensor attributes, gradients,
    flags, attributes, containers, generators. `swap` puts copies in place, `reset` rewinds them before each probe,
    `restore` ends it."""

    def __init__(self, module: nn.Module):
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError("a TorchScript module cannot be verified; verify the Python module that it was made from")
        self._scopes = [(scope, scope.copy()) for scope in _scopes(module)]
        self.tensors = _found(self._scopes, Tensor)
        self.parameters = {id(p) for p in module.parameters()}
        self.registered = self.parameters | {id(b) for b in module.buffers()}
        for tensor in self.tensors:
            if tensor.is_meta:
                raise ValueError("the module has tensors without values on the meta device; materialise it first")
            if is_lazy(tensor):
                raise ValueError("the module has lazy parameters without values; run it once first")
            if tensor.is_inference():
                raise ValueError("the module was made in inference mode, which has no gradients; create it outside")
        self._original = [(tensor, tensor.data, tensor.grad, tensor.requires_grad) for tensor in self.tensors]
        self._torch_generators = [(g, g.get_state()) for g in _found(self._scopes, torch.Generator)]
        self._numpy_generators = [(g, g.bit_generator.state) for g in _found(self._scopes, np.random.Generator)]
        self._start: list[tuple[Tensor, Tensor]] = []
        self.forwards = 0  # that were run on it

    def swap(self, dtype: torch.dtype | None, device: torch.device | None, attributes: bool = True) -> None:
        """Puts copies under every tensor, floating ones in `dtype`. Tensors that share memory go on sharing it. Without
        `attributes` plain tensor attributes keep their dtype, as they do in `Module.to`."""
        self.restore()
        copies: dict[Any, Tensor] = {}
        for tensor, data, _, _ in self._original:
            target = wider(data.dtype, dtype if attributes or id(tensor) in self.registered else None)
            tensor.grad = None
            if data.layout != torch.strided:
                tensor.data = data.to(device=device or data.device, dtype=target, copy=True)
                continue
            storage = data.untyped_storage()
            key = (storage.data_ptr(), storage.nbytes(), data.dtype)
            if key not in copies:
                whole = data.new_empty(0).set_(storage)  # pyright: ignore[reportCallIssue]
                copies[key] = whole.to(device=device or data.device, dtype=target, copy=True)
            tensor.data = copies[key].as_strided(data.shape, data.stride(), data.storage_offset())
        self._start = [(t, t.data.clone()) for t in self.tensors if id(t) not in self.parameters]

    def reset(self, seed: int) -> None:
        """Rewinds what a forward may have changed, and every random generator."""
        self._rewind()
        for tensor, start in self._start:
            if start.layout == torch.strided and 0 not in tensor.stride():
                tensor.data.copy_(start)
            else:
                tensor.data = start.clone()
        seed_generators(seed)

    def restore(self) -> None:
        """The module as it was found."""
        self._rewind()
        for tensor, data, grad, requires_grad in self._original:
            tensor.grad = None
            tensor.data = data
            tensor.grad = grad
            if tensor.is_leaf:
                tensor.requires_grad_(requires_grad)

    def lasting(self, change: Callable[[], Any]) -> None:
        """A change of the user's attributes that `reset` keeps, until `restore`."""
        self._rewind()
        change()
        self._scopes = [(scope, scope.copy()) for scope, _ in self._scopes]

    @contextmanager
    def after(self, steps: Callable[[], Any]) -> Iterator[None]:
        """The state that `steps` leave is the one that `reset` goes back to."""
        before = self._scopes, self._start
        try:
            steps()
            self._scopes = [(scope, scope.copy()) for scope, _ in self._scopes]
            self._start = [(tensor, tensor.data.clone()) for tensor, _ in self._start]
            yield
        finally:
            self._scopes, self._start = before

    def _rewind(self) -> None:
        """Attributes, containers and generators."""
        for scope, copy in self._scopes:
            if isinstance(scope, dict):
                if scope.keys() != copy.keys() or any(scope[key] is not value for key, value in copy.items()):
                    scope.clear()
                    scope.update(copy)
            elif len(scope) != len(copy) or any(a is not b for a, b in zip(scope, copy, strict=True)):
                scope.clear()
                (scope.update if isinstance(scope, set) else scope.extend)(copy)
        self.rewind_generators()

    def rewind_generators(self) -> None:
        """The module's own."""
        for generator, state in self._torch_generators:
            generator.set_state(state)
        for generator, state in self._numpy_generators:
            generator.bit_generator.state = state


def seed_generators(seed: int) -> None:
    """Those that all share: torch's, Python's and numpy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def wider(dtype: torch.dtype, target: torch.dtype | None) -> torch.dtype:
    """`target` for floating values, its complex sister for complex ones, `dtype` itself for all else."""
    if target is None or not (dtype.is_floating_point or dtype.is_complex):
        return dtype
    return target.to_complex() if dtype.is_complex else target


def _scopes(module: nn.Module) -> list[Any]:
    """The attributes of every submodule and parameter, and the containers among them: hooks, parameters, caches,
    histories, buffers for gradients."""
    attributes = [vars(m) for m in module.modules()]
    attributes += [own for p in module.parameters() if (own := vars(p))]
    held = [value for scope in attributes for value in scope.values() if isinstance(value, (dict, list, set, deque))]
    return [*attributes, *{id(value): value for value in held}.values()]


def _found(scopes: list[tuple[Any, Any]], kind: type[T]) -> list[T]:
    """The objects of a kind in the scopes, each once."""
    held = [value for scope, _ in scopes for value in (scope.values() if isinstance(scope, dict) else scope)]
    return list({id(value): value for value in held if isinstance(value, kind)}.values())


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
