"""Runs a user's module at given values: forward, and backward by `.backward()` on its own outputs.

Every floating output with a gradient is projected, on a direction of its own. Tensors that share memory are one value,
named after all of them. Before each run state, generators and values are what they were. Inputs lie in memory as they
were given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.contract import Gradients, Outputs
from gradproof.heap import give_back
from gradproof.proof.memory_layout import laid_out, strides_to_keep
from gradproof.proof.recorder import Promotion, Recorder
from gradproof.proof.state import ModuleState, wider
from gradproof.proof.structure import dense, floating, gradient_values, holding, leaves_of, numbers, opaque, rebuilt
from gradproof.streams import seeded

INPUT = "input:"
LARGE = 1 << 23  # numbers; above this, a run's freed memory is worth giving back before the next

GradientOf = Callable[[str, nn.Parameter], Tensor | None]


class CannotRun(ValueError):
    """The module cannot be judged at all; the message says why in one sentence."""


class Runner:
    """One setting of a module: its dtype, its arguments, its seed.

    unjudged   by name, why something that can train is not among the values
    elsewhere  by name, where a gradient was found that did not go to `.grad`
    stepped    the parameters whose own values a backward has changed
    rewritten  those whose values the forward itself changes
    strides    by name, those of the arguments that are not contiguous
    copied     the names of those that are passed as contiguous copies all the same
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Any,
        state: ModuleState,
        dtype: torch.dtype | None,
        device: torch.device | None,
        promote: Promotion,
        seed: int,
        gradient_of: GradientOf | None = None,
        autocast: torch.dtype | None = None,
        held: frozenset[str] = frozenset(),
    ):
        self.module, self.state, self.promote, self.seed, self.dtype = module, state, promote, seed, dtype
        self.device, self.gradient_of, self.autocast, self.held = device, gradient_of, autocast, held
        self.keyword = isinstance(inputs, Mapping)
        self.given = dict(inputs) if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
        self.unjudged: dict[str, str] = {}
        self.elsewhere: dict[str, str] = {}
        self.stepped: set[str] = set()
        self.rewritten: set[str] = set()
        self.copied: frozenset[str] = frozenset()
        self.notes: list[str] = []
        self.chosen: tuple[int, ...] | None = None
        self.groups = self._groups()
        self.values = {name: _extent([p.data for p in group]).clone() for name, group in self.groups.items()}
        self._current = dict(self.values)
        self.arguments(self.given)
        self.large = sum(value.numel() for value in self.values.values()) > LARGE

    def arguments(self, given: Any) -> None:
        """Takes other arguments of the same structure."""
        names = argument_names(self.module, self.keyword)
        self.given = given
        listed = list(leaves_of(given))
        self.leaves = [_copied(leaf, self.dtype, self.device) for _, leaf in listed]
        self.inputs: dict[str, int] = {}
        self.asked: set[str] = set()  # inputs that require a gradient by themselves
        self.strides: dict[str, tuple[int, tuple[int, ...]]] = {}
        for i, (path, leaf) in enumerate(listed):
            name = INPUT + leaf_name(path, names, self.keyword)
            strides = strides_to_keep(leaf) if isinstance(leaf, Tensor) else None
            if strides is not None:
                self.strides[name] = i, strides
            if name in self.held:
                continue
            if isinstance(leaf, Tensor) and floating(leaf):
                if numbers(self.leaves[i]) is None:
                    self.unjudged[name] = f"its layout, {str(leaf.layout).removeprefix('torch.')}, cannot be moved"
                else:
                    self.inputs[name] = i
                    if leaf.requires_grad:
                        self.asked.add(name)
            elif opaque(leaf):
                self.unjudged[name] = f"it holds tensors inside a {type(leaf).__name__}, which is not searched"
        own = {name: value for name, value in self.values.items() if not name.startswith(INPUT)}
        self.values = {**own, **{name: _real(numbers(self.leaves[i])) for name, i in self.inputs.items()}}

    @property
    def unasked(self) -> frozenset[str]:
        """Inputs whose gradient nobody asked for."""
        return frozenset(self.inputs) - self.asked

    def resume(self) -> None:
        """After the module was in another setting."""
        self.groups = self._groups()
        self._current = {name: _extent([p.data for p in group]).clone() for name, group in self.groups.items()}

    @property
    def promoting(self) -> AbstractContextManager[Any]:
        return Recorder(self.promote) if self.promote else nullcontext()

    def run(self, values: Mapping[str, Tensor], cotangents: Outputs | None) -> tuple[Outputs, Gradients]:
        """The projected outputs and, given their cotangents, every gradient."""
        outputs = self.forward(values)
        return outputs, {} if cotangents is None else self.pull_back(outputs, cotangents)

    def pull_back(self, outputs: Outputs, cotangents: Outputs, retain: bool = False) -> Gradients:
        """`.backward()` on the outputs, and the gradients of the forward before; those of parameters are taken off."""
        return self.pulled(outputs, [c.to(y.dtype) for y, c in zip(outputs, cotangents, strict=True)], retain)

    def pulled(self, outputs: Outputs, cotangents: Sequence[Tensor], retain: bool = False) -> Gradients:
        """The same with cotangents that are passed on as they are."""
        pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
        with _disable_current_modes():
            before = self._set_aside()
            self.rewritten |= {name for name, group in self.groups.items() if self._moved(name, group)}
        if pairs:
            torch.autograd.backward([y for y, _ in pairs], [c for _, c in pairs], retain_graph=retain)
        with _disable_current_modes():  # whoever watches the module need not see what is done with its gradients
            return self._gradients(before)

    def _gradients(self, before: Mapping[int, Tensor]) -> Gradients:
        """What a backward has left, by name."""
        grads: Gradients = {name: self._gathered(name, group, before) for name, group in self.groups.items()}
        for name, leaf in self.leaf_inputs.items():
            grads[name] = _real(leaf.grad)
        for name, group in self.groups.items():
            for p in group:
                p.grad = None
            if name not in self.rewritten and self._moved(name, group):
                self.stepped.add(name)
        return grads

    def forward(self, values: Mapping[str, Tensor]) -> Outputs:
        """The floating outputs with a gradient, at `values`, from the same state and seed every time."""
        with _disable_current_modes():  # the recorder watches the module, not its preparation
            given = self._prepare(values)
        return self.call(given)

    def call(self, given: Any) -> Outputs:
        """The module itself, on arguments as they are."""
        self.state.forwards += 1
        with self._autocasting():
            output = self.module(**given) if self.keyword else self.module(*given)
        return self.projected(output)

    def projected(self, output: Any) -> Outputs:
        """The tensors of an output that are projected: those that have a gradient, or the first."""
        found = [leaf for _, leaf in leaves_of(output) if isinstance(leaf, Tensor) and floating(leaf)]
        usable = [leaf if dense(leaf) else _dense_output(leaf) for leaf in found]
        if not any(leaf is not None for leaf in usable):
            raise CannotRun("the module's output holds no floating tensor to project")
        if self.chosen is None:
            self._choose(output, found, usable)
        assert self.chosen is not None
        return tuple(_real(usable[i]) for i in self.chosen)

    def _choose(self, output: Any, found: Sequence[Tensor], usable: Sequence[Tensor | None]) -> None:
        able = [i for i, leaf in enumerate(usable) if leaf is not None]
        self.chosen = tuple(i for i in able if found[i].requires_grad) or (able[0],)
        missed = [i for i, leaf in enumerate(usable) if leaf is None and found[i].requires_grad]
        for i in missed:
            self.unjudged[f"output {i}"] = (
                f"its layout, {str(found[i].layout).removeprefix('torch.')}, is not projected"
            )
        hidden = {type(leaf).__name__ for _, leaf in leaves_of(output) if opaque(leaf)}
        self.notes += [f"an output of type {name} was not searched" for name in sorted(hidden)]

    def _autocasting(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        kind = next((t.device.type for t in self.state.tensors), "cpu")
        return torch.autocast(kind, dtype=self.autocast)

    def _prepare(self, values: Mapping[str, Tensor]) -> Any:
        """State and generators as they were, the values in place; returns the arguments."""
        if self.large:
            give_back()
        self.state.reset(self.seed)
        return self.placed(values)

    def placed(self, values: Mapping[str, Tensor], differentiated: bool = True) -> Any:
        """Puts the values in place and returns the arguments. Inputs are clones of leaves, so that the module may write
        into them; without `differentiated` they are plain data."""
        for name, group in self.groups.items():
            for p in group:
                p.grad = None  # of a backward that did not come to its end
            if values[name] is not self._current[name] or name in self.stepped or name in self.rewritten:
                self._put(group, values[name])
            if values[name] is not self._current[name]:
                increment_version(group)  # as an optimizer does: some caches go by it
                self._current[name] = values[name]
        leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        self.leaf_inputs: dict[str, Tensor] = {}
        for name, i in self.inputs.items():
            value = values[name].detach().clone()
            value = torch.view_as_complex(value) if self.leaves[i].dtype.is_complex else value
            if differentiated:
                self.leaf_inputs[name] = value.requires_grad_()
            leaves[i] = holding(self.leaves[i], value.clone())
        for name, (i, strides) in self.strides.items():
            if name not in self.copied:
                leaves[i] = laid_out(leaves[i], strides)
        return rebuilt(self.given, iter(leaves))

    def _put(self, group: list[nn.Parameter], value: Tensor) -> None:
        if dense(group[0]):
            _extent([p.data for p in group]).copy_(value)
        else:
            group[0].data = holding(group[0].data, value.clone())

    def _moved(self, name: str, group: list[nn.Parameter]) -> bool:
        own, kept = _extent([p.data for p in group]), self._current[name]
        return own.shape != kept.shape or not torch.equal(own.nan_to_num(), kept.nan_to_num())

    def _groups(self) -> dict[str, list[nn.Parameter]]:
        """Trainable parameters by name; those that overlap in memory together."""
        groups: list[tuple[list[str], list[nn.Parameter], int, int]] = []
        for name, p in self.module.named_parameters():
            if not p.requires_grad or not floating(p):
                continue
            if numbers(p.data) is None:
                self.unjudged[name] = f"its layout, {str(p.layout).removeprefix('torch.')}, cannot be moved"
                continue
            if not dense(p):
                groups.append(([name], [p], -1, -1))
                continue
            last = sum((size - 1) * stride for size, stride in zip(p.shape, p.stride(), strict=True))
            start = p.data_ptr()
            end = start + (last + 1) * p.element_size() if p.numel() else start
            merged = ([name], [p], start, end)
            for group in [g for g in groups if start < g[3] and g[2] < end and g[1][0].dtype == p.dtype]:
                groups.remove(group)
                low, high = min(group[2], merged[2]), max(group[3], merged[3])
                merged = ([*group[0], *merged[0]], [*group[1], *merged[1]], low, high)
            groups.append(merged)
        return {" = ".join(names): parameters for names, parameters, _, _ in groups}

    def _set_aside(self) -> dict[int, Tensor]:
        """What attributes of parameters hold that gradients may be added to, before a backward. Where the user says
        where gradients go, that is emptied first, whether it is added to or written over."""
        if self.gradient_of is not None:
            for name, group in self.groups.items():
                for p in group:
                    with suppress(Exception):  # nothing is there yet
                        own = self.gradient_of(name, p)
                        if own is not None and own is not p.grad:
                            own.detach().zero_()
            return {}
        held = {id(p): own for group in self.groups.values() for p in group if (own := main_grad(p)) is not None}
        return {key: own.detach().clone() for key, own in held.items()}

    def _gathered(self, name: str, group: list[nn.Parameter], before: Mapping[int, Tensor]) -> Tensor | None:
        """The gradient of a value: the parameter's own, or those of all that share the memory, added up in place."""
        grads = [self._gradient(name, p, before.get(id(p))) for p in group]
        if len(group) == 1:
            return _real(grads[0])
        if all(grad is None for grad in grads):
            return None
        extent = _extent([p.data for p in group])
        total = torch.zeros(extent.shape[0], dtype=group[0].dtype, device=group[0].device)
        first = min(p.storage_offset() for p in group)
        for p, grad in zip(group, grads, strict=True):
            if grad is not None:
                total.as_strided(p.shape, p.stride(), p.storage_offset() - first).add_(grad)
        return _real(total)

    def _gradient(self, name: str, p: nn.Parameter, before: Tensor | None) -> Tensor | None:
        if self.gradient_of is not None:
            grad = self.gradient_of(name, p)
            return None if grad is None else gradient_values(p.data, grad.detach().to(p.device)).clone()
        own, beside = p.grad, main_grad(p)
        if beside is not None and before is not None:
            added = beside.detach().to(before.dtype) - before
            if bool(added.any()):
                self.elsewhere[name] = "main_grad"
                return added if own is None or not bool(own.any()) else added + gradient_values(p.data, own.detach())
        return None if own is None else gradient_values(p.data, own.detach()).clone()


def main_grad(p: nn.Parameter) -> Tensor | None:
    """The buffer in which Megatron and its kin add up gradients."""
    own = getattr(p, "main_grad", None)
    return own if isinstance(own, Tensor) and own.shape == p.shape else None


def draw_cotangents(outputs: Outputs, seed: int) -> Outputs:
    """N(0, 1)/√numel for each output, from a stream of its own."""
    drawn = []
    for i, output in enumerate(outputs):
        key = (seed, "cotangent", i) if i else (seed, "cotangent")
        one = torch.randn(output.shape, generator=seeded(*key), dtype=torch.float64)
        drawn.append(one.to(output.device) / math.sqrt(max(output.numel(), 1)))
    return tuple(drawn)


def _copied(leaf: Any, dtype: torch.dtype | None, device: torch.device | None) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    copied = leaf.detach().to(device=device or leaf.device, dtype=wider(leaf.dtype, dtype), copy=True)
    if leaf.layout == torch.sparse_coo:
        return copied.coalesce()
    return copied.contiguous() if dense(leaf) else copied


def _real(tensor: Tensor | None) -> Any:
    """A complex tensor as its real and imaginary parts, which torch's gradients are with respect to."""
    if tensor is None or not tensor.dtype.is_complex:
        return tensor
    return torch.view_as_real(tensor.resolve_conj())


def _dense_output(tensor: Tensor) -> Tensor | None:
    """A sparse or nested output in dense numbers, if it has them."""
    try:
        return tensor.values() if tensor.is_nested else tensor.to_dense()
    except (RuntimeError, NotImplementedError):
        return None


def argument_names(module: nn.Module, keyword: bool) -> list[str]:
    if keyword:
        return []
    try:
        kinds = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def leaf_name(path: str, names: list[str], keyword: bool) -> str:
    """`x`, or `x[0]` inside a structure; by number where the signature has no name."""
    first, _, rest = path[1:].partition("]")
    if keyword:
        return first.strip("'\"") + rest
    key = int(first)
    return (names[key] if key < len(names) else str(key)) + rest


def _extent(tensors: list[Tensor]) -> Tensor:
    """A single tensor's numbers as they are; of several that overlap, the stretch of memory that they cover."""
    if len(tensors) == 1:
        return _real(numbers(tensors[0]))
    first = min(t.storage_offset() for t in tensors)
    ends = [t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    return _real(tensors[0].as_strided((max(ends) - first + 1,), (1,), first))


def one_line(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
