import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import softmax


@given(T=st.sampled_from([1, 2, 7, 16]), E=st.sampled_from([1, 2, 3, 33]), scale=st.sampled_from([0.1, 1.0, 300.0]))
def test_agrees_with_torch(normal, agree, T, E, scale):
    """Fails on normalisation over the wrong axis, or on a Jacobian without its rank-one term."""
    z_TE, dp_TE = normal(T * E, (T, E), (T, E))
    z_TE = (scale * z_TE).requires_grad_()
    right_TE = F.softmax(z_TE, -1)
    p_TE, saved = softmax.forward(z_TE)
    agree(p_TE, right_TE, 1e-14)
    agree(softmax.backward(dp_TE, saved), torch.autograd.grad(right_TE, z_TE, dp_TE)[0], terms=p_TE * dp_TE)


@pytest.mark.parametrize("offset", [1e4, -1e4, 1e30])
def test_huge_logits(normal, offset):
    """exp overflows at 710 and underflows at −745 unless the maximum is subtracted first."""
    z_TE, dp_TE = normal(0, (3, 5), (3, 5))
    p_TE, saved = softmax.forward(z_TE + offset)
    assert ((p_TE.sum(1) - 1).abs() < 1e-15 * 8).all()
    assert softmax.backward(dp_TE, saved).isfinite().all()
    if abs(offset) < 1e30:
        # Adding 1e4 rounds z to 1e-12, which p inherits.
        torch.testing.assert_close(p_TE, softmax.forward(z_TE)[0], rtol=1e-11, atol=0)


def test_masked_entries(normal):
    """An entry of −∞ has probability and gradient exactly 0; −∞ − (−∞) would give NaN."""
    z_TE, dp_TE = normal(1, (4, 5), (4, 5))
    z_TE[:, 2] = -torch.inf
    p_TE, saved = softmax.forward(z_TE)
    dz_TE = softmax.backward(dp_TE, saved)
    assert (p_TE[:, 2] == 0).all() and (dz_TE[:, 2] == 0).all()
    assert dz_TE.isfinite().all()


def test_gradient_rows_sum_to_zero(normal):
    """Shifting a row changes nothing, so Σ dz = 0; a missing ⟨p, dp⟩ would break that."""
    z_TE, dp_TE = normal(2, (9, 6), (9, 6))
    _, saved = softmax.forward(z_TE)
    dz_TE = softmax.backward(dp_TE, saved)
    assert (dz_TE.sum(1).abs() <= 1e-14 * dz_TE.abs().sum(1)).all() and (dz_TE != 0).all()
