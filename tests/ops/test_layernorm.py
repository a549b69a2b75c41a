import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import layernorm


def both(x_TD, gamma_D, beta_D, dy_TD):
    """Ours and torch's: (y, dx, dγ, dβ) of each."""
    y_TD, saved = layernorm.forward(x_TD, gamma_D, beta_D)
    inputs = [tensor.detach().requires_grad_() for tensor in (x_TD, gamma_D, beta_D)]
    right_TD = F.layer_norm(inputs[0], x_TD.shape[1:], *inputs[1:], eps=1e-5)
    ours = y_TD, *layernorm.backward(dy_TD, saved, x_TD, gamma_D)
    return ours, (right_TD, *torch.autograd.grad(right_TD, inputs, dy_TD))


@given(
    T=st.sampled_from([1, 2, 3, 7, 16]),
    D=st.sampled_from([1, 2, 3, 8, 33]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 9999),
)
def test_agrees_with_torch(normal, agree, T, D, scale, seed):
    """Fails on a dropped mean or variance term, an unbiased variance, or another eps, which shows at a scale of
    1e-3.
    """
    x_TD, gamma_D, beta_D, dy_TD = normal(seed, (T, D), (D,), (D,), (T, D))
    ours, right = both(scale * x_TD, gamma_D, beta_D, dy_TD)
    # dx cancels almost completely for D ≤ 2, and so does the centring of almost constant rows.
    rstd_T1 = layernorm.forward(scale * x_TD, gamma_D, beta_D)[1].rstd_T1
    xhat_TD = scale * x_TD * rstd_T1
    terms = xhat_TD * gamma_D, dy_TD * gamma_D * rstd_T1 * (1 + xhat_TD.abs()), dy_TD * xhat_TD, dy_TD
    for a, b, term in zip(ours, right, terms, strict=True):
        agree(a, b, 1e-12, terms=term)


def test_constant_rows_stay_finite(normal):
    """Zero variance: rstd must be 1/√eps, and the gradient finite with row sums of zero; 1/std would be infinite."""
    gamma_D, beta_D, dy_TD = normal(1, (8,), (8,), (3, 8))
    x_TD = torch.tensor([[2.5], [0.0], [-7.0]], dtype=torch.float64).expand(3, 8)
    y_TD, saved = layernorm.forward(x_TD, gamma_D, beta_D)
    assert torch.equal(y_TD, beta_D.expand(3, 8))
    torch.testing.assert_close(saved.rstd_T1, torch.full((3, 1), 1 / math.sqrt(1e-5), dtype=torch.float64))
    dx_TD, dgamma_D, _ = layernorm.backward(dy_TD, saved, x_TD, gamma_D)
    assert dx_TD.isfinite().all() and (dgamma_D == 0).all()
    assert (dx_TD.sum(1).abs() <= 1e-13 * dx_TD.abs().sum(1)).all() and (dx_TD != 0).all()


def test_far_from_zero_in_float32(normal, agree):
    """E[x²] − E[x]² loses every digit at a mean of 1e4 with unit variance; the two-pass variance does not."""
    x_TD, gamma_D, beta_D, dy_TD = (tensor.float() for tensor in normal(2, (5, 64), (64,), (64,), (5, 64)))
    given = (x_TD + 1e4, gamma_D, beta_D, dy_TD)
    ours, _ = both(*given)
    _, right = both(*(tensor.double() for tensor in given))
    for a, b in zip(ours, right, strict=True):
        agree(a.double(), b, 2e-3)


def test_gradient_is_orthogonal_to_what_the_norm_removes(normal):
    """Shifting a row changes nothing, so Σ dx = 0 in each row; forgetting the mean's path would break it."""
    x_TD, gamma_D, beta_D, dy_TD = normal(3, (6, 9), (9,), (9,), (6, 9))
    _, saved = layernorm.forward(x_TD, gamma_D, beta_D)
    dx_TD, _, _ = layernorm.backward(dy_TD, saved, x_TD, gamma_D)
    assert (dx_TD.sum(1).abs() <= 1e-14 * dx_TD.abs().sum(1)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_rows_have_wide_statistics(normal, agree, dtype):
    """A mean or a variance in bf16, or dγ summed in it, would be off by percents at a mean of 30."""
    x_TD, gamma_D, beta_D, dy_TD = normal(4, (300, 64), (64,), (64,), (300, 64))
    x_TD, dy_TD = (x_TD + 30).to(dtype), dy_TD.to(dtype)
    gamma_D, beta_D = gamma_D.float(), beta_D.float()
    y_TD, saved = layernorm.forward(x_TD, gamma_D, beta_D)
    dx_TD, dgamma_D, dbeta_D = layernorm.backward(dy_TD, saved, x_TD, gamma_D)
    assert (y_TD.dtype, dx_TD.dtype) == (dtype, dtype)
    assert {t.dtype for t in (saved.mean_T1, saved.rstd_T1, dgamma_D, dbeta_D)} == {torch.float32}
    exact = (x_TD.double(), gamma_D.double(), beta_D.double(), dy_TD.double())
    (y, dx, dgamma, dbeta), _ = both(*exact)
    u = torch.finfo(dtype).eps
    for ours, right, tolerance in ((y_TD, y, u), (dx_TD, dx, u), (dgamma_D, dgamma, 1e-4), (dbeta_D, dbeta, 1e-6)):
        agree(ours.double(), right, tolerance)
