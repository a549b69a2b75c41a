import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import gelu_erf


@given(T=st.sampled_from([1, 2, 7]), D=st.sampled_from([1, 3, 33]), scale=st.sampled_from([0.01, 1.0, 4.0]))
def test_agrees_with_torch(normal, agree, T, D, scale):
    """A lost √2, a missing density term or the tanh form would fail against torch's exact form."""
    x_TD, dy_TD = normal(T * D, (T, D), (T, D))
    x_TD = (scale * x_TD).requires_grad_()
    right_TD = F.gelu(x_TD, approximate="none")
    y_TD, saved = gelu_erf.forward(x_TD)
    agree(y_TD, right_TD)
    agree(gelu_erf.backward(dy_TD, saved, x_TD), torch.autograd.grad(right_TD, x_TD, dy_TD)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails(dtype):
    """For large |x| the function is x or 0 with slope 1 or 0; ∞·0 in the density term would give NaN."""
    x_TD = torch.tensor([[1e3, -1e3, 1e15, -1e15, 0.0]], dtype=dtype)
    y_TD, _ = gelu_erf.forward(x_TD)
    assert y_TD.tolist() == F.relu(x_TD).tolist()
    dx_TD = gelu_erf.backward(torch.full_like(x_TD, 3.0), None, x_TD)
    assert dx_TD.tolist() == [[3.0, 0.0, 3.0, 0.0, 1.5]]
