import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import ffn


@given(
    T=st.sampled_from([1, 2, 7]), D=st.sampled_from([1, 4]), hidden=st.sampled_from([1, 9]), seed=st.integers(0, 9999)
)
def test_agrees_with_torch_and_writes_where_told(normal, agree, T, D, hidden, seed):
    """Fails on the erf form of GELU, or if gradients are written instead of added."""
    x, w1, b1, w2, b2, dy = normal(seed, (T, D), (hidden, D), (hidden,), (D, hidden), (D,), (T, D))
    leaves = [tensor.clone().requires_grad_() for tensor in (x, w1, b1, w2, b2)]
    right = F.linear(F.gelu(F.linear(*leaves[:3]), approximate="tanh"), *leaves[3:])
    y, saved = ffn.forward(x, w1, b1, w2, b2)
    agree(y, right, 1e-12, terms=b2)
    wanted = torch.autograd.grad(right, leaves, dy)
    grads = ffn.backward(dy, saved, x, w1, w2)
    for a, b in zip(grads, wanted, strict=True):
        agree(a, b, 1e-12, terms=torch.stack([grad.norm() for grad in wanted]))
    there = [torch.randn_like(parameter) for parameter in (w1, b1, w2, b2)]
    written = ffn.backward(dy, saved, x, w1, w2, tuple(buffer.clone() for buffer in there))
    added = ffn.backward(dy, saved, x, w1, w2, tuple(buffer.clone() for buffer in there), accumulate=True)
    for start, a, b, c in zip(there, grads[1:], written[1:], added[1:], strict=True):
        agree(b, a, 1e-14)
        agree(c, a + start, 1e-12, terms=start)
