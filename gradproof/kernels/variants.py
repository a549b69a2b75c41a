"""Variants: the ways to run each op, listed by each kernel package; and Kernels, those that a model uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

from gradproof.kernels.shapes import FUSED, MIXTURES, OPS, ROW_OPS, Shape
from gradproof.kernels.workspace import Workspace
from gradproof.ops.experts import Chain
from gradproof.ops.mixture import MixtureOps

PACKAGES = ("cpu", "triton", "grouped", "cublas", "aten")  # of an op's variants the first that is admitted is taken


@dataclass(frozen=True)
class Variant:
    """A way to run an op: `gradproof.kernels.{kernel}.{op}`. `host` says that it reads the row counts of several
    experts on the host, so it cannot be captured in a graph."""

    op: str
    kernel: str
    device: str
    dtypes: tuple[str, ...] = ("float32",)
    host: bool = False
    most: float = math.inf  # multiply-adds of the largest product, beyond which the next one is faster

    @property
    def module(self) -> ModuleType:
        return import_module(f"gradproof.kernels.{self.kernel}.{self.op}")

    @property
    def package(self) -> ModuleType:
        return import_module(f"gradproof.kernels.{self.kernel}")

    def serves(self, chain: Chain) -> bool:
        """Some variants of `experts` are made for some chains only."""
        return self.op != "experts" or getattr(self.module, "serves", lambda chain: True)(chain)

    def fits(self, shape: Shape) -> bool:
        """Whether it is made for this shape."""
        work = shape.rows * shape.k * max(a * b for a, b in pairwise(shape.chain.widths))
        routed = self.op not in MIXTURES or shape.routing is not None
        return routed and self.serves(shape.chain) and work <= self.most

    def missing(self) -> str | None:
        """Why it cannot run on this machine, or None."""
        return self.package.missing()


@cache
def all_variants() -> tuple[Variant, ...]:
    """Those of all packages."""
    packages = (import_module(f"gradproof.kernels.{name}") for name in PACKAGES)
    return tuple(variant for package in packages for variant in package.variants())


def offered(op: str, shape: Shape) -> list[Variant]:
    """Those for the op, its dtype and the device, whether or not this machine has them."""
    dtype = shape.dtype_of(op)
    return [v for v in all_variants() if v.op == op and v.device == shape.device and dtype in v.dtypes]


@dataclass(frozen=True)
class Kernels:
    """The modules that a model runs its ops with, and their names. A fused op that is None runs part by part."""

    route: ModuleType
    dispatch: ModuleType
    experts: ModuleType
    combine: ModuleType
    cross_entropy: ModuleType
    adamw: ModuleType
    embedding: ModuleType
    layernorm: ModuleType
    attention: ModuleType
    ffn: ModuleType
    chosen: Mapping[str, str]
    mixture: ModuleType | None = None
    update: ModuleType | None = None
    lesson: ModuleType | None = None
    reading: ModuleType | None = None
    workspace: Workspace | None = None
    capturable: bool = False
    final: Callable[[str], None] | None = None  # is told the prefix of parameters whose gradients are final

    @property
    def in_turns(self) -> bool:
        """Whether experts are computed one after the other: somebody waits for the gradients of each, and they are no
        kernels that are being checked."""
        return self.final is not None and isinstance(self.experts, ModuleType)

    def announce(self, prefix: str) -> None:
        """The backward is done with the gradients of these parameters."""
        if self.final is not None:
            self.final(prefix)

    @classmethod
    def of(
        cls, chosen: Mapping[str, str], workspace: Workspace | None = None, ops: tuple[str, ...] = ROW_OPS
    ) -> Kernels:
        """Kernels by name; what is not named is the reference, or its parts. `ops` are those that a model has."""
        named = {op: chosen.get(op, "reference") for op in OPS}
        named |= {op: chosen[op] for op in FUSED if chosen.get(op, "reference") != "reference"}
        modules: dict[str, Any] = {op: _module(op, kernel) for op, kernel in named.items()}
        own = {op: kernel for op, kernel in named.items() if op in (*ops, *FUSED)}
        return cls(**modules, chosen=own, workspace=workspace)

    def loss(self, name: str, op: ModuleType) -> ModuleType:
        """What runs a loss: of the named ones cross-entropy has kernels; the others run as they are."""
        return self.cross_entropy if name == "cross_entropy" else op

    @property
    def parts(self) -> MixtureOps:
        """What runs a mixture part by part."""
        return MixtureOps(self.route, self.dispatch, self.experts, self.combine)


def _module(op: str, kernel: str) -> ModuleType:
    return import_module(f"gradproof.ops.{op}" if kernel == "reference" else f"gradproof.kernels.{kernel}.{op}")


REFERENCE = Kernels.of({})
