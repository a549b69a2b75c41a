"""The reference of a distributed step: the gradients of the module on one rank with all rows, and their rounding.

How far rounding goes is measured in a few replicas, in which every result and every cotangent is off by up to a unit.
The cotangents matter: a bias's gradient is their sum, which may nearly cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof.contract import Outputs
from gradproof.proof.as_trained import Jitter
from gradproof.proof.rank_names import buffer_slots, joined, parameter_slots, slots
from gradproof.proof.rank_rows import outputs_of
from gradproof.proof.runner import INPUT, CannotRun, argument_names, draw_cotangents, leaf_name
from gradproof.proof.state import seed_generators, wider
from gradproof.proof.structure import floating, leaves_of, rebuilt

REPLICAS = 4
COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional")  # namespaces of torch's operators


class Alone(TorchDispatchMode):
    """Nothing inside may communicate."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise CannotRun(
                f"the module communicates by itself ({func.overloadpacket.__name__}), so that it has no gradients on "
                "one rank; give the module without collectives, and put them in with wrap"
            )
        return func(*args, **(kwargs or {}))


class Right(NamedTuple):
    """One step on one rank: the outputs of each micro-batch, every gradient, how far rounding moves it, and which
    parameters the step itself has changed."""

    outputs: list[Outputs]
    grads: dict[str, Tensor | None]
    widths: dict[str, float]
    buffers: dict[str, Tensor]
    rewritten: set[str]
    random: bool


