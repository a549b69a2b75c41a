"""The end of a step in one call: norm, clip, skip, AdamW, counters. See ops/update.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import in_place
from gradproof.ops.adamw import BETAS, DECAY, EPS
from gradproof.ops.update import out_of_place
from gradproof.params import ALIGNMENT


def step(
    p_P: Tensor,
    g_P: Tensor,
    m_P: Tensor,
    v_P: Tensor,
    decayed_B: Tensor,
    count: Tensor,
    skips: Tensor,
    rate: Tensor,
    scale: Tensor,
    loss: Tensor,
    clip: float | None = None,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = DECAY,
) -> tuple[Tensor, Tensor]:
    """Moves p_P, m_P, v_P, count and skips in place; returns norm and skipped."""
    blocks = decayed_B.numel()
    norm, skipped = p_P.new_empty(()), p_P.new_empty(())
    library().update_step(
        *(in_place(buffer, (blocks * ALIGNMENT,)) for buffer in (p_P, g_P, m_P, v_P)),
        decayed_B.data_ptr(),
        blocks,
        *(in_place(scalar, ()) for scalar in (count, skips, rate, scale, loss)),
        clip or 0.0,
        *betas,
        eps,
        weight_decay,
        norm.data_ptr(),
        skipped.data_ptr(),
        torch.get_num_threads(),
    )
    return norm, skipped


forward = out_of_place(step)
