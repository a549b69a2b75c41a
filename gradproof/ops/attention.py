"""Multi-head attention on projected queries, keys and values; the heads are concatenated along the last axis.

    s = scale·q kᵀ in each head, scale = 1/√W;  p = softmax(s) over the visible keys of a query;  y = p v
    dv = pᵀdy;  dp = dy vᵀ;  ds = p∘(dp − rowsum(p∘dp))·scale;  dq = ds k;  dk = dsᵀq

Letters: A heads of width W = D/A; S queries and L keys. A key is visible if `mask_BL` is true (padding is false) and,
with `causal`, if it is not after the query. A query without visible keys gets zeros, not NaN.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.ops import wide


def forward(
    q_BSD: Tensor, k_BLD: Tensor, v_BLD: Tensor, mask_BL: Tensor | None = None, heads: int = 1, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """y_BSD in the dtype of q_BSD; `saved` is p_BASL."""
    q_BASW, k_BALW, v_BALW = (split(operand, heads) for operand in (q_BSD, k_BLD, v_BLD))
    s_BASL = scores(q_BASW, k_BALW)
    seen_BASL = visible(mask_BL, q_BSD.shape[1], k_BLD.shape[1], causal, q_BSD.device)
    p_BASL = probabilities(s_BASL, seen_BASL)
    y_BASW = p_BASL.to(v_BLD.dtype) @ v_BALW
    return joined(y_BASW), p_BASL


def backward(
    dy_BSD: Tensor, saved: Tensor, q_BSD: Tensor, k_BLD: Tensor, v_BLD: Tensor, heads: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dq_BSD, dk_BLD, dv_BLD."""
    dy_BASW, q_BASW, k_BALW, v_BALW = (split(operand, heads) for operand in (dy_BSD, q_BSD, k_BLD, v_BLD))
    dv_BALW = saved.to(dy_BSD.dtype).transpose(2, 3) @ dy_BASW
    dp_BASL = wide(dy_BASW) @ wide(v_BALW).transpose(2, 3)
    ds_BASL = score_gradient(dp_BASL, saved, 1 / math.sqrt(q_BASW.shape[3])).to(q_BSD.dtype)
    return joined(ds_BASL @ k_BALW), joined(ds_BASL.transpose(2, 3) @ q_BASW), joined(dv_BALW)


def scores(q_BASW: Tensor, k_BALW: Tensor) -> Tensor:
    """s_BASL, in at least fp32."""
    return wide(q_BASW) @ wide(k_BALW).transpose(2, 3) / math.sqrt(q_BASW.shape[3])


def probabilities(s_BASL: Tensor, seen_BASL: Tensor | None) -> Tensor:
    """p_BASL: softmax over the visible keys, exactly 0 elsewhere."""
    if seen_BASL is None:
        return torch.softmax(s_BASL, -1)
    # The lowest finite number instead of −∞: a row without visible keys then has no NaN before it becomes zero.
    lowest = torch.finfo(s_BASL.dtype).min
    return torch.softmax(s_BASL.masked_fill(~seen_BASL, lowest), -1).masked_fill(~seen_BASL, 0.0)


def visible(mask_BL: Tensor | None, queries: int, keys: int, causal: bool, device: torch.device) -> Tensor | None:
    """seen_BASL, broadcastable: the keys that each query sees; None if it sees all."""
    seen_BASL = None if mask_BL is None else mask_BL[:, None, None, :]
    if causal:
        earlier_SL = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
        seen_BASL = earlier_SL[None, None] if seen_BASL is None else seen_BASL & earlier_SL
    return seen_BASL


def score_gradient(dp_BASL: Tensor, p_BASL: Tensor, scale: float) -> Tensor:
    """ds_BASL, including the scale. Masked keys have p = 0, so their gradient is 0."""
    return p_BASL * (dp_BASL - (p_BASL * dp_BASL).sum(-1, keepdim=True)) * scale


def split(x_BSD: Tensor, heads: int) -> Tensor:
    """x_BASW, a view."""
    return x_BSD.unflatten(2, (heads, -1)).transpose(1, 2)


def joined(x_BASW: Tensor) -> Tensor:
    """x_BSD: the heads concatenated."""
    return x_BASW.transpose(1, 2).flatten(2)


