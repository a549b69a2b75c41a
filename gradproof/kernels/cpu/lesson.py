"""A whole training step in one call. See ops/lesson.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.mixture import shape_of
from gradproof.kernels.cpu.tensors import in_place, ready, take
from gradproof.kernels.workspace import Workspace
from gradproof.ops.adamw import BETAS, DECAY, EPS
from gradproof.ops.cross_entropy import check_target
from gradproof.ops.lesson import Learnt, out_of_place
from gradproof.ops.mixture import Mixture
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
    x_TI: Tensor,
    target_T: Tensor,
    c_E: Tensor | None,
    mixture: Mixture,
    clip: float | None = None,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = DECAY,
    workspace: Workspace | None = None,
) -> Learnt:
    """Writes g_P, moves p_P, m_P, v_P, count and skips in place. A target that is out of range leaves them alone."""
    (T, _), E, threads, blocks = x_TI.shape, mixture.experts, torch.get_num_threads(), decayed_B.numel()
    widths, shape = mixture.chain.widths, shape_of(mixture, T, threads)
    if T == 0 or target_T.shape != (T,) or target_T.dtype != torch.int64:
        check_target(x_TI.new_empty(T, widths[-1]), target_T)  # which says what is wrong
    x_TI, target_T, c_E = ready(x_TI, (T, widths[0])), target_T.contiguous(), None if c_E is None else ready(c_E, (E,))
    numbers, gates_TE, load_E = x_TI.new_empty(4), x_TI.new_empty((T, E)), shape.numbers.new_empty(E)
    logits, length = (T, widths[-1]), (shape.length,)
    rooms = (
        take(workspace, "mixture.floats", shape.floats, x_TI),
        take(workspace, "mixture.integers", shape.integers, shape.numbers),
        take(workspace, "mixture.work", shape.works[0], x_TI),
        take(workspace, "mixture.y", logits, x_TI),
        take(workspace, "lesson.dy", logits, x_TI),
        take(workspace, "lesson.scale", (T,), x_TI),
        take(workspace, "mixture.q", (T, E), x_TI),
    )
    wrong = library().lesson_step(
        *shape.options,
        in_place(p_P, length),
        in_place(g_P, length),
        in_place(m_P, length),
        in_place(v_P, (blocks * ALIGNMENT,)),
        decayed_B.data_ptr(),
        blocks,
        *(in_place(scalar, ()) for scalar in (count, skips, rate, scale)),
        clip or 0.0,
        *betas,
        eps,
        weight_decay,
        x_TI.data_ptr(),
        target_T.data_ptr(),
        None if c_E is None else c_E.data_ptr(),
        T,
        *(room.data_ptr() for room in rooms),
        gates_TE.data_ptr(),
        load_E.data_ptr(),
        numbers.data_ptr(),
        threads,
    )
    if wrong >= 0:
        check_target(x_TI.new_empty(logits), target_T)
    loss, norm, entropy, skipped = numbers.unbind(0)
    return Learnt(loss, gates_TE, norm, load_E, entropy, skipped)


forward = out_of_place(step)
