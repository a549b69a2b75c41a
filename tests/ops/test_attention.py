"""Attention against torch's own, in float64, over shapes and masks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import attention


def draw(normal, seed, B, S, L, D):
    """q, k, v, a cotangent, and a mask with holes; the first sequence has none."""
    mask_BL = torch.rand(B, L, generator=torch.Generator().manual_seed(seed)) > 0.4
    mask_BL[0] = True
    return *normal(seed, (B, S, D), (B, L, D), (B, L, D), (B, S, D)), mask_BL


def torchs(q, k, v, mask_BL, heads, causal):
    """The same with F.scaled_dot_product_attention and an explicit mask."""
    seen = attention.visible(mask_BL, q.shape[1], k.shape[1], causal, q.device)
    q, k, v = (attention.split(operand, heads) for operand in (q, k, v))
    seen = None if seen is None else seen.expand(q.shape[0], heads, *seen.shape[2:])
    return attention.joined(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))


@given(
    B=st.sampled_from([1, 3]),
    S=st.sampled_from([1, 2, 5]),
    L=st.sampled_from([1, 4, 7]),
    width=st.sampled_from([1, 3, 8]),
    heads=st.sampled_from([1, 2, 4]),
    causal=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 9999),
)
def test_agrees_with_torch(normal, agree, B, S, L, width, heads, causal, masked, seed):
    """Fails on a missing scale, row sum or transposition, or on a mask that only the forward applies."""
    q, k, v, dy, mask_BL = draw(normal, seed, B, S, L, width * heads)
    mask_BL = mask_BL if masked else None
    leaves = [operand.clone().requires_grad_() for operand in (q, k, v)]
    right = torchs(*leaves, mask_BL, heads, causal)
    y, saved = attention.forward(q, k, v, mask_BL, heads, causal)
    agree(y, right, 1e-12, terms=v)
    wanted = torch.autograd.grad(right, leaves, dy)
    for grad, expected in zip(attention.backward(dy, saved, q, k, v, heads), wanted, strict=True):
        agree(grad, expected, 1e-12, terms=torch.stack([operand.norm() for operand in (q, k, v)]).prod() * dy.norm())


def test_a_query_that_sees_nothing(normal):
    """Softmax over no keys is 0/0: the output must be 0, and no query may get a NaN gradient."""
    q, k, v, dy = normal(1, (2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4))
    mask_BL = torch.tensor([[False, True, True], [False, False, False]])
    y, saved = attention.forward(q, k, v, mask_BL, 2, causal=True)
    grads = attention.backward(dy, saved, q, k, v, 2)
    assert (y[1] == 0).all() and (y[0, 0] == 0).all() and (y[0, 1:] != 0).all()
    assert all((grad[1] == 0).all() and grad.isfinite().all() for grad in grads)


def test_padding_changes_nothing(normal):
    """A short sequence gives the same bits alone and padded next to a longer one; the contents of the padding have no
    effect.
    """
    q, k, v = normal(2, (1, 3, 4), (1, 3, 4), (1, 3, 4))
    alone, _ = attention.forward(q, k, v, None, 2)
    k_padded, v_padded = (torch.cat([operand, torch.full((1, 2, 4), 1e6).double()], 1) for operand in (k, v))
    padded, _ = attention.forward(q, k_padded, v_padded, torch.tensor([[True] * 3 + [False] * 2]), 2)
    torch.testing.assert_close(padded, alone, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_operands_have_a_wide_softmax(normal, agree, dtype):
    """Scores around 60 stored in bf16 would be off by a quarter, and so would the probabilities."""
    q, k, v, dy = (tensor.to(dtype) for tensor in normal(3, (2, 9, 8), (2, 9, 8), (2, 9, 8), (2, 9, 8)))
    q = q * 10
    y, saved = attention.forward(q, k, v, None, 2)
    assert y.dtype == dtype and saved.dtype == torch.float32
    exact, kept = attention.forward(*(operand.double() for operand in (q, k, v)), None, 2)
    agree(y.double(), exact, 4 * torch.finfo(dtype).eps)
    grads = attention.backward(dy, saved, q, k, v, 2)
    right = attention.backward(dy.double(), kept, *(operand.double() for operand in (q, k, v)), 2)
    for a, b in zip(grads, right, strict=True):
        assert a.dtype == dtype
        agree(a.double(), b, 8 * torch.finfo(dtype).eps)
