"""The calls on which a user's kernel is tested: the given one, and similar ones.

Sizes of a letter n are 0, 1, 3, the neighbours of n, and the nearest power of two with its neighbours, one letter at a
time. Values are N(0,1) in the scale of the given tensor. Integers stay in the range seen there; what can index an axis
stays inside it when the axis shrinks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.streams import seeded

LARGE, SMALL = 64.0, 2.0**-10  # factors on the given scale: exp overflows without care, eps outweighs a variance

CallArguments = dict[str, Any]


class CallForm(NamedTuple):
    """How the functions are called: the arguments' names in order, and the axes of those that are tensors."""

    names: tuple[str, ...]
    positional: bool
    axes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]
    wanted: tuple[str, ...]  # whose gradients are judged

    def call(self, function: Callable[..., Any], given: CallArguments, *first: Any) -> Any:
        return function(*first, *given.values()) if self.positional else function(*first, **given)


class KernelCall(NamedTuple):
    """One call: the arguments by name, and the claim that it is evidence for."""

    label: str
    claim: str
    given: CallArguments


def read_form(inputs: Any, shapes: str) -> tuple[CallForm, CallArguments]:
    """Checks the example against `shapes`; what is wrong is one sentence."""
    axes = parse_axes(shapes)
    if isinstance(inputs, Mapping):
        given, positional = dict(inputs), False
    elif isinstance(inputs, (tuple, list)):
        given, positional = _named(inputs, list(axes)), True
    else:
        raise ValueError(f"inputs must be a tuple, or a dict by argument name, not a {type(inputs).__name__}")
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    if set(tensors) != set(axes):
        raise ValueError(
            f"shapes must name every tensor in inputs and nothing else: it names {', '.join(axes) or 'none'}; "
            f"the tensors are {', '.join(tensors) or 'none'}"
        )
    sizes = _letters(tensors, axes)
    floating = [name for name, value in tensors.items() if value.is_floating_point()]
    if not floating:
        raise ValueError("inputs has no floating tensor; there is nothing to judge")
    wanted = [name for name in floating if tensors[name].requires_grad] or floating
    detached = {name: value.detach() if isinstance(value, Tensor) else value for name, value in given.items()}
    return CallForm(tuple(given), positional, axes, sizes, tuple(wanted)), detached


def parse_axes(shapes: str) -> dict[str, tuple[str, ...]]:
    """ "x[T,I] w[O,I] s[]" to {"x": ("T", "I"), "w": ("O", "I"), "s": ()}."""
    axes: dict[str, tuple[str, ...]] = {}
    for token in re.sub(r"\s*([\[,\]])\s*", r"\1", shapes).replace("]", "] ").split():
        parsed = re.fullmatch(r"([A-Za-z_]\w*)\[((?:\w+(?:,\w+)*)?)\]", token)
        if parsed is None:
            raise ValueError(f'shapes: {token!r} is not of the form name[axis,axis]; write it like "x[T,I] w[O,I]"')
        name, inside = parsed.groups()
        if name in axes:
            raise ValueError(f"shapes names {name} twice")
        axes[name] = tuple(inside.split(",")) if inside else ()
    return axes


def _named(inputs: Any, names: list[str]) -> CallArguments:
    """Tensors get the names in `shapes`, in order; other arguments their position."""
    count = sum(isinstance(value, Tensor) for value in inputs)
    if count != len(names):
        raise ValueError(f"shapes names {len(names)} tensors ({', '.join(names)}) and inputs has {count}")
    left = iter(names)
    return {next(left) if isinstance(v, Tensor) else f"argument {i}": v for i, v in enumerate(inputs)}


