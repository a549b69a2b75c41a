"""Nested structures of tensors, such as the arguments of a module: flattened and rebuilt.

Mappings, lists, tuples, dataclasses and registered pytrees are gone through; anything else is a leaf, and stays what it
is. Sparse and nested tensors hold their numbers in one dense tensor, which is what can be moved and judged.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves in order, each with its path: `[0]`, `['mask']`, `.hidden`."""
    children = _children(value)
    if children is None:
        yield path, value
    else:
        for step, child in children:
            yield from leaves_of(child, path + step)


def rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """The same structure with other leaves, in the order of `leaves_of`; containers are new, and of the same type."""
    children = _children(value)
    if children is None:
        return next(leaves)
    new = [rebuilt(child, leaves) for _, child in children]
    if isinstance(value, dict):
        return _filled(value, zip(value, new, strict=True))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*new)
    if isinstance(value, (list, tuple)):
        return type(value)(new)
    if dataclasses.is_dataclass(value):
        other = copy.copy(value)
        for item, child in zip(dataclasses.fields(value), new, strict=True):
            object.__setattr__(other, item.name, child)
        return other
    if isinstance(value, Mapping):
        return _filled(value, zip(value, new, strict=True))
    return pytree.SUPPORTED_NODES[type(value)].unflatten_fn(
        new, pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[1]
    )


def opaque(value: Any) -> bool:
    """Whether a leaf is an object that holds tensors of its own, which nobody looks into."""
    if isinstance(value, (Tensor, type)) or callable(value):
        return False
    held = getattr(value, "__dict__", {}).values()
    inside = [leaf for item in held for _, leaf in leaves_of(item)]
    return any(isinstance(leaf, Tensor) and leaf.dtype.is_floating_point for leaf in inside)


def _filled(value: Any, items: Any) -> Any:
    if type(value) is dict:
        return dict(items)
    other = copy.copy(value)
    for key, child in items:
        other[key] = child
    return other


def _children(value: Any) -> Sequence[tuple[str, Any]] | None:
    """The parts of a container with the step that leads to each; None for a leaf."""
    if isinstance(value, Tensor):
        return None
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", child) for name, child in zip(value._fields, value, strict=True)]  # pyright: ignore
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{item.name}", getattr(value, item.name)) for item in dataclasses.fields(value)]
    if type(value) in pytree.SUPPORTED_NODES:
        return [(f"[{i}]", child) for i, child in enumerate(pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0])]
    return None


def floating(tensor: Tensor) -> bool:
    """Real or complex numbers: something that can have a gradient."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def dense(tensor: Tensor) -> bool:
    """One number after the other, as most tensors are."""
    return tensor.layout == torch.strided and not tensor.is_nested


def numbers(tensor: Tensor) -> Tensor | None:
    """The dense tensor in which a tensor has its numbers: itself, the values of a sparse one, those of a jagged one;
    None where there is none."""
    if dense(tensor):
        return tensor
    if tensor.layout == torch.sparse_coo:
        return tensor._values() if tensor.is_coalesced() else None
    if tensor.layout in COMPRESSED:
        return tensor.values()
    if tensor.is_nested and tensor.layout == torch.jagged:
        return tensor.values()
    return None


def holding(tensor: Tensor, values: Tensor) -> Tensor:
    """A tensor like this one with other numbers, differentiable by them."""
    if dense(tensor):
        return values
    if tensor.layout == torch.sparse_coo:
        made = torch.sparse_coo_tensor(tensor._indices(), values, tensor.shape, is_coalesced=True)
    elif tensor.is_nested:
        made = torch.nested.nested_tensor_from_jagged(values, tensor.offsets())  # pyright: ignore
    else:
        plain, other = _indices(tensor)
        made = torch.sparse_compressed_tensor(plain, other, values, tensor.shape, layout=tensor.layout)
    return made


def gradient_values(tensor: Tensor, grad: Tensor) -> Tensor:
    """The part of a gradient that belongs to the numbers of `tensor`."""
    if dense(tensor):
        return grad.to_dense() if not dense(grad) else grad
    if tensor.is_nested:
        return grad.values()
    if tensor.layout == torch.sparse_coo:
        return grad.to_dense()[tuple(tensor._indices())]
    mask = torch.sparse_compressed_tensor(
        *_indices(tensor), torch.ones_like(tensor.values()), tensor.shape, layout=tensor.layout
    )
    return grad.values() if grad.layout == tensor.layout else grad.to_dense().sparse_mask(mask).values()


def _indices(tensor: Tensor) -> tuple[Tensor, Tensor]:
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices()
    return tensor.ccol_indices(), tensor.row_indices()
