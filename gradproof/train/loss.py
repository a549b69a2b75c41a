"""A loss op with its options, ready for a step: its arguments, and the denominator of micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import signature
from types import ModuleType
from typing import Any

from torch import Tensor

from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.ops import bce, cross_entropy, load
from gradproof.proof.operation import argument_names

LOSSES = ("mse", "quality", "cross_entropy", "bce", "gaussian")
Target = Tensor | tuple[Tensor, ...]


class Loss:
    """`op` is a name or a module with `forward(y, *target, **options)`, `backward(dloss, saved, …)` and, for more than
    one micro-batch, `count(*target, …)`. A target of several tensors is a tuple in forward's order; the classes of
    tokens may come as target_BS, one row of logits each."""

    def __init__(self, op: str | ModuleType, **options: Any):
        if isinstance(op, str) and op not in LOSSES:
            raise ValueError(f"there is no loss {op!r}; the losses are {', '.join(LOSSES)}, or an op of your own")
        self.op = load(op) if isinstance(op, str) else op
        self.name = op if isinstance(op, str) else ""
        self.options = options
        defaults = signature(self.op.forward).parameters.values()
        known = [
            parameter.name
            for parameter in defaults
            if parameter.default is not parameter.empty and not parameter.name.endswith("total")
        ]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ValueError(f"the loss has no option {unknown[0]!r}; its options are {', '.join(known) or 'none'}")

    @property
    def plain(self) -> bool:
        """Whether it is cross-entropy and nothing else, which a step in one call has built in."""
        return type(self) is Loss and self.name == "cross_entropy" and not self.options

    def total(self, targets: Sequence[Target]) -> Mapping[str, Any]:
        """What the losses of all micro-batches are divided by, as arguments of forward."""
        if not hasattr(self.op, "count"):
            if len(targets) > 1:
                raise ValueError("this loss has no count(*target), so its micro-batches cannot be added up")
            return {}
        weighed = {name: self.options[name] for name in argument_names(self.op.count) if name in self.options}
        total: Counter[str] = Counter()
        for target in targets:
            for name, part in self.op.count(*self._tuple(target), **weighed).items():
                total[name] = total[name] + part
        return total

    def forward(
        self, y_TO: Tensor, target: Target, total: Mapping[str, Any], kernels: Kernels = REFERENCE
    ) -> tuple[Tensor, Any]:
        """The loss of these rows as a part of the whole."""
        op = kernels.loss(self.name, self.op)
        return op.forward(self._shaped(y_TO, target), *self._tuple(target), **self.options, **total)

    def backward(self, dloss: Tensor, saved: Any, y_TO: Tensor, target: Target, kernels: Kernels = REFERENCE) -> Tensor:
        """Returns dy_TO."""
        op = kernels.loss(self.name, self.op)
        first, *rest = argument_names(op.forward)
        given = {
            first: self._shaped(y_TO, target),
            **dict(zip(rest, self._tuple(target), strict=False)),
            **self.options,
        }
        asked = {name: given[name] for name in argument_names(op.backward) if name in given}
        dy = op.backward(dloss, saved, **asked)
        return dy if dy.shape == y_TO.shape else dy.view_as(y_TO)

    def _shaped(self, y_TO: Tensor, target: Target) -> Tensor:
        """A binary decision has one output a row, and its labels may come without that axis."""
        return y_TO.view_as(self._tuple(target)[0]) if self.op is bce and y_TO.shape[1] == 1 else y_TO

    def _tuple(self, target: Target) -> tuple[Tensor, ...]:
        if isinstance(target, tuple):
            return tuple(target)
        return (target.flatten() if self.op is cross_entropy else target,)
