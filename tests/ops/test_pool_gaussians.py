import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, MixtureSameFamily, Normal

from gradproof.ops import pool_gaussians


@given(M=st.sampled_from([1, 2, 5]), T=st.sampled_from([1, 7]), seed=st.integers(0, 9999))
def test_has_the_moments_of_the_mixture(normal, agree, M, T, seed):
    """Fails on a mean of standard deviations, or on a variance without the members' disagreement, in value and
    gradient.
    """
    z_MTO, dy_TO = normal(seed, (M, T, 2), (T, 2))
    z_MTO.requires_grad_()
    members = Normal(z_MTO[..., 0].T, z_MTO[..., 1].T.exp())
    mixture = MixtureSameFamily(Categorical(torch.ones(T, M, dtype=torch.float64)), members)
    right_TO = torch.stack([mixture.mean, mixture.variance.log() / 2], -1)
    y_TO, saved = pool_gaussians.forward(z_MTO)
    agree(y_TO, right_TO)
    agree(pool_gaussians.backward(dy_TO, saved, z_MTO), torch.autograd.grad(right_TO, z_MTO, dy_TO)[0])


def test_one_member_is_itself(normal):
    """An unbiased variance would divide by zero."""
    (z_MTO,) = normal(0, (1, 5, 2))
    y_TO, _ = pool_gaussians.forward(z_MTO)
    assert torch.allclose(y_TO, z_MTO[0], rtol=1e-12)
