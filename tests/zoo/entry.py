"""What an entry of the zoo says of itself: how it is made, and what is true of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

FORMATS = ("bf16", "fp16", "fp8_e4m3")


@dataclass(frozen=True)
class Entry:
    """A module and the truth about it.

    make     () to (module, inputs) or (module, inputs, reference), drawn from torch's default generator, which the
             caller seeds: another seed is another trial of the same kind
    fault    the right category by format, for the formats in which something is wrong: bug, overflow, underflow or
             routing. Empty for a correct module; a format that is not named is one where nothing is wrong.
    may      categories that are no false alarm by format, because they do happen there (a correct router with near-ties
             flips rows, a gradient of 1e-12 underflows in fp16)
    accused  for a gradient bug: the tensors whose gradient is wrong
    why      one sentence: what is wrong, or what makes a correct module hard
    """

    make: Callable[[], tuple[nn.Module, Any] | tuple[nn.Module, Any, nn.Module]]
    fault: Mapping[str, str] = field(default_factory=dict)
    may: Mapping[str, frozenset[str]] = field(default_factory=dict)
    accused: frozenset[str] = frozenset()
    why: str = ""


def always(category: str) -> dict[str, str]:
    """The same fault in every format."""
    return dict.fromkeys(FORMATS, category)