def narrowed(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A call in bf16 or fp16: queries, keys and values are low-precision; the softmax is not."""
    return {**arguments, **{name: arguments[name].to(dtype) for name in "qkv"}}


def _fused(given: Mapping[str, Any], cotangents: Outputs) -> dict[str, Tensor]:
    """A fused backward computes ⟨p, dp⟩ as ⟨y, dy⟩ with the stored y: one error δ for all keys of a query."""
    q_BSD, heads = given["q"], given.get("heads", 1)
    y_BSD, p_BASL = forward(q_BSD, given["k"], given["v"], given["mask"], heads, given.get("causal", False))
    y_BASW, dy_BASW, q_BASW, k_BALW = (split(wide(x), heads) for x in (y_BSD, cotangents[0], q_BSD, given["k"]))
    unit = torch.finfo(q_BSD.dtype).eps / 2
    delta_BAS1 = unit * (y_BASW * dy_BASW).square().sum(-1, keepdim=True).sqrt() / math.sqrt(q_BASW.shape[3])
    of_q = delta_BAS1 * (p_BASL.float() @ k_BALW).abs()
    of_k = ((p_BASL.float() * delta_BAS1).square().transpose(2, 3) @ q_BASW.square()).sqrt()
    return {"q": joined(of_q), "k": joined(of_k)}


def _mask(lengths_B: Tensor, keys: int) -> Tensor:
    """mask_BL for sequences padded at the end."""
    return torch.arange(keys) < lengths_B[:, None]


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    """Each sequence has its own length; a length of 0 hides all keys."""
    lengths_B = torch.randint(0, sizes["L"] + 1, (sizes["B"],), generator=generator)
    lengths_B[0] = sizes["L"]
    return dict(mask=_mask(lengths_B, sizes["L"]))


def _self(label: str, mask_BL: Tensor | None, S: int, D: int, generator: torch.Generator, **options: Any) -> Example:
    B = 3 if mask_BL is None else mask_BL.shape[0]
    q, k, v = torch.randn(3, B, S, D, generator=generator, dtype=torch.float64)
    return Example(label, dict(q=q, k=k, v=v, mask=mask_BL), options)


def _unmasked(generator: torch.Generator) -> Example:
    return _self("no mask", None, 6, 8, generator, heads=2)


def _causal(generator: torch.Generator) -> Example:
    return _self("causal, no mask", None, 7, 6, generator, heads=3, causal=True)


def _one_token(generator: torch.Generator) -> Example:
    return _self("one token", None, 1, 4, generator, heads=2, causal=True)


def _narrow_heads(generator: torch.Generator) -> Example:
    return _self("A = D", None, 5, 4, generator, heads=4)


def _nothing_seen(generator: torch.Generator) -> Example:
    """One sequence is all padding. Another starts with padding, so with `causal` its first queries see nothing."""
    mask_BL = torch.tensor([[True] * 5, [False] * 5, [False, False, True, True, False]])
    return _self("queries that see nothing", mask_BL, 5, 8, generator, heads=2, causal=True)


def _sharp(generator: torch.Generator) -> Example:
    """Scores in the hundreds, where exp would overflow, and equal keys, which must share their weight."""
    example = _self("large scores", None, 4, 6, generator, heads=2)
    k_BLD = example.arguments["k"].clone()
    k_BLD[:, 1] = k_BLD[:, 0]
    return Example(example.label, {**example.arguments, "q": 60 * example.arguments["q"], "k": k_BLD}, example.options)


def _seen(example: Example) -> Tensor:
    """seen_BSL."""
    B, S, _ = example.arguments["q"].shape
    keys, device = example.arguments["k"].shape[1], example.arguments["q"].device
    seen = visible(example.arguments["mask"], S, keys, example.options.get("causal", False), device)
    return torch.ones(B, S, keys, dtype=torch.bool, device=device) if seen is None else seen[:, 0].expand(B, S, keys)


def _average(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """p sums to 1: each output lies between the smallest and the largest visible value."""
    seen_BSL, v_BLD = _seen(example), example.arguments["v"].to(outputs[0].dtype)
    v_BSLD = v_BLD[:, None].expand(-1, seen_BSL.shape[1], -1, -1)
    low_BSD = v_BSLD.masked_fill(~seen_BSL[..., None], math.inf).amin(2)
    high_BSD = v_BSLD.masked_fill(~seen_BSL[..., None], -math.inf).amax(2)
    beyond = torch.maximum(low_BSD - outputs[0], outputs[0] - high_BSD)[seen_BSL.any(2)]
    bound = 16 * torch.finfo(outputs[0].dtype).eps * float(v_BLD.abs().max())
    return float(beyond.max()) if beyond.numel() else 0.0, bound


def _blind(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """A query that sees nothing gives exactly zero and has no gradient; neither does a key that no query sees."""
    seen_BSL = _seen(example)
    wrong = sum(int((~grad.isfinite()).sum()) for grad in grads.values() if grad is not None)
    for tensor, used in ((outputs[0], 2), (grads["q"], 2), (grads["k"], 1), (grads["v"], 1)):
        assert tensor is not None
        wrong += int((tensor[~seen_BSL.any(used)] != 0).sum())
    return float(wrong), 0.0


CONTRACT = Contract(
    shapes="q[B,S,D] k[B,L,D] v[B,L,D] mask[B,L] -> y[B,S,D]",
    sizes=dict(B=(1, 2, 3), S=(1, 2, 5), L=(1, 4, 7), D=(4, 8, 12)),
    grads=("q", "k", "v"),
    draw=_draw,
    options=(dict(heads=1), dict(heads=2), dict(heads=4), dict(heads=2, causal=True)),
    claims=(*EVERY_OP, equivariant("B"), Claim("conserves", check=_average), Claim("zero_rows_safe", check=_blind)),
    fused=_fused,
    edges=(_unmasked, _causal, _one_token, _narrow_heads, _nothing_seen, _sharp),
)
