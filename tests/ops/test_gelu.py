import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import gelu, gelu_erf


@given(T=st.sampled_from([1, 2, 7]), D=st.sampled_from([1, 3, 33]), scale=st.sampled_from([0.01, 1.0, 4.0]))
def test_agrees_with_torch(normal, agree, T, D, scale):
    """A wrong constant, a lost factor ½ or the erf form would fail against torch's tanh form."""
    x_TD, dy_TD = normal(T * D, (T, D), (T, D))
    x_TD = (scale * x_TD).requires_grad_()
    right_TD = F.gelu(x_TD, approximate="tanh")
    y_TD, saved = gelu.forward(x_TD)
    agree(y_TD, right_TD)
    agree(gelu.backward(dy_TD, saved, x_TD), torch.autograd.grad(right_TD, x_TD, dy_TD)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails(dtype):
    """For large |x| the function is x or 0 with slope 1 or 0; an overflow of the cube would give NaN."""
    x_TD = torch.tensor([[1e3, -1e3, 1e15, -1e15, 0.0]], dtype=dtype)
    y_TD, _ = gelu.forward(x_TD)
    assert y_TD.tolist() == F.relu(x_TD).tolist()
    dx_TD = gelu.backward(torch.full_like(x_TD, 3.0), None, x_TD)
    assert dx_TD.tolist() == [[3.0, 0.0, 3.0, 0.0, 1.5]]


def test_is_not_the_exact_form(normal):
    """If one form were used for the other, the largest difference would be 0 instead of between 1e-4 and 5e-4."""
    x_TD = torch.linspace(-5, 5, 1001, dtype=torch.float64)[None]
    forward = float((gelu.forward(x_TD)[0] - gelu_erf.forward(x_TD)[0]).abs().max())
    (dy_TD,) = normal(0, (1, 1001))
    dx_TD, exact_TD = gelu.backward(dy_TD, None, x_TD), gelu_erf.backward(dy_TD, None, x_TD)
    backward = float(((dx_TD - exact_TD) / dy_TD).abs().max())
    assert 1e-4 < forward < 5e-4
    assert 1e-4 < backward < 2e-3


@pytest.mark.parametrize(("dtype", "x"), [(torch.float16, 300.0), (torch.float32, 1e20), (torch.bfloat16, 1e20)])
def test_gradient_is_finite_where_the_square_overflows(dtype, x):
    """(1 − tanh²)·x² is 0·∞ there; the gradient must be that of x, or of 0."""
    x_TD = torch.tensor([[x, -x]], dtype=dtype)
    dx_TD = gelu.backward(torch.ones_like(x_TD), None, x_TD)
    assert dx_TD.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_values_are_rounded_once(normal, dtype):
    """Almost always the nearest representable number; a tanh or a cube in bf16 would miss it half of the time."""
    x_TD, dy_TD = (tensor.to(dtype) for tensor in normal(1, (40, 33), (40, 33)))
    y_TD, dx_TD = gelu.forward(x_TD)[0], gelu.backward(dy_TD, None, x_TD)
    exact_TD = gelu.forward(x_TD.double())[0], gelu.backward(dy_TD.double(), None, x_TD.double())
    for found_TD, right_TD in zip((y_TD, dx_TD), exact_TD, strict=True):
        assert found_TD.dtype == dtype and (found_TD == right_TD.to(dtype)).double().mean() > 0.99
    assert gelu.forward(torch.tensor([[100.0, -100.0]], dtype=dtype))[0].tolist() == [[100.0, 0.0]]
