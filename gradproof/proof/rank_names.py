"""Maps the tensors of a wrapped module to those of the original, and to the parts that a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

INSERTED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # compile, FSDP, checkpointing

GradientSlots = Callable[[nn.Module], Mapping[str, Tensor | None]]


def parameter_slots(module: nn.Module) -> Mapping[str, Tensor | None]:
    return module._parameters


def buffer_slots(module: nn.Module) -> Mapping[str, Tensor | None]:
    return module._buffers


def slots(module: nn.Module, of: GradientSlots) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
    """(path, attribute, owner, tensor); what is tied comes under each of its names."""
    for path, owner in module.named_modules(remove_duplicate=False):
        for attribute, tensor in of(owner).items():
            if tensor is not None:
                yield path, attribute, owner, tensor


def joined(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute


class Origins:
    """The module before it was wrapped: its submodules, kept so that they can be recognised."""

    def __init__(self, module: nn.Module):
        self.paths = {owner: path for path, owner in module.named_modules()}

    def held(
        self, wrapped: nn.Module, known: Mapping[str, Any], of: GradientSlots
    ) -> tuple[dict[str, Tensor], list[str]]:
        """The wrapped module's tensors by the names that they had, and those that cannot be traced."""
        held: dict[str, Tensor] = {}
        strange = []
        for path, attribute, owner, tensor in slots(wrapped, of):
            name = self._name(path, attribute, owner, known)
            if name is None:
                strange.append(joined(path, attribute))
            else:
                held.setdefault(name, tensor)
        return held, strange

    def _name(self, path: str, attribute: str, owner: nn.Module, known: Mapping[str, Any]) -> str | None:
        """By the submodule that holds it; where that is new, by its path without what wrappers insert."""
        if owner in self.paths and (name := joined(self.paths[owner], attribute)) in known:
            return name
        steps = [step for step in path.split(".") if step and step not in INSERTED]
        plain = [joined(".".join(steps), attribute), joined(".".join(s for s in steps if s != "module"), attribute)]
        for name in plain:
            if name in known:
                return name
        ends = [name for name in known if plain[0].endswith("." + name)]
        return max(ends, key=len, default=None)


class NamePart(NamedTuple):
    """Which part of a whole tensor a rank holds: all, or a stretch along one axis. `team` holds the other parts."""

    axis: int | None = None
    start: int = 0
    length: int = 0
    team: tuple[int, ...] = ()

    def of(self, whole: Tensor) -> Tensor:
        return whole if self.axis is None else whole.narrow(self.axis, self.start, self.length)


def part_of(whole: Sequence[int], shapes: Sequence[Sequence[int]], rank: int, shares: int) -> NamePart | None:
    """From the shapes on all ranks: parts in the order of ranks, over all of them or over those that have the same
    rows. None where they make up no whole."""
    whole = tuple(whole)
    if all(tuple(shape) == whole for shape in shapes):
        return NamePart()
    group = len(shapes) // shares
    first = rank // group * group
    for team in (tuple(range(len(shapes))), tuple(range(first, first + group))):
        for axis in range(len(whole)):
            own = [tuple(shapes[r]) for r in team]
            if any(len(s) != len(whole) for s in own):
                return None
            rest = whole[:axis] + whole[axis + 1 :]
            if any(s[:axis] + s[axis + 1 :] != rest for s in own) or sum(s[axis] for s in own) != whole[axis]:
                continue
            at = team.index(rank)
            return NamePart(axis, sum(s[axis] for s in own[:at]), own[at][axis], team)
    return None
