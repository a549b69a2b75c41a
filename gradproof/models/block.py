"""The sublayers of a pre-norm transformer, x + f(LayerNorm(x)): forward and backward as functions of the weights.

    self-attention   x + W_o·Attention(q, k, v),  (q, k, v) = W_qkv·LN(x)
    cross-attention  x + W_o·Attention(q, k, v),  q = W_q·LN(x),  (k, v) = W_kv·memory
    feed-forward     x + FFN(LN(x))

The backward of each runs its sublayer's first, then the norm's, and adds what comes out to the residual's gradient.
Rows are T tokens: all B·S of them, or those that are no padding (`Layout`). Products read `weights.operand`, which may
be narrow; the residual is never narrower than fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.variants import Kernels
from gradproof.models.sublayer import sublayer
from gradproof.ops import linear, wide
from gradproof.params import Weights


@dataclass(frozen=True)
class Read:
    """What the forward of a sublayer reads: the weights, the kernels, and the number of heads."""

    weights: Weights
    kernels: Kernels
    heads: int


@dataclass(frozen=True)
class Write:
    """Where the backward of a sublayer writes the gradients, or adds them."""

    grads: Mapping[str, Tensor]
    accumulate: bool

    def put(self, name: str, grad: Tensor) -> None:
        """Writes a gradient that was computed elsewhere."""
        own = self.grads[name]
        own.add_(grad) if self.accumulate else own.copy_(grad)


@dataclass(frozen=True)
class Layout:
    """The position of rows in their sequences: row t is at place `place_T[t]` of all B·S, or in order if that is None.
    `mask_BS` says which places count as keys; None where all do."""

    batch: int
    places: int
    mask_BS: Tensor | None = None
    place_T: Tensor | None = None

    def spread(self, x_TG: Tensor) -> Tensor:
        """x_BSG, zero where there is no row."""
        if self.place_T is not None:
            x_TG = x_TG.new_zeros(self.batch * self.places, x_TG.shape[1]).index_copy(0, self.place_T, x_TG)
        return x_TG.view(self.batch, self.places, -1)

    def rows(self, x_BSG: Tensor) -> Tensor:
        """x_TG."""
        x_TG = x_BSG.flatten(0, 1)
        return x_TG if self.place_T is None else x_TG.index_select(0, self.place_T)


def layout_of(token_BS: Tensor) -> Layout:
    """The layout of an encoder's tokens. On a CPU, padding is left out of all products. On a GPU it is
    not, to avoid waiting for the tokens."""
    (B, S), mask_BS = token_BS.shape, token_BS >= 0
    if mask_BS.is_cuda:
        return Layout(B, S, mask_BS)
    if bool(mask_BS.all()):
        return Layout(B, S)
    place_T = mask_BS.flatten().nonzero()[:, 0]
    return Layout(B, S, mask_BS, place_T if len(place_T) else None)


class Normed(NamedTuple):
    """What LayerNorm saves: its input and statistics for its own backward, and its output for that of the product."""

    x_TD: Tensor
    stats: Any
    n_TD: Tensor


class Attended(NamedTuple):
    """What an attention sublayer saves. `projected` is qkv_BSG, or (q_BSD, kv_BLG) of cross-attention."""

    normed: Normed
    projected: tuple[Tensor, ...]
    heads_TD: Tensor
    kept: Any


class Fed(NamedTuple):
    normed: Normed
    kept: Any


def norm(read: Read, name: str, x_TD: Tensor) -> tuple[Tensor, Normed]:
    """LayerNorm, with the output in the dtype of the products."""
    gamma_D, beta_D = read.weights[f"{name}.weight"], read.weights[f"{name}.bias"]
    n_TD, stats = read.kernels.layernorm.forward(x_TD, gamma_D, beta_D)
    n_TD = n_TD.to(read.weights.operand(f"{name}.weight").dtype)
    return n_TD, Normed(x_TD, stats, n_TD)


def norm_backward(read: Read, write: Write, name: str, dn_TD: Tensor, normed: Normed) -> Tensor:
    """Returns dx_TD: LayerNorm's backward needs its input, not its output."""
    grads = read.kernels.layernorm.backward(wide(dn_TD), normed.stats, normed.x_TD, read.weights[f"{name}.weight"])
    write.put(f"{name}.weight", grads[1])
    write.put(f"{name}.bias", grads[2])
    return grads[0]


def project(read: Read, name: str, x_TI: Tensor) -> Tensor:
    """A linear layer."""
    return linear.forward(x_TI, read.weights.operand(f"{name}.weight"), read.weights.operand(f"{name}.bias"))[0]


def project_backward(read: Read, write: Write, name: str, dy_TO: Tensor, x_TI: Tensor) -> Tensor:
    """Returns dx_TI."""
    out = (write.grads[f"{name}.weight"], write.grads[f"{name}.bias"])
    linear.parameter_gradients(dy_TO, x_TI, out, write.accumulate)
    return linear.input_gradient(dy_TO, read.weights.operand(f"{name}.weight"))


