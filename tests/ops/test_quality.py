import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import quality

METRICS, SEEDS = st.sampled_from([1, 3, 8]), st.integers(0, 9999)


def draw(normal, T, C, M, seed):
    """Outputs, outcomes, metrics, a cotangent."""
    y_TO, metrics_TM, dloss = normal(seed, (T, C + M), (T, M), ())
    return y_TO, torch.randint(C, (T,), generator=torch.Generator().manual_seed(seed)), metrics_TM, dloss


@given(
    T=st.sampled_from([1, 2, 7, 33]),
    C=st.sampled_from([2, 3, 12]),
    M=METRICS,
    weight=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    seed=SEEDS,
)
def test_agrees_with_torch(normal, agree, T, C, M, weight, seed):
    """Fails on a split at the wrong column, or on λ on the wrong half or only in the loss."""
    y_TO, outcome_T, metrics_TM, dloss = draw(normal, T, C, M, seed)
    y_TO.requires_grad_()
    right = F.cross_entropy(y_TO[:, :C], outcome_T) + weight * F.mse_loss(y_TO[:, C:], metrics_TM)
    loss, saved = quality.forward(y_TO, outcome_T, metrics_TM, weight)
    agree(loss, right)
    dy_TO = quality.backward(dloss, saved, y_TO, outcome_T, weight)
    agree(dy_TO, torch.autograd.grad(right, y_TO, dloss)[0])
    assert weight or (dy_TO[:, C:] == 0).all()


@given(T=st.sampled_from([2, 7, 33]), M=METRICS, seed=SEEDS, data=st.data())
def test_unequal_micro_batches_add_up(normal, agree, T, M, seed, data):
    """`total` counts rows; using it for the entries of the metrics would weight them M times too much."""
    y_TO, outcome_T, metrics_TM, dloss = draw(normal, T, 12, M, seed)
    loss, saved = quality.forward(y_TO, outcome_T, metrics_TM, 0.3)
    dy_TO = quality.backward(dloss, saved, y_TO, outcome_T, 0.3)
    cut = data.draw(st.integers(1, T - 1))
    losses, grads = [], []
    for part in (slice(0, cut), slice(cut, T)):
        part_loss, kept = quality.forward(y_TO[part], outcome_T[part], metrics_TM[part], 0.3, total=T)
        losses.append(part_loss)
        grads.append(quality.backward(dloss, kept, y_TO[part], outcome_T[part], 0.3))
    agree(sum(losses), loss, 1e-12)
    agree(torch.cat(grads), dy_TO, 1e-12)


def test_refuses_targets_that_do_not_fit():
    """Nine metrics in ten outputs would leave one outcome, whose cross-entropy is always 0."""
    outcome_T = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="10 outputs cannot hold 9 metrics"):
        quality.forward(torch.zeros(4, 10), outcome_T, torch.zeros(4, 9))
    with pytest.raises(ValueError, match=r"target\[1\] = 2 is out of range"):
        quality.forward(torch.zeros(4, 10), torch.tensor([0, 2, 0, 0]), torch.zeros(4, 8))
    with pytest.raises(ValueError, match=r"target must be \[4, 8\]"):
        quality.forward(torch.zeros(4, 10), outcome_T, torch.zeros(3, 8))


def class_weights(C, seed):
    return torch.rand(C, generator=torch.Generator().manual_seed(seed)).double() + 0.1


@given(T=st.sampled_from([1, 2, 7, 33]), M=METRICS, weight=st.sampled_from([0.0, 0.3, 2.5]), seed=SEEDS)
def test_class_weights_agree_with_torch(normal, agree, T, M, weight, seed):
    """Fails if class weights also apply to the metrics, or only to the loss."""
    y_TO, outcome_T, metrics_TM, dloss = draw(normal, T, 5, M, seed)
    weight_C = class_weights(5, seed)
    y_TO.requires_grad_()
    right = F.cross_entropy(y_TO[:, :5], outcome_T, weight_C) + weight * F.mse_loss(y_TO[:, 5:], metrics_TM)
    loss, saved = quality.forward(y_TO, outcome_T, metrics_TM, weight, weight_C)
    agree(loss, right)
    dy_TO = quality.backward(dloss, saved, y_TO, outcome_T, weight)
    agree(dy_TO, torch.autograd.grad(right, y_TO, dloss)[0])


@given(T=st.sampled_from([2, 7, 33]), M=METRICS, seed=SEEDS, weighted=st.booleans(), data=st.data())
def test_counts_add_up(normal, agree, T, M, seed, weighted, data):
    """Outcomes divide by class weights, metrics by rows; one total for both would be wrong for one of them."""
    y_TO, outcome_T, metrics_TM, dloss = draw(normal, T, 5, M, seed)
    weight_C = class_weights(5, seed) if weighted else None
    loss, saved = quality.forward(y_TO, outcome_T, metrics_TM, 0.3, weight_C)
    dy_TO = quality.backward(dloss, saved, y_TO, outcome_T, 0.3)
    cut = data.draw(st.integers(1, T - 1))
    parts = [slice(0, cut), slice(cut, T)]
    counts = [quality.count(outcome_T[part], metrics_TM[part], weight_C) for part in parts]
    total = {name: counts[0][name] + counts[1][name] for name in counts[0]}
    summed, grads = 0, []
    for part in parts:
        value, kept = quality.forward(y_TO[part], outcome_T[part], metrics_TM[part], 0.3, weight_C, **total)
        summed = summed + value
        grads.append(quality.backward(dloss, kept, y_TO[part], outcome_T[part], 0.3))
    agree(summed, loss, 1e-12)
    agree(torch.cat(grads), dy_TO, 1e-12)
