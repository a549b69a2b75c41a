"""The forward of a classifying transformer in one call. See ops/reading.py."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready
from gradproof.ops.reading import Reader


def forward(token_BS: Tensor, theta_P: Tensor, reader: Reader) -> tuple[Tensor, None]:
    """y_BO."""
    (B, S), numbers = token_BS.shape, _numbers(reader)
    if reader.context < S or len(theta_P) < reader.offsets[1]:
        raise ValueError(f"{S} tokens and {len(theta_P):,} parameters do not fit {reader}")
    if token_BS.dtype is not torch.int64:
        raise TypeError(f"tokens are int64, not {token_BS.dtype}")
    token_BS, theta_P, y_BO = token_BS.contiguous(), ready(theta_P), theta_P.new_empty(B, reader.outputs)
    pointers = token_BS.data_ptr(), B, S, theta_P.data_ptr(), numbers.data_ptr(), y_BO.data_ptr()
    if library().reading_forward(*pointers, torch.get_num_threads()):
        raise ValueError(f"a token must be in 0..{reader.vocabulary - 1}, or −1 for padding")
    return y_BO, None


@cache
def _numbers(reader: Reader) -> Tensor:
    """A reader as the kernel reads it."""
    if reader.width % reader.heads:
        raise ValueError(f"a width of {reader.width} cannot be shared by {reader.heads} heads")
    sizes = (reader.layers, reader.width, reader.heads, reader.inner, reader.outputs, reader.vocabulary)
    return torch.tensor([*sizes, *reader.offsets[0].values()])
