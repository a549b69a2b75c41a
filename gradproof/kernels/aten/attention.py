"""Attention by torch's fused kernels, which never hold the probabilities. See ops/attention.py.

A CPU has one of them; a GPU flash attention, for narrow operands without a mask, and the memory-efficient one for the
rest. What those do not take (heads that are no multiple of 16 bytes wide) is left to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import deterministic

from gradproof.ops import NARROW, attention
from gradproof.ops.attention import joined, split

ALIGNED = 16  # bytes, and places of the mask
SHORT = 16  # keys, below which torch's kernel for the CPU loses a NaN of a query


class FusedAttention(NamedTuple):
    """What a fused forward keeps, the kernel by name."""

    kernel: str
    y_BASW: Tensor
    lse: Tensor
    bias_BASL: Tensor | None
    causal: bool
    rest: tuple = ()


def forward(
    q_BSD: Tensor, k_BLD: Tensor, v_BLD: Tensor, mask_BL: Tensor | None = None, heads: int = 1, causal: bool = False
) -> tuple[Tensor, FusedAttention | Tensor]:
    """y_BSD."""
    q, k, v = (split(_side_by_side(operand), heads) for operand in (q_BSD, k_BLD, v_BLD))
    if not q.is_cuda:
        if k.shape[2] < SHORT:
            return attention.forward(q_BSD, k_BLD, v_BLD, mask_BL, heads, causal)
        bias = None if mask_BL is None else _bias(mask_BL, q)
        y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias)
        return joined(y), FusedAttention("cpu", y, lse, bias, causal)
    if q.shape[3] * q.element_size() % ALIGNED:
        return attention.forward(q_BSD, k_BLD, v_BLD, mask_BL, heads, causal)
    if q.dtype in NARROW and mask_BL is None and (not causal or q.shape[2] == k.shape[2]):
        y, lse, *rest = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        return joined(y), FusedAttention("flash", y, lse, None, causal, tuple(rest[:6]))
    bias = None if mask_BL is None else _bias(mask_BL, q).expand(-1, heads, q.shape[2], -1)
    y, lse, *rest = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal)
    if mask_BL is not None:
        y = _blinded(y, mask_BL, causal)
    return joined(y), FusedAttention("efficient", y, lse, bias, causal, tuple(rest))


def backward(
    dy_BSD: Tensor, saved: FusedAttention | Tensor, q_BSD: Tensor, k_BLD: Tensor, v_BLD: Tensor, heads: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dq_BSD, dk_BLD, dv_BLD."""
    if isinstance(saved, Tensor):
        return attention.backward(dy_BSD, saved, q_BSD, k_BLD, v_BLD, heads)
    given = tuple(split(_side_by_side(operand), heads) for operand in (dy_BSD, q_BSD, k_BLD, v_BLD))
    kernel, y, lse, bias, causal, rest = saved
    with _same_bits():
        if kernel == "cpu":
            grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *given, y, lse, 0.0, causal, attn_mask=bias
            )
        elif kernel == "flash":
            sequences, (seed, offset) = rest[:4], rest[4:]
            grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
                *given, y, lse, *sequences, 0.0, causal, seed, offset
            )
        else:
            grads = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
                *given, bias, y, lse, *rest, 0.0, [True, True, True, False], causal
            )
    return joined(grads[0]), joined(grads[1]), joined(grads[2])


def _side_by_side(x_BSD: Tensor) -> Tensor:
    """The numbers of each row side by side: torch's kernels read them so, whatever the strides say."""
    return x_BSD if x_BSD.stride(-1) == 1 else x_BSD.contiguous()


@contextmanager
def _same_bits() -> Iterator[None]:
    """Long sequences are cut up: without this their parts of dq are added in the order in which they are ready."""
    before = torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()
    filled = deterministic.fill_uninitialized_memory  # pyright: ignore[reportAttributeAccessIssue]
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
        deterministic.fill_uninitialized_memory = filled  # pyright: ignore[reportAttributeAccessIssue]


def _bias(mask_BL: Tensor, like: Tensor) -> Tensor:
    """0 where a key counts and −∞ where it does not, [B, 1, 1, L]; rows lie as far apart as the kernels ask for."""
    B, L = mask_BL.shape
    room_BL = torch.zeros(B, -(-L // ALIGNED) * ALIGNED, dtype=like.dtype, device=like.device)
    return room_BL[:, :L].masked_fill_(~mask_BL, -math.inf)[:, None, None, :]


def _blinded(y_BASW: Tensor, mask_BL: Tensor, causal: bool) -> Tensor:
    """Zeros for the queries that see nothing."""
    seen = attention.visible(mask_BL, y_BASW.shape[2], mask_BL.shape[1], causal, y_BASW.device)
    assert seen is not None
    return y_BASW * seen.any(3, keepdim=True)
