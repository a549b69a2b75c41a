import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ops import vote


@given(M=st.sampled_from([1, 2, 5]), T=st.sampled_from([1, 7]), C=st.sampled_from([1, 2, 6]), N=st.sampled_from([0, 3]))
def test_is_the_mean_of_probabilities(normal, agree, M, T, C, N):
    """Fails on a mean of logits, or on a gradient shared equally among the members."""
    z_MTO, dy_TO = normal(M * T + C, (M, T, C + N), (T, C + N))
    z_MTO.requires_grad_()
    right_TC = torch.softmax(z_MTO[..., :C], -1).mean(0).log()
    right_TO = torch.cat([right_TC, z_MTO[..., C:].mean(0)], -1)
    y_TO, saved = vote.forward(z_MTO, C)
    agree(y_TO, right_TO, 1e-13)
    expected = torch.autograd.grad(right_TO, z_MTO, dy_TO)[0]
    agree(vote.backward(dy_TO, saved, z_MTO, C), expected, terms=dy_TO.expand_as(z_MTO))


def test_a_class_that_no_member_believes_in_stays_finite():
    """exp(−900) is 0 in float64: the logarithm of a mean of probabilities would be −∞, and its gradient NaN."""
    z_MTO = torch.tensor([[[900.0, 0.0]], [[950.0, 0.0]]], dtype=torch.float64)
    y_TO, saved = vote.forward(z_MTO, 2)
    assert y_TO.isfinite().all() and y_TO[0, 1] < -890
    assert vote.backward(torch.ones(1, 2, dtype=torch.float64), saved, z_MTO, 2).isfinite().all()
