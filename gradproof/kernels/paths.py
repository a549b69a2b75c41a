"""Path: everything that a kernel's code branches on in a call. An admission holds for one path.

A kernel package states its paths by `path(op, shape)`. One that does not is taken to branch on anything: its path is
the exact shape, as it must be where a library picks an algorithm that cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gradproof.kernels.shapes import MIXTURES, Shape
from gradproof.kernels.variants import Variant
from gradproof.ops.experts import Chain


@dataclass(frozen=True)
class Path:
    """Of a call of one kernel: what it branches on, by name."""

    op: str
    kernel: str
    device: str
    dtype: str
    facts: tuple[tuple[str, Any], ...]


def path_of(variant: Variant, shape: Shape) -> Path:
    """The path that a call of this shape takes."""
    stated = getattr(variant.package, "path", None)
    facts = exact(variant.op, shape) if stated is None else stated(variant.op, shape)
    threads = {"threads": shape.threads} if shape.device == "cpu" else {}
    named = {**facts, **threads}
    return Path(variant.op, variant.kernel, shape.device, shape.dtype_of(variant.op), tuple(sorted(named.items())))


def exact(op: str, shape: Shape) -> dict[str, Any]:
    """The whole shape, as far as the op sees it."""
    if op in ("adamw", "update"):
        return {"parameters": shape.parameters}
    sized = {"rows": shape.tokens if op == "cross_entropy" else shape.rows, **widths(op, shape)}
    return {**sized, "parameters": shape.parameters} if op == "lesson" else sized


def widths(op: str, shape: Shape) -> dict[str, Any]:
    """What the op sees of the shape besides its rows."""
    chain, block = shape.chain, shape.block
    routed = {"experts": shape.experts, "k": shape.k}
    if op in ("experts", *MIXTURES):
        routing = {"routing": str(shape.routing)} if op in MIXTURES else {}
        return {**routed, "widths": chain.widths, "active": chain.active, **routing}
    if op == "route":
        return {"experts": shape.experts, "routing": str(shape.routing)}
    if op == "dispatch":
        return {**routed, "inputs": chain.widths[0]}
    if op == "combine":
        return {**routed, "outputs": chain.widths[-1]}
    if op == "cross_entropy":
        return {"classes": chain.widths[-1]}
    return {} if block is None else {"block": str(block)}


MOST_LAYERS = 2  # of a deep chain, where a contract's own sizes and edges are tried: the others are repetitions


def shallow(shape: Shape) -> Shape:
    """The first layers of a chain."""
    widths, active = shape.chain.widths, shape.chain.active
    if len(active) <= MOST_LAYERS:
        return shape
    return replace(shape, chain=Chain((*widths[: MOST_LAYERS + 1], widths[-1]), active[:MOST_LAYERS]))


def smallest(variant: Variant, shape: Shape) -> Shape:
    """As few rows and parameters as take the same path: what a call costs to judge grows with them."""
    path = path_of(variant, shape)
    for name, least in (("rows", 1), ("parameters", 64)):
        low, high = least, getattr(shape, name)
        while high > low:  # not always the smallest, for paths need not be intervals; but one that takes it
            middle = max(low, high // 2)
            smaller = replace(shape, **{name: middle - middle % least})
            if path_of(variant, smaller) != path:
                break
            shape, high = smaller, middle
    return shape
