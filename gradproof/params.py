"""ParamSpace: all parameters of a model in one flat tensor with named views, and the gradients in a second one.

Every entry starts at a multiple of 64 elements. Padding is zero and is not counted. Blocks with the same entries have
the same length. So the copies of one entry in E experts form a strided [E, ...] view (`stack`), and each expert is one
contiguous shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gradproof.streams import philox

ALIGNMENT = 64
ParamKind = Literal["matrix", "bias", "gamma", "beta"]


class Entry(NamedTuple):
    """A parameter. `matrix` is [out, in]; `bias` belongs to the matrix declared before it; `gamma` and `beta` are the
    scale and shift of a norm.
    """

    name: str
    shape: tuple[int, ...]
    kind: ParamKind


class Weights(Protocol):
    """Parameters as a forward pass reads them."""

    def __getitem__(self, name: str) -> Tensor: ...

    def operand(self, name: str) -> Tensor:
        """The parameter as matrix products read it: its low-precision copy, if there is one."""
        ...

    def shards(self, prefix: str, copies: int) -> tuple[Tensor, Tensor | None]:
        """theta_EP: the parameters under the prefix, one copy per row, and their low-precision copy for products, if
        any.
        """
        ...


class ParamSpace(Mapping[str, Tensor]):
    """Maps each name to its view of `flat_P`, in declaration order. `grad_P` has the same layout, and `grads` are its
    views. `generation` rises with every update: call `touch()` after a raw kernel has written.
    """

    def __init__(
        self,
        spec: Sequence[Entry],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        flat_P: Tensor | None = None,
    ):
        """Allocates a buffer, or uses `flat_P`, a slice of an existing one, with its dtype and device."""
        names = [entry.name for entry in spec]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"parameter {twice!r} is declared twice")
        self.spec = tuple(Entry(name, tuple(shape), kind) for name, shape, kind in spec)
        self.shapes = {entry.name: entry.shape for entry in self.spec}
        self.offsets, end = offsets(self.spec)
        if flat_P is not None and flat_P.shape != (end,):
            raise ValueError(f"these parameters need a buffer of {end} elements, got shape {list(flat_P.shape)}")
        self.flat_P = torch.zeros(end, dtype=dtype, device=device) if flat_P is None else flat_P
        self._views = self.views(self.flat_P)
        self._grad_P: Tensor | None = None
        self._grads: dict[str, Tensor] = {}
        self._shards: dict[tuple[str, bool], Tensor] = {}
        self._touched = 0

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def operand(self, name: str) -> Tensor:
        """The parameter itself: there is no low-precision copy."""
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self.spec)

    @property
    def count(self) -> int:
        """The number of parameters, without padding."""
        return sum(math.prod(entry.shape) for entry in self.spec)

    @property
    def grad_P(self) -> Tensor:
        """The gradients, allocated on first use."""
        if self._grad_P is None:
            self._grad_P = torch.zeros_like(self.flat_P)
            self._grads = self.views(self._grad_P)
        return self._grad_P

    @property
    def grads(self) -> Mapping[str, Tensor]:
        """The gradient of each parameter, a view of `grad_P`."""
        _ = self.grad_P
        return self._grads

    @property
    def generation(self) -> int:
        """Changes whenever the values do, by torch's own operations or by `touch()`."""
        return self._touched + version(self.flat_P)

    def touch(self) -> None:
        """Records that the values changed; raw kernels do not bump torch's version counter."""
        self._touched += 1

    def stack(self, pattern: str, *, grads: bool = False) -> Tensor:
        """The copies of one entry as a strided view [E, *shape], for example `stack("experts.*.linear.0.weight")`."""
        head, _, tail = pattern.partition("*")
        names = [name for name in self.offsets if name.startswith(head) and name.endswith(tail)]
        names = [name for name in names if name[len(head) : len(name) - len(tail)].isdigit()]
        if not names:
            raise KeyError(f"no parameter matches {pattern!r}")
        starts = [self.offsets[name] for name in names]
        steps = {b - a for a, b in pairwise(starts)} or {0}
        first = (self.grads if grads else self)[names[0]]
        if len(steps) > 1 or any(self[name].shape != first.shape for name in names):
            raise ValueError(f"the parameters {pattern!r} are not equally spaced copies")
        flat_P = self.grad_P if grads else self.flat_P
        return flat_P.as_strided((len(names), *first.shape), (steps.pop(), *first.stride()), starts[0])

    def initialise(self, seed: int) -> ParamSpace:
        """U(±1/√in) for matrices and biases, γ = 1, β = 0; the same bits on every machine and device."""
        fan_in = 1
        for entry in self.spec:
            if entry.kind == "matrix":
                fan_in = entry.shape[-1]
            if entry.kind in ("matrix", "bias"):
                values = uniform(seed, entry.name, entry.shape, 1 / math.sqrt(fan_in))
                self[entry.name].copy_(torch.from_numpy(values))
            else:
                self[entry.name].fill_(1.0 if entry.kind == "gamma" else 0.0)
        return self

    def shards(self, prefix: str, copies: int) -> tuple[Tensor, None]:
        """theta_EP: the parameters under the prefix, one copy per row, padding included."""
        return self.shards_of(self.flat_P, prefix, copies), None

    def shards_of(self, flat_P: Tensor, prefix: str, copies: int) -> Tensor:
        """The same for any buffer with this layout."""
        own = flat_P is self.flat_P or flat_P is self._grad_P  # these two are never replaced
        if own and (held := self._shards.get((prefix, flat_P is self.flat_P))) is not None:
            return held
        inside = [entry for entry in self.spec if entry.name.startswith(prefix)]
        end = self.offsets[inside[-1].name] + padded(math.prod(inside[-1].shape))
        theta_EP = flat_P[self.offsets[inside[0].name] : end].view(copies, -1)
        if own:
            self._shards[prefix, flat_P is self.flat_P] = theta_EP
        return theta_EP

    def pack(self, values: Mapping[str, Tensor]) -> Packed:
        """Other values for the same parameters. Autograd can differentiate with respect to them."""
        pieces = []
        for name, shape, _ in self.spec:
            length = math.prod(shape)
            pieces.append(torch.nn.functional.pad(values[name].reshape(-1), (0, padded(length) - length)))
        return Packed(self, values, torch.cat(pieces))

    def views(self, flat_P: Tensor) -> dict[str, Tensor]:
        """The named views of any buffer with this layout: values, gradients, moments."""
        return {name: self.view_of(flat_P, name) for name in self.offsets}

    def views_of(self, grad_P: Tensor) -> Mapping[str, Tensor]:
        """The views of a gradient buffer; cached if it is this space's own."""
        return self.grads if grad_P is self._grad_P else self.views(grad_P)

    def view_of(self, flat_P: Tensor, name: str) -> Tensor:
        """One named view of any buffer with this layout."""
        shape, start = self.shapes[name], self.offsets[name]
        return flat_P[start : start + math.prod(shape)].view(shape)


