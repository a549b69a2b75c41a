import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import mse

ROWS, WIDTHS, SEEDS = st.sampled_from([1, 2, 7, 33]), st.sampled_from([1, 3, 8]), st.integers(0, 9999)


@given(T=ROWS, M=WIDTHS, seed=SEEDS)
def test_agrees_with_torch(normal, agree, T, M, seed):
    """Fails on a mean over rows only, a lost factor 2, or the wrong sign of a gradient."""
    y_TM, target_TM, dloss = normal(seed, (T, M), (T, M), ())
    right = F.mse_loss(y_TM.requires_grad_(), target_TM)
    loss, saved = mse.forward(y_TM, target_TM)
    agree(loss, right)
    agree(mse.backward(dloss, saved), torch.autograd.grad(right, y_TM, dloss)[0])


@given(T=st.sampled_from([2, 7, 33]), M=WIDTHS, seed=SEEDS, data=st.data())
def test_unequal_micro_batches_add_up(normal, agree, T, M, seed, data):
    """A mean of means would give the short micro-batch too much weight."""
    y_TM, target_TM, dloss = normal(seed, (T, M), (T, M), ())
    loss, saved = mse.forward(y_TM, target_TM)
    cut = data.draw(st.integers(1, T - 1))
    answers = [mse.forward(y_TM[part], target_TM[part], total=T * M) for part in (slice(0, cut), slice(cut, T))]
    agree(answers[0][0] + answers[1][0], loss, 1e-12)
    agree(torch.cat([mse.backward(dloss, kept) for _, kept in answers]), mse.backward(dloss, saved), 1e-12)


def test_a_perfect_answer_has_no_gradient(normal):
    """A derivative of |y − t| in place of its square would be NaN or ±1 at zero."""
    y_TM, dloss = normal(0, (5, 3), ())
    loss, saved = mse.forward(y_TM, y_TM.clone())
    assert float(loss) == 0 and (mse.backward(dloss, saved) == 0).all()


@pytest.mark.parametrize("shape", [(4, 1), (3,), (1, 3)])
def test_refuses_a_target_that_would_broadcast(shape):
    """y [4, 3] against [4, 1] would compare every output with the first target."""
    with pytest.raises(ValueError, match=r"target must be \[4, 3\]"):
        mse.forward(torch.zeros(4, 3), torch.zeros(shape))
