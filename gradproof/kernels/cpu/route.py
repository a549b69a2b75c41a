"""The router: logits to gates, with every option, in one call each way. See ops/route.py."""

from __future__ import annotations

import torch
from torch import Tensor

from gradproof.kernels.cpu.build import library
from gradproof.kernels.cpu.tensors import ready
from gradproof.ops.route import Routed, Routing, Saved, Whole


def forward(z_TE: Tensor, c_E: Tensor | None, routing: Routing, whole: Whole | None = None) -> tuple[Routed, Saved]:
    """Gates and the auxiliary loss; the chosen experts are `saved.index_TK`."""
    T, E = z_TE.shape
    z_TE, c_E = ready(z_TE), None if c_E is None else ready(c_E, (E,))
    if routing.k > E:
        raise ValueError(f"k = {routing.k}: k must be between 1 and E = {E}")
    rows, load_E = (T, None) if whole is None else (whole.rows, whole.load_E.to(torch.int64).contiguous())
    q_TE, gates_TE, share_E, aux = torch.empty_like(z_TE), torch.empty_like(z_TE), z_TE.new_empty(E), z_TE.new_empty(())
    index_TK = torch.empty((T, routing.k), dtype=torch.int64)
    library().route_forward(
        z_TE.data_ptr(),
        None if c_E is None else c_E.data_ptr(),
        T,
        E,
        *numbers_of(routing),
        rows,
        None if load_E is None else load_E.data_ptr(),
        q_TE.data_ptr(),
        gates_TE.data_ptr(),
        index_TK.data_ptr(),
        share_E.data_ptr(),
        aux.data_ptr(),
        torch.get_num_threads(),
    )
    return Routed(gates_TE, aux), Saved(z_TE, q_TE, gates_TE, index_TK, share_E, rows)


def backward(dy: Routed, saved: Saved, routing: Routing) -> Tensor:
    """Returns dz_TE."""
    dgates_TE, daux = ready(dy.gates_TE, saved.z_TE.shape), ready(dy.aux, ())
    dz_TE = torch.empty_like(saved.z_TE)
    library().route_backward(
        dgates_TE.data_ptr(),
        daux.data_ptr(),
        saved.z_TE.data_ptr(),
        saved.q_TE.data_ptr(),
        saved.gates_TE.data_ptr(),
        saved.index_TK.data_ptr(),
        saved.share_E.data_ptr(),
        *saved.z_TE.shape,
        *numbers_of(routing),
        saved.rows,
        dz_TE.data_ptr(),
        torch.get_num_threads(),
    )
    return dz_TE


def numbers_of(routing: Routing) -> tuple[int, bool, bool, float, float]:
    """The routing as the kernels read it."""
    return routing.k, routing.scores == "sigmoid", routing.renormalise, routing.balance, routing.z_loss
