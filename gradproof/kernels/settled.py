"""Settled: the torch settings under which kernels are judged, independent of the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def settled(device: str) -> Iterator[None]:
    """Without autocast, gradients, inference mode, and another default dtype or device."""
    usual = torch.get_default_dtype()
    with ExitStack() as stack:
        for device_type in {"cpu", device}:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if usual is not torch.float32:
            stack.callback(torch.set_default_dtype, usual)
            torch.set_default_dtype(torch.float32)
        yield
