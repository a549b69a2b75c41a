"""AdamW on flat buffers, in one pass. See ops/adamw.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready
from gradproof.ops.adamw import BETAS, DECAY, EPS, out_of_place
from gradproof.params import ALIGNMENT


def step(
    p_P: Tensor,
    g_P: Tensor,
    m_P: Tensor,
    v_P: Tensor,
    decayed_B: Tensor,
    count: Tensor,
    rate: Tensor,
    divisor: Tensor | None = None,
    skip: Tensor | None = None,
    narrow_P: Tensor | None = None,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = DECAY,
) -> None:
    """Step number `count`, in place; g_P is only read. `narrow_P` is a copy of the parameters that follows them."""
    for buffer in (p_P, g_P, m_P, v_P):
        if ready(buffer, (decayed_B.numel() * ALIGNMENT,)) is not buffer:
            raise ValueError("AdamW's buffers are written in place, so they must be contiguous")
    count, rate = ready(count, ()), ready(rate, ())
    divisor, skip = (None if scalar is None else ready(scalar, ()) for scalar in (divisor, skip))
    library().adamw_step(
        p_P.data_ptr(),
        g_P.data_ptr(),
        m_P.data_ptr(),
        v_P.data_ptr(),
        decayed_B.data_ptr(),
        decayed_B.numel(),
        count.data_ptr(),
        rate.data_ptr(),
        None if divisor is None else divisor.data_ptr(),
        None if skip is None else skip.data_ptr(),
        *betas,
        eps,
        weight_decay,
        torch.get_num_threads(),
    )
    if narrow_P is not None:
        narrow_P.copy_(p_P)


forward = out_of_place(step)


def norm(g_P: Tensor) -> Tensor:
    """‖g‖, summed in float64."""
    g_P = ready(g_P)
    return g_P.new_full((), library().adamw_norm(g_P.data_ptr(), g_P.numel(), torch.get_num_threads()))