def _letters(tensors: Mapping[str, Tensor], axes: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    homes: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != len(axes[name]):
            raise ValueError(f"shapes: {name}[{','.join(axes[name])}] is given a tensor of shape {tuple(tensor.shape)}")
        for axis, size in zip(axes[name], tensor.shape, strict=True):
            if axis.isdigit():
                if int(axis) != size:
                    raise ValueError(f"shapes: {name} has an axis of {axis}, and the tensor's is {size}")
            elif sizes.setdefault(axis, size) != size:
                raise ValueError(f"shapes: {axis} is {sizes[axis]} in {homes[axis]} and {size} in {name}")
            homes.setdefault(axis, name)
    return sizes


def at_given_sizes(form: CallForm, given: CallArguments, seed: int) -> Iterator[KernelCall]:
    """The call itself, and other values: ordinary, large and small ones."""
    label = _label(form.sizes)
    yield KernelCall(f"{label}, as given" if label else "as given", "matches_reference", given)
    for name, factor in (("drawn", 1.0), ("large values", LARGE), ("small values", SMALL)):
        drawn = _draw(form, given, form.sizes, factor, seed, name)
        if drawn is not None:
            yield KernelCall(f"{label}, {name}" if label else name, "matches_reference", drawn)


def at_other_sizes(form: CallForm, given: CallArguments, seed: int) -> Iterator[KernelCall]:
    """One letter at a time, then all of them at odd sizes."""
    together = {letter: max(1, size // 2) | 1 for letter, size in form.sizes.items()}
    varied = [{**form.sizes, letter: size} for letter, n in form.sizes.items() for size in _sizes_near(n)]
    for sizes in [*varied, *([together] if len(form.sizes) > 1 else [])]:
        drawn = _draw(form, given, sizes, 1.0, seed, "sizes")
        if drawn is not None:
            yield KernelCall(_label(sizes), "empty" if 0 in sizes.values() else "sizes", drawn)


def _sizes_near(n: int) -> list[int]:
    power = 2 ** round(math.log2(max(n, 1)))
    return sorted({0, 1, 3, max(n - 1, 0), n + 1, power - 1, power, power + 1} - {n})


def _label(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{letter}={size}" for letter, size in sizes.items())


def _draw(
    form: CallForm, given: CallArguments, sizes: Mapping[str, int], factor: float, seed: int, purpose: str
) -> CallArguments | None:
    """The arguments at these sizes; None where integers that index an axis have nothing left to point at."""
    shrunk = [(form.sizes[letter], size) for letter, size in sizes.items() if size < form.sizes[letter]]
    drawn: CallArguments = {}
    for name, value in given.items():
        if isinstance(value, Tensor):
            shape = [int(axis) if axis.isdigit() else sizes[axis] for axis in form.axes[name]]
            tensor = _like(value, shape, factor, shrunk, seeded(seed, purpose, _label(sizes), name))
            if tensor is None:
                return None
            value = tensor.to(value.device)
        drawn[name] = value
    return drawn


def _like(
    given: Tensor, shape: list[int], factor: float, shrunk: list[tuple[int, int]], generator: torch.Generator
) -> Tensor | None:
    own = given.detach().cpu()
    if own.is_floating_point():
        return _floating(own, shape, factor, generator)
    if own.dtype == torch.bool:
        share = float(own.float().mean()) if own.numel() else 0.5
        return torch.rand(shape, generator=generator) < share
    low, high = (int(own.min()), int(own.max())) if own.numel() else (0, 0)
    for before, now in shrunk:
        if low >= 0 and high < before:
            high = min(high, now - 1)
    if high < 0 <= low:
        return None if math.prod(shape) else own.new_zeros(shape)
    return torch.randint(min(low, high), high + 1, shape, generator=generator).to(own.dtype)


def _floating(own: Tensor, shape: list[int], factor: float, generator: torch.Generator) -> Tensor:
    """N(0,1) in the scale of `own`. What has one sign keeps it: drawn from its own values, or, where they are all the
    same, from half to one and a half of that."""
    finite = own.double()[own.isfinite()]
    size = float(finite.square().mean().sqrt()) if finite.numel() else 1.0
    signed = not size or (bool((finite < 0).any()) and bool((finite > 0).any()))
    if signed:
        drawn = factor * (size or 1.0) * torch.randn(shape, generator=generator, dtype=torch.float64)
    elif float(finite.min()) == float(finite.max()):
        drawn = finite[0] * (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64))
    else:
        drawn = finite[torch.randint(finite.numel(), shape, generator=generator)]
    return drawn.to(own.dtype)


def apart(tensor: Any) -> Any:
    """The same numbers in every second place of a larger buffer; between them are others."""
    if not isinstance(tensor, Tensor) or not tensor.dim():
        return tensor
    between = torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor.flip(-1)
    return torch.stack((tensor, between), -1).flatten(-2)[..., ::2]


def turned(tensor: Any) -> Any:
    """The same numbers with the last two axes the other way round in memory."""
    return tensor.mT.contiguous().mT if isinstance(tensor, Tensor) and tensor.dim() > 1 else tensor
