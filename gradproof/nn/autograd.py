"""The interface to torch's autograd and compiler: saved tensors, refused second derivatives, graph breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

SECOND = (
    "gradproof.nn has no second derivative: its backward is explicit and leaves no graph to differentiate again; "
    "use plain torch layers there, such as module.to_torch()"
)
T = TypeVar("T")


class _Refused(torch.autograd.Function):
    """Gradients that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad.view_as(grad) for grad in grads)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError(SECOND)


def once(grads: list[Tensor | None]) -> list[Tensor | None]:
    """The same gradients; with create_graph=True, gradients that raise if they are differentiated again."""
    if not torch.is_grad_enabled():
        return grads
    refused = iter(_Refused.apply(*(grad.detach().requires_grad_() for grad in grads if grad is not None)))
    return [None if grad is None else next(refused) for grad in grads]


_HOLE = object()


def emptied(value: Any, tensors: list[Tensor]) -> Any:
    """The structure without its tensors, which go into the list: autograd keeps them, so that it can free them, watch
    for writes, and hand them to saved-tensor hooks."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _HOLE
    return _mapped(lambda part: emptied(part, tensors), value) if isinstance(value, (tuple, list)) else value


def filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The structure with its tensors put back."""
    if value is _HOLE:
        return next(tensors)
    return _mapped(lambda part: filled(part, tensors), value) if isinstance(value, (tuple, list)) else value


def _mapped(f: Callable[[Any], Any], value: Any) -> Any:
    inside = [f(part) for part in value]
    return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)


_opaque: dict[Any, Any] = {}


def outside_graphs(function: Callable[..., T]) -> Callable[..., T]:
    """Breaks the graph of torch.compile around such a call. Importing dynamo takes seconds, so that is left to those
    who compile."""
    if "torch._dynamo" not in sys.modules:
        return function
    if function not in _opaque:
        _opaque[function] = torch.compiler.disable(
            function, reason="gradproof.nn runs its own kernels, outside the graph"
        )
    return _opaque[function]
