"""Shape: what a model requires of its kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gradproof.ops.experts import Chain
from gradproof.ops.route import Routing

ROW_OPS = ("route", "dispatch", "experts", "combine", "cross_entropy", "adamw")  # of a model that reads records
TOKEN_OPS = ("embedding", "layernorm", "attention", "ffn", "cross_entropy", "adamw")  # of one that reads tokens
OPS = tuple(dict.fromkeys(ROW_OPS + TOKEN_OPS))
STAYING = TOKEN_OPS[:4]  # whose reference reads nothing on the host
ROW_FUSED = ("mixture", "update", "lesson")
FUSED = (*ROW_FUSED, "reading")  # several ops as one; where none is admitted, their parts run by their own
MIXTURES = ("mixture", "lesson")  # those that a mixture's shape is an option of
NARROW_OPS = (
    "experts",
    "mixture",
    "lesson",
    "reading",
    "attention",
    "ffn",
)  # whose operands are narrow in a narrow step
NARROW = ("bfloat16", "float16")


@dataclass(frozen=True)
class Block:
    """The widths of a transformer, as far as its ops see them; `causal` where some attention is."""

    vocabulary: int = 0
    width: int = 0
    heads: int = 1
    inner: int = 0
    context: int = 0
    causal: bool = False
    layers: int = 0


@dataclass(frozen=True)
class Shape:
    """A step or a forward on so many rows. `parameters` is the length of the flat buffer, `threads` how many share the
    work of a CPU."""

    device: str
    dtype: str
    rows: int
    experts: int
    k: int
    chain: Chain
    routing: Routing | None = None
    block: Block | None = None
    ops: tuple[str, ...] = ROW_OPS
    fused: tuple[str, ...] = ROW_FUSED
    parameters: int = 64
    threads: int = field(default_factory=torch.get_num_threads)

    @property
    def tokens(self) -> int:
        """The rows that its products see: those of all places, where a row is a sequence."""
        return self.rows * (self.block.context if self.block else 1)

    def dtype_of(self, op: str) -> str:
        """In which format an op computes: only some have narrow operands."""
        return "float32" if self.dtype in NARROW and op not in NARROW_OPS else self.dtype
