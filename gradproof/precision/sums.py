"""Sums that torch's CPU kernels accumulate in low precision, one term at a time: the gradients of a LayerNorm's weight
and bias, and repeated rows of an embedding or index.

With S_i = t_1 + … + t_i such a sum is Σ t_i + Σ_{i<n} (round(S_i) − S_i), to first order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten
INDEX_PUTS = frozenset({aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index_put})
ADDS_UP = INDEX_PUTS | {aten.native_layer_norm_backward, aten.embedding_dense_backward}


class Added(NamedTuple):
    """n terms of D entries each, added to the rows of a result in order."""

    result: Tensor
    terms_nD: Tensor
    row_n: Tensor


def round_partial_sums(packet: Any, args: Any, out: Any, round: Callable[[Tensor], Tensor]) -> None:
    """Adds to an op's results the error of rounding the partial sums on a CPU."""
    for result, terms_nD, row_n in _added(packet, args, out):
        if result.device.type == "cpu" and result.is_contiguous() and row_n.numel():
            order_n = row_n.argsort(stable=True)
            row_n, terms_nD = row_n[order_n], terms_nD[order_n].double()
            goes_on_n = torch.cat([row_n[1:] == row_n[:-1], row_n.new_zeros(1, dtype=torch.bool)])
            before_nD = terms_nD.cumsum(0) - terms_nD
            first_n = torch.searchsorted(row_n, row_n)  # the first term of the same row
            partial_nD = (terms_nD + before_nD - before_nD[first_n])[goes_on_n].float()
            error_nD = (round(partial_nD) - partial_nD).to(result.dtype)
            result.view(-1, terms_nD.shape[1]).index_add_(0, row_n[goes_on_n], error_nD)


def _added(packet: Any, args: Any, out: Any) -> Iterator[Added]:
    if packet not in INDEX_PUTS and not args[0].numel():
        return
    if packet is aten.native_layer_norm_backward:
        dy, x, shape, mean, rstd = args[:5]
        count = torch.Size(shape).numel()
        one_row_T = torch.zeros(dy.numel() // count, dtype=torch.int64, device=dy.device)
        for result, terms in ((out[1], dy * (x - mean) * rstd), (out[2], dy)):
            if isinstance(result, Tensor):
                yield Added(result, terms.reshape(-1, count), one_row_T)
    elif packet is aten.embedding_dense_backward:
        dy, index, _, padding, by_frequency = args
        if not by_frequency:
            index_n = index.reshape(-1)
            yield Added(out, dy.reshape(index_n.numel(), -1)[index_n != padding], index_n[index_n != padding])
    elif packet in INDEX_PUTS and len(args) > 3 and args[3] and len(args[1]) == 1:
        index, values = args[1][0], args[2]
        if index.dtype == torch.int64 and values.shape == (*index.shape, *out.shape[1:]) and values.numel():
            index_n = index.reshape(-1) % out.shape[0]
            yield Added(out, values.reshape(index_n.numel(), -1), index_n)