@sublayer
def self_attention(read: Read, prefix: str, x_TD: Tensor, layout: Layout, causal: bool) -> tuple[Tensor, Attended]:
    """x + SelfAttention(LN x)."""
    n_TD, normed = norm(read, f"{prefix}norm", x_TD)
    qkv_TG = project(read, f"{prefix}qkv", n_TD)
    qkv_BSG = layout.spread(qkv_TG)
    heads_BSD, kept = read.kernels.attention.forward(*qkv_BSG.chunk(3, -1), layout.mask_BS, read.heads, causal)
    heads_TD = layout.rows(heads_BSD)
    return wide(project(read, f"{prefix}out", heads_TD)).add_(x_TD), Attended(normed, (qkv_BSG,), heads_TD, kept)


@sublayer
def self_attention_backward(
    read: Read, write: Write, prefix: str, dy_TD: Tensor, saved: Attended, layout: Layout
) -> Tensor:
    """Returns dx_TD."""
    qkv_BSG = saved.projected[0]
    dheads_TD = project_backward(read, write, f"{prefix}out", dy_TD.to(qkv_BSG.dtype), saved.heads_TD)
    dqkv = read.kernels.attention.backward(layout.spread(dheads_TD), saved.kept, *qkv_BSG.chunk(3, -1), read.heads)
    dqkv_TG = layout.rows(torch.cat(dqkv, -1))
    dn_TD = project_backward(read, write, f"{prefix}qkv", dqkv_TG, saved.normed.n_TD)
    return norm_backward(read, write, f"{prefix}norm", dn_TD, saved.normed).add_(dy_TD)


@sublayer
def cross_attention(
    read: Read, prefix: str, x_TD: Tensor, layout: Layout, memory_ZD: Tensor, across: Layout
) -> tuple[Tensor, Attended]:
    """x + CrossAttention(LN x, memory); Z rows of memory, laid out as `across`."""
    n_TD, normed = norm(read, f"{prefix}norm", x_TD)
    q_BSD = layout.spread(project(read, f"{prefix}q", n_TD))
    kv_BLG = across.spread(project(read, f"{prefix}kv", memory_ZD))
    heads_BSD, kept = read.kernels.attention.forward(q_BSD, *kv_BLG.chunk(2, -1), across.mask_BS, read.heads, False)
    heads_TD = layout.rows(heads_BSD)
    return wide(project(read, f"{prefix}out", heads_TD)).add_(x_TD), Attended(normed, (q_BSD, kv_BLG), heads_TD, kept)


@sublayer
def cross_attention_backward(
    read: Read,
    write: Write,
    prefix: str,
    dy_TD: Tensor,
    saved: Attended,
    layout: Layout,
    memory_ZD: Tensor,
    across: Layout,
) -> tuple[Tensor, Tensor]:
    """Returns dx_TD, dmemory_ZD."""
    q_BSD, kv_BLG = saved.projected
    dheads_TD = project_backward(read, write, f"{prefix}out", dy_TD.to(q_BSD.dtype), saved.heads_TD)
    dq_BSD, *dkv = read.kernels.attention.backward(
        layout.spread(dheads_TD), saved.kept, q_BSD, *kv_BLG.chunk(2, -1), read.heads
    )
    dmemory_ZD = project_backward(read, write, f"{prefix}kv", across.rows(torch.cat(dkv, -1)), memory_ZD)
    dn_TD = project_backward(read, write, f"{prefix}q", layout.rows(dq_BSD), saved.normed.n_TD)
    dx_TD = norm_backward(read, write, f"{prefix}norm", dn_TD, saved.normed).add_(dy_TD)
    return dx_TD, wide(dmemory_ZD)


@sublayer
def feed_forward(read: Read, prefix: str, x_TD: Tensor) -> tuple[Tensor, Fed]:
    """x + FFN(LN x)."""
    n_TD, normed = norm(read, f"{prefix}norm", x_TD)
    w1_FD, b1_F, w2_DF, b2_D = (read.weights.operand(f"{prefix}{name}") for name in _FED)
    y_TD, kept = read.kernels.ffn.forward(n_TD, w1_FD, b1_F, w2_DF, b2_D)
    return wide(y_TD).add_(x_TD), Fed(normed, kept)


@sublayer
def feed_forward_backward(read: Read, write: Write, prefix: str, dy_TD: Tensor, saved: Fed) -> Tensor:
    """Returns dx_TD."""
    w1_FD, _, w2_DF, _ = (read.weights.operand(f"{prefix}{name}") for name in _FED)
    out = tuple(write.grads[f"{prefix}{name}"] for name in _FED)
    n_TD = saved.normed.n_TD
    grads = read.kernels.ffn.backward(dy_TD.to(n_TD.dtype), saved.kept, n_TD, w1_FD, w2_DF, out, write.accumulate)
    return norm_backward(read, write, f"{prefix}norm", grads.dx_TD, saved.normed).add_(dy_TD)


_FED = ("up.weight", "up.bias", "down.weight", "down.bias")
