import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from gradproof.ops import gaussian

SEEDS = st.integers(0, 9999)


@given(T=st.sampled_from([1, 2, 7, 33]), seed=SEEDS)
def test_agrees_with_torch(normal, agree, T, seed):
    """Fails on a variance in place of the standard deviation, a lost ½, or the wrong sign of a gradient."""
    y_TO, target_T, dloss = normal(seed, (T, 2), (T,), ())
    y_TO.requires_grad_()
    right = -Normal(y_TO[:, 0], y_TO[:, 1].exp()).log_prob(target_T).mean()
    loss, saved = gaussian.forward(y_TO, target_T)
    agree(loss, right)
    agree(gaussian.backward(dloss, saved, y_TO), torch.autograd.grad(right, y_TO, dloss)[0])


@given(T=st.sampled_from([2, 7, 33]), seed=SEEDS, data=st.data())
def test_unequal_micro_batches_add_up(normal, agree, T, seed, data):
    """A mean of means would give the short micro-batch too much weight."""
    y_TO, target_T, dloss = normal(seed, (T, 2), (T,), ())
    loss, saved = gaussian.forward(y_TO, target_T)
    cut = data.draw(st.integers(1, T - 1))
    parts = [slice(0, cut), slice(cut, T)]
    total = sum(gaussian.count(target_T[part])["total"] for part in parts)
    answers = [gaussian.forward(y_TO[part], target_T[part], total) for part in parts]
    agree(answers[0][0] + answers[1][0], loss, 1e-12)
    grads = [gaussian.backward(dloss, kept, y_TO[part]) for (_, kept), part in zip(answers, parts, strict=True)]
    agree(torch.cat(grads), gaussian.backward(dloss, saved, y_TO), 1e-12)


def test_an_exact_answer_does_not_run_away():
    """Without the lower limit, a row that is fitted exactly would drive log σ, and the loss, to −∞."""
    y_TO, target_T = torch.tensor([[0.3, -50.0], [0.3, 50.0]]), torch.tensor([0.3, 0.3])
    loss, saved = gaussian.forward(y_TO, target_T)
    dy_TO = gaussian.backward(torch.tensor(1.0), saved, y_TO)
    assert loss.isfinite() and (dy_TO == 0).all()


@pytest.mark.parametrize(("y", "target"), [((4, 3), (4,)), ((4, 2), (4, 1)), ((4, 2), (1,))])
def test_refuses_what_would_broadcast(y, target):
    """A target [4, 1] against means [4] would compare every row with every other."""
    with pytest.raises(ValueError, match=r"mean and log standard deviation|one number per row"):
        gaussian.forward(torch.zeros(y), torch.zeros(target))