class OneRank:
    """A copy of the module, whose values are set from outside. All results are in float64."""

    def __init__(self, module: nn.Module, autocast: torch.dtype | None, seed: int):
        self.module, self.autocast, self.seed = module, autocast, seed
        listed = slots(module, parameter_slots)
        self.parameters = {joined(path, name): p for path, name, _, p in listed if floating(p) and p.requires_grad}
        self.frozen = {
            joined(path, name): p
            for path, name, _, p in slots(module, parameter_slots)
            if not (floating(p) and p.requires_grad)
        }
        self.buffers = {joined(path, name): b for path, name, _, b in slots(module, buffer_slots)}
        self._start: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Values of parameters and buffers, as `plain` gives them."""
        for name, tensor in (*self.parameters.items(), *self.frozen.items(), *self.buffers.items()):
            if name in values:
                put(tensor, values[name])
        self._start = {name: b.detach().clone() for name, b in self.buffers.items()}
        self._values = {name: plain(p) for name, p in self.parameters.items()}

    def right(self, batches: Sequence[Any], turn: int) -> Right:
        """What a step on all rows gives."""
        with Alone():
            outputs, grads = self.run(batches, turn)
        buffers = {name: plain(b) for name, b in self.buffers.items()}
        rewritten = {name for name, old in self._values.items() if not torch.equal(plain(self.parameters[name]), old)}
        random = self._draws(batches, outputs)
        widths = dict.fromkeys((name for name, g in grads.items() if g is not None), 0.0)
        for replica in range(1, REPLICAS + 1):
            _, off = self.run(batches, turn, replica)
            for name in widths:
                g, right = off[name], grads[name]
                if g is not None and right is not None and bool(g.isfinite().all()):
                    widths[name] = max(widths[name], float((g - right).norm()))
        self._rewind()
        return Right(outputs, grads, widths, buffers, rewritten, random)

    def run(
        self, batches: Sequence[Any], turn: int, replica: int | None = None, cotangents: Sequence[Outputs] | None = None
    ) -> tuple[list[Outputs], dict[str, Tensor | None]]:
        """Forward and backward of each micro-batch; gradients add up. Those of inputs are kept where there is one."""
        self._rewind()
        seed_generators(self.seed)
        for p in self.parameters.values():
            p.grad = None
        taken: list[Outputs] = []
        leaves: dict[str, Tensor] = {}
        mode: AbstractContextManager[Any] = nullcontext() if replica is None else Jitter(self.seed + replica)
        with mode:
            for micro, batch in enumerate(batches):
                given, leaves = differentiated(self.module, batch)
                with autocasting(self.autocast):
                    outputs = outputs_of(call(self.module, given))
                drawn = cotangents_of([y.shape for y in outputs], self.seed, turn, micro)
                drawn = drawn if cotangents is None else cotangents[micro]
                pull_back(outputs, [c * torch.ones_like(c) for c in drawn])
                taken.append(tuple(plain(y) for y in outputs))
        grads = {name: None if p.grad is None else plain(p.grad) for name, p in self.parameters.items()}
        if len(batches) == 1:
            grads |= {name: None if x.grad is None else plain(x.grad) for name, x in leaves.items()}
        for p in self.parameters.values():
            p.grad = None
        return taken, grads

    def _draws(self, batches: Sequence[Any], outputs: list[Outputs]) -> bool:
        """Whether the module draws random numbers, which rows on several ranks cannot share."""
        self._rewind()
        seed_generators(self.seed + 1)
        with torch.no_grad(), autocasting(self.autocast):
            again = [outputs_of(call(self.module, differentiated(self.module, batch)[0])) for batch in batches]
        pairs = [(a, b) for one, other in zip(again, outputs, strict=True) for a, b in zip(one, other, strict=True)]
        return not all(torch.equal(plain(a).nan_to_num(), b.nan_to_num()) for a, b in pairs)

    @torch.no_grad()
    def _rewind(self) -> None:
        for name, start in self._start.items():
            self.buffers[name].copy_(start)
        for name, value in self._values.items():
            put(self.parameters[name], value)


def call(module: nn.Module, given: Any) -> Any:
    return module(**given) if isinstance(given, dict) else module(*given)


def autocasting(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return ExitStack() if dtype is None else torch.autocast("cpu", dtype=dtype)


def differentiated(module: nn.Module, inputs: Any) -> tuple[Any, dict[str, Tensor]]:
    """The inputs with leaves in place of their floating tensors, and these by name."""
    names, keyword = argument_names(module, isinstance(inputs, dict)), isinstance(inputs, dict)
    leaves: dict[str, Tensor] = {}
    given = []
    for path, leaf in leaves_of(inputs):
        if isinstance(leaf, Tensor):
            leaf = leaf.detach().clone()
            if floating(leaf):
                leaves[INPUT + leaf_name(path, names, keyword)] = leaf.requires_grad_()
                leaf = leaf.clone()  # the module may write into it
        given.append(leaf)
    return rebuilt(inputs, iter(given)), leaves


def cotangents_of(shapes: Sequence[Sequence[int]], seed: int, turn: int, micro: int) -> Outputs:
    """N(0, 1)/√numel: other ones for each row, each step and each micro-batch."""
    blank = tuple(torch.empty(tuple(shape), dtype=torch.float64) for shape in shapes)
    return draw_cotangents(blank, seed + 101 * turn + 11 * micro)


def pull_back(outputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> None:
    """`.backward()` on those outputs that have a gradient."""
    pairs = [(y, c.to(y.dtype)) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if pairs:
        torch.autograd.backward([y for y, _ in pairs], [c for _, c in pairs])


def plain(tensor: Tensor) -> Tensor:
    """Real numbers in float64, whatever they were."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64, copy=True).contiguous()


@torch.no_grad()
def put(tensor: Tensor, value: Tensor) -> None:
    """What `plain` gave, back into a tensor."""
    own = torch.view_as_real(tensor.data) if tensor.dtype.is_complex else tensor.data
    own.copy_(value)


def converted(inputs: Any, dtype: torch.dtype | None) -> Any:
    """The inputs with their floating tensors in another dtype."""
    cast = (leaf.to(wider(leaf.dtype, dtype)) if isinstance(leaf, Tensor) else leaf for _, leaf in leaves_of(inputs))
    return rebuilt(inputs, cast)
