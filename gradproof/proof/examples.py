"""Generates the examples of a contract."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gradproof.contract import Contract, Example
from gradproof.streams import on_device, seeded

Axes = tuple[str, ...]


def parse_shapes(shapes: str) -> tuple[dict[str, Axes], dict[str, Axes]]:
    """ "x[T,I] plan -> y[T,O]" to ({"x": ("T", "I"), "plan": ()}, {"y": ("T", "O")})."""
    sides = []
    for side in shapes.split("->"):
        named = re.findall(r"(\w+)(?:\[([\w,]*)\])?", side)
        sides.append({name: tuple(axis for axis in axes.split(",") if axis) for name, axes in named})
    return sides[0], sides[1]


def examples(name: str, contract: Contract, seed: int, most: int = 24, device: str = "cpu") -> Iterator[Example]:
    """Every option with every size, or with two sizes each where that is more than `most`; then the edges. Which sizes
    meet changes with the seed. They are drawn on `device`, the edges always on the CPU."""
    generator = seeded(seed, name, "sizes")
    shuffled = {axis: [v[i] for i in torch.randperm(len(v), generator=generator)] for axis, v in contract.sizes.items()}
    rows = max(len(values) for values in shuffled.values())
    rows_each = rows if rows * len(contract.options) <= most else 2
    for number, options in enumerate(contract.options):
        for i in range(rows_each):
            at = number * rows_each + i
            sizes = {axis: values[at % len(values)] for axis, values in shuffled.items()}
            drawing = on_device(seeded(seed, name, number, i), device)
            with torch.device(device):
                example = _example(name, contract, sizes, options, drawing)
            yield example
    for number, edge in enumerate(contract.edges):
        yield edge(seeded(seed, name, "edge", number))


def _example(
    name: str, contract: Contract, sizes: Mapping[str, int], options: Mapping[str, Any], generator: torch.Generator
) -> Example:
    drawn = contract.draw(sizes, generator, options) if contract.draw else {}
    inputs, _ = parse_shapes(contract.shapes)
    arguments = {
        argument: drawn[argument]
        if argument in drawn
        else torch.randn([sizes[axis] for axis in axes], generator=generator, dtype=torch.float64)
        for argument, axes in inputs.items()
    }
    arguments |= {argument: value for argument, value in drawn.items() if argument not in arguments}
    return Example(" ".join(f"{axis}={size}" for axis, size in sizes.items()), arguments, options)
