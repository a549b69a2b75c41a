"""Router and experts in one call each way. See ops/mixture.py."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.cpu import experts, route
from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import in_place, ready, take
from gradproof.kernels.workspace import Workspace
from gradproof.ops.mixture import Mixed, Mixture
from gradproof.ops.route import Whole


class Saved(NamedTuple):
    q_TE: Tensor
    load_E: Tensor
    floats: Tensor  # what the kernels keep, as they lay it out
    integers: Tensor
    rows: int  # of the whole batch


class MixtureShape(NamedTuple):
    """A mixture as the kernels read it, and how much they keep and work in for so many rows."""

    numbers: Tensor
    options: tuple[int | float, ...]  # its address, and the routing's
    length: int  # of theta
    floats: tuple[int]
    integers: tuple[int]
    works: tuple[tuple[int], tuple[int]]  # without dx and with it


def forward(
    x_TI: Tensor,
    theta_P: Tensor,
    c_E: Tensor | None,
    mixture: Mixture,
    whole: Whole | None = None,
    workspace: Workspace | None = None,
) -> tuple[Mixed, Saved]:
    """y_TO, the gates and the auxiliary loss. y_TO and what is saved live in the workspace, until its next forward."""
    (T, _), E, threads = x_TI.shape, mixture.experts, torch.get_num_threads()
    shape = shape_of(mixture, T, threads)
    x_TI, at = ready(x_TI, (T, mixture.chain.widths[0])), in_place(theta_P, (shape.length,))
    c_E = None if c_E is None else ready(c_E, (E,))
    rows, load_E = (T, None) if whole is None else (whole.rows, whole.load_E.to(torch.int64).contiguous())
    floats, integers = (
        take(workspace, "mixture.floats", shape.floats, x_TI),
        take(workspace, "mixture.integers", shape.integers, shape.numbers),
    )
    work = take(workspace, "mixture.work", shape.works[0], x_TI)
    y_TO = take(workspace, "mixture.y", (T, mixture.chain.widths[-1]), x_TI)
    q_TE = take(workspace, "mixture.q", (T, E), x_TI)
    gates_TE, aux, own_load_E = x_TI.new_empty((T, E)), x_TI.new_empty(()), shape.numbers.new_empty(E)
    library().mixture_forward(
        *shape.options,
        x_TI.data_ptr(),
        at,
        None if c_E is None else c_E.data_ptr(),
        T,
        rows,
        None if load_E is None else load_E.data_ptr(),
        floats.data_ptr(),
        integers.data_ptr(),
        work.data_ptr(),
        y_TO.data_ptr(),
        q_TE.data_ptr(),
        gates_TE.data_ptr(),
        aux.data_ptr(),
        own_load_E.data_ptr(),
        threads,
    )
    return Mixed(y_TO, gates_TE, aux), Saved(q_TE, own_load_E, floats, integers, rows)


def backward(
    dy: tuple[Tensor, Tensor | None, Tensor],
    saved: Saved,
    x_TI: Tensor,
    theta_P: Tensor,
    mixture: Mixture,
    out_P: Tensor | None = None,
    accumulate: bool = False,
    want_dx: bool = True,
    workspace: Workspace | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Returns dx_TI, dtheta_P; the latter is written to `out_P` where given, or added to it. Its padding is left as it
    is."""
    (T, I), threads = x_TI.shape, torch.get_num_threads()
    shape = shape_of(mixture, T, threads)
    dtheta_P = torch.zeros_like(theta_P) if out_P is None else out_P
    dy_TO, dgates_TE = ready(dy[0], (T, mixture.chain.widths[-1])), dy[1]
    dgates_TE = None if dgates_TE is None else ready(dgates_TE, saved.q_TE.shape)
    x_TI, daux = ready(x_TI, (T, mixture.chain.widths[0])), ready(dy[2], ())
    work = take(workspace, "mixture.work", shape.works[want_dx], x_TI)
    dx_TI = take(workspace, "mixture.dx", (T, I), x_TI) if want_dx else None
    library().mixture_backward(
        *shape.options,
        dy_TO.data_ptr(),
        None if dgates_TE is None else dgates_TE.data_ptr(),
        daux.data_ptr(),
        x_TI.data_ptr(),
        in_place(theta_P, (shape.length,)),
        T,
        saved.rows,
        saved.floats.data_ptr(),
        saved.integers.data_ptr(),
        saved.q_TE.data_ptr(),
        work.data_ptr(),
        in_place(dtheta_P, (shape.length,)),
        accumulate,
        None if dx_TI is None else dx_TI.data_ptr(),
        threads,
    )
    return dx_TI, dtheta_P


@lru_cache(maxsize=64)
def shape_of(mixture: Mixture, rows: int, threads: int) -> MixtureShape:
    """What is the same in every call."""
    if mixture.routing.k > mixture.experts:
        raise ValueError(f"k = {mixture.routing.k}: k must be between 1 and E = {mixture.experts}")
    bias, first, length = mixture.offsets
    numbers = [mixture.experts, bias, first, *experts.numbers_of(mixture.chain, threads)]
    tensor, sizes = torch.tensor(numbers, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    library().mixture_sizes(tensor.data_ptr(), rows, mixture.routing.k, threads, sizes.data_ptr())
    floats, integers, work, with_dx = ((size,) for size in sizes.tolist())
    options = (tensor.data_ptr(), *route.numbers_of(mixture.routing))
    return MixtureShape(tensor, options, length, floats, integers, (work, with_dx))