class Packed(NamedTuple):
    """Values in the layout of a ParamSpace that are not stored in it."""

    space: ParamSpace
    values: Mapping[str, Tensor]
    flat_P: Tensor

    def __getitem__(self, name: str) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.values[name]

    def operand(self, name: str) -> Tensor:
        return self.values[name]

    def shards(self, prefix: str, copies: int) -> tuple[Tensor, None]:
        return self.space.shards_of(self.flat_P, prefix, copies), None


def version(tensor: Tensor) -> int:
    """torch's count of in-place writes; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def offsets(spec: Sequence[Entry]) -> tuple[dict[str, int], int]:
    """The start of each entry, and the end of the last one with its padding."""
    starts, end = {}, 0
    for name, shape, _ in spec:
        starts[name] = end
        end += padded(math.prod(shape))
    return starts, end


def padded(length: int) -> int:
    """`length` rounded up to the alignment."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def uniform(seed: int, name: str, shape: tuple[int, ...], bound: float) -> np.ndarray:
    """float64 U(−bound, bound) on a grid of 2⁻²³·bound, from Philox keyed by sha256(seed, name)."""
    raw = philox(seed, name).random_raw(math.prod(shape)) >> np.uint64(40)
    return ((raw.astype(np.float64) + 0.5) * 2.0**-23 - 1.0).reshape(shape) * bound
