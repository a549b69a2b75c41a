"""Buffers that are reused in every step, so that later steps allocate nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers that grow to the largest shape asked for. What one step takes is overwritten by the next."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...], torch.dtype, torch.device], Tensor] = {}
        self._parts: dict[int, Workspace] = {}

    def part(self, number: int) -> Workspace:
        """A workspace within, for one of several calls whose results are needed at the same time."""
        return self._parts.setdefault(number, Workspace())

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A contiguous buffer in the dtype and on the device of `like`, unwritten or full of what was there."""
        key = (name, shape, like.dtype, like.device)
        if key not in self._views:
            base, length = (name, like.dtype, like.device), math.prod(shape)
            held = self._buffers.get(base)
            if held is None or held.numel() < length:
                # The smaller one goes first: together they would be the peak.
                self._views = {old_key: view for old_key, view in self._views.items() if old_key[0] != name}
                held = self._buffers[base] = None  # type: ignore[assignment]
                held = self._buffers[base] = torch.empty(length, dtype=like.dtype, device=like.device)
            self._views[key] = held[:length].view(shape)
        return self._views[key]

    def show(self, name: str, layer: int, rows: Tensor, slices: list[tuple[int, int]] | None = None) -> None:
        """An intermediate result that is whole now, for whoever checks a kernel: h before it is written over, dh when
        all gradients of the layer above are written. `slices` say where each expert's rows stand, where that is not
        where the plan has them. Nobody looks in a step."""

    def bytes(self) -> int:
        """What is held."""
        own = sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())
        return own + sum(part.bytes() for part in self._parts.values())
