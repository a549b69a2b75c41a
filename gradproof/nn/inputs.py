"""Checks the input of a module: its width, and a dtype that matches the parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gradproof.ops import NARROW
from gradproof.precision.probe import check_bf16_on_cpu


def narrow_dtype(x: Tensor, parameter: Tensor) -> torch.dtype | None:
    """The dtype of products if that is bf16 or fp16: autocast's, or that of the parameters. ValueError, in a sentence,
    for an input that does not go with the parameters."""
    if x.device != parameter.device:
        raise ValueError(f"the input is on {x.device}, the parameters are on {parameter.device}; move one of them")
    stored, given = parameter.dtype, x.dtype
    casting = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (stored, given)
    if stored != given and not (casting and given.is_floating_point):
        raise ValueError(f"the input is {given} but the parameters are {stored}; convert one of them")
    narrow = torch.get_autocast_dtype(x.device.type) if casting else stored
    if narrow is torch.bfloat16 and x.device.type == "cpu":
        check_bf16_on_cpu()
    return narrow if narrow in NARROW else stored if stored in NARROW else None


def rows_of(x: Tensor, width: int) -> Tensor:
    """x_TI for any x[..., I]."""
    check_rows(x, width)
    return x.reshape(-1, width)


def check_rows(x: Tensor, width: int) -> None:
    """Raises ValueError for an input with the wrong width, or without rows."""
    if x.dim() == 0 or x.shape[-1] != width:
        raise ValueError(f"the input's last axis must have {width} entries, but the input is {list(x.shape)}")
    if not x.numel():
        raise ValueError(f"the input {list(x.shape)} has no rows; give at least one")


def no_autocast(device: str) -> AbstractContextManager[Any]:
    """Disables autocast, because the explicit passes choose their own dtypes."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
