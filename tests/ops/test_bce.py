import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import bce


def draw(normal, T, seed):
    """Logits, labels in [0, 1], weights independent of the label, and a cotangent."""
    z_T, label_T, weight_T, dloss = normal(seed, (T,), (T,), (T,), ())
    return 3 * z_T, torch.sigmoid(label_T), weight_T.exp(), dloss


@given(T=st.sampled_from([1, 2, 7, 64]), seed=st.integers(0, 9999), hard=st.booleans())
def test_agrees_with_torch(normal, agree, T, seed, hard):
    """A weight inferred from the label, a mean over weights or the wrong sign of z would fail."""
    z_T, label_T, weight_T, dloss = draw(normal, T, seed)
    label_T = label_T.round() if hard else label_T
    right = F.binary_cross_entropy_with_logits(z_T.requires_grad_(), label_T, weight_T)
    loss, saved = bce.forward(z_T, label_T, weight_T)
    agree(loss, right, terms=(weight_T * z_T).sum() / T)
    dz_T = bce.backward(dloss, saved, z_T, label_T)
    agree(dz_T, torch.autograd.grad(right, z_T, dloss)[0], terms=dloss * weight_T / T)


@given(T=st.sampled_from([2, 7, 64]), seed=st.integers(0, 9999), data=st.data())
def test_unequal_micro_batches_add_up(normal, agree, T, seed, data):
    """A mean of means would give the short micro-batch too much weight."""
    z_T, label_T, weight_T, dloss = draw(normal, T, seed)
    loss, saved = bce.forward(z_T, label_T, weight_T)
    dz_T = bce.backward(dloss, saved, z_T, label_T)
    cut = data.draw(st.integers(1, T - 1))
    losses, grads = [], []
    for part in (slice(0, cut), slice(cut, T)):
        part_loss, kept = bce.forward(z_T[part], label_T[part], weight_T[part], total=T)
        losses.append(part_loss)
        grads.append(bce.backward(dloss, kept, z_T[part], label_T[part]))
    agree(sum(losses), loss, 1e-12)
    agree(torch.cat(grads), dz_T, 1e-12)


def test_labels_are_clamped(normal):
    """A label of −1 or 2 would make the loss unbounded below; it counts as 0 or 1, in loss and gradient."""
    z_T, _, weight_T, dloss = draw(normal, 4, 0)
    wild_T, tame_T = torch.tensor([-1.0, 2.0, 0.25, -0.01]).double(), torch.tensor([0.0, 1.0, 0.25, 0.0]).double()
    loss, saved = bce.forward(z_T, wild_T, weight_T)
    right, kept = bce.forward(z_T, tame_T, weight_T)
    assert torch.equal(loss, right)
    assert torch.equal(bce.backward(dloss, saved, z_T, wild_T), bce.backward(dloss, kept, z_T, tame_T))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_logits(dtype):
    """log(1 + exp(z)) overflows and log σ(z) is −∞ unless softplus is computed stably."""
    z_T = torch.tensor([900.0, -900.0, 1e4, -1e4, 60.0], dtype=dtype)
    label_T = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0], dtype=dtype)
    loss, saved = bce.forward(z_T, label_T, torch.ones(5, dtype=dtype), total=1)
    assert float(loss) == 900 + 900 + 60
    dz_T = bce.backward(torch.tensor(2.0, dtype=dtype), saved, z_T, label_T)
    assert dz_T.tolist() == [2.0, -2.0, 0.0, 0.0, 2.0]


def test_far_tail_keeps_its_digits():
    """softplus(30) − 30 is 9.4e-14; torch's softplus is linear above 20 and would return 0."""
    z_T, label_T = torch.tensor([30.0]).double(), torch.zeros(1).double()
    loss, _ = bce.forward(z_T, label_T, torch.ones(1).double())
    assert float(loss) > 30
    confident, _ = bce.forward(-z_T, label_T, torch.ones(1).double())
    assert float(confident) == pytest.approx(9.357622968839299e-14, rel=1e-12)


def test_refuses_other_shapes():
    """A column of labels would broadcast to a square."""
    with pytest.raises(ValueError, match=r"same shape, got \[4\], \[4, 1\] and \[4\]"):
        bce.forward(torch.zeros(4), torch.zeros(4, 1), torch.ones(4))
    with pytest.raises(ValueError, match=r"same shape, got \[4\], \[4\] and \[1\]"):
        bce.forward(torch.zeros(4), torch.zeros(4), torch.ones(1))


@pytest.mark.parametrize(("z", "label"), [(20.0, 1.0), (-20.0, 0.0), (10.0, 1.0), (-10.0, 0.0)])
def test_both_tails_keep_their_digits_in_float32(z, label):
    """softplus(z) − y·z cancels to 0 in float32 if the label is 1 and the logit large."""
    exact = torch.nn.functional.softplus(torch.tensor(z if label == 0 else -z, dtype=torch.float64), threshold=50)
    loss, _ = bce.forward(torch.tensor([z]), torch.tensor([label]), torch.ones(1))
    assert abs(float(loss) - float(exact)) < 1e-5 * float(exact)
