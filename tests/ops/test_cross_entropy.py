from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import cross_entropy
from gradproof.proof.admission import admit
from gradproof.proof.examples import examples

ROWS, CLASSES, SEEDS = st.sampled_from([1, 2, 7, 33]), st.sampled_from([1, 2, 3, 12]), st.integers(0, 9999)


def draw(normal, T, C, seed):
    """Logits, targets, positive class weights, a cotangent."""
    z_TC, weight_C, dloss = normal(seed, (T, C), (C,), ())
    target_T = torch.randint(C, (T,), generator=torch.Generator().manual_seed(seed))
    return z_TC, target_T, weight_C.exp(), dloss


@given(T=ROWS, C=CLASSES, seed=SEEDS, weighted=st.booleans())
def test_agrees_with_torch(normal, agree, T, C, seed, weighted):
    """Fails on a mean over rows instead of weights, or on a gradient without the one-hot term."""
    z_TC, target_T, weight_C, dloss = draw(normal, T, C, seed)
    weight = weight_C if weighted else None
    right = F.cross_entropy(z_TC.requires_grad_(), target_T, weight)
    loss, saved = cross_entropy.forward(z_TC, target_T, weight)
    agree(loss, right, terms=z_TC.abs().max())
    dz_TC = cross_entropy.backward(dloss, saved, z_TC, target_T)
    agree(dz_TC, torch.autograd.grad(right, z_TC, dloss)[0], terms=dloss)


@given(T=st.sampled_from([2, 7, 33]), C=CLASSES, seed=SEEDS, weighted=st.booleans(), data=st.data())
def test_unequal_micro_batches_add_up(normal, agree, T, C, seed, weighted, data):
    """A mean of means would give the short micro-batch too much weight."""
    z_TC, target_T, weight_C, dloss = draw(normal, T, C, seed)
    weight = weight_C if weighted else None
    loss, saved = cross_entropy.forward(z_TC, target_T, weight)
    dz_TC = cross_entropy.backward(dloss, saved, z_TC, target_T)
    total = float(weight_C[target_T].sum()) if weighted else T
    cut = data.draw(st.integers(1, T - 1))
    parts = [(z_TC[:cut], target_T[:cut]), (z_TC[cut:], target_T[cut:])]
    answers = [cross_entropy.forward(z, target, weight, total) for z, target in parts]
    agree(answers[0][0] + answers[1][0], loss, 1e-12, terms=z_TC.abs().max())
    grads = [cross_entropy.backward(dloss, kept, *part) for (_, kept), part in zip(answers, parts, strict=True)]
    agree(torch.cat(grads), dz_TC, 1e-12, terms=dloss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_logits(dtype):
    """Confidently wrong costs 900 and 1e4; the logarithm of a clamped probability would saturate near 16 or 36."""
    z_TC = torch.tensor([[900.0, 0.0, 1.0], [-1e4, 0.0, -2e4], [1e4, 0.0, 0.0]], dtype=dtype)
    target_T = torch.tensor([1, 0, 0])
    loss, saved = cross_entropy.forward(z_TC, target_T, total=1)
    assert float(loss) == 900 + 1e4
    dz_TC = cross_entropy.backward(torch.tensor(2.0, dtype=dtype), saved, z_TC, target_T)
    assert dz_TC.tolist() == [[2.0, -2.0, 0.0], [-2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("bad", [-1, 3, -100])
def test_refuses_a_target_out_of_range(bad):
    """−100 is torch's ignore index, and −1 would index from the end. The message names the row."""
    with pytest.raises(ValueError, match=rf"target\[2\] = {bad} is out of range.*0\.\.2"):
        cross_entropy.forward(torch.zeros(4, 3), torch.tensor([0, 2, bad, 1]))


@pytest.mark.parametrize("target", [torch.zeros(4), torch.zeros(4, 1, dtype=torch.int64), torch.zeros(3, dtype=int)])
def test_refuses_a_target_of_another_form(target):
    """Probabilities, a column and a short target would broadcast or fail deep inside torch."""
    with pytest.raises(ValueError, match=r"target must be int64 \[4\]"):
        cross_entropy.forward(torch.zeros(4, 3), target)


def test_gradient_rows_sum_to_zero(normal):
    """softmax − one-hot sums to 0 in each row; a clamped probability would not."""
    z_TC, target_T, weight_C, dloss = draw(normal, 9, 12, 0)
    _, saved = cross_entropy.forward(z_TC, target_T, weight_C)
    dz_TC = cross_entropy.backward(dloss, saved, z_TC, target_T)
    assert (dz_TC.sum(1).abs() <= 1e-14 * dz_TC.abs().sum(1)).all() and (dz_TC != 0).all()


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_loss_keeps_its_digits_at_large_logits(offset):
    """logsumexp(z) − z[y] in float32 would round to the spacing of floats near the offset."""
    z_TC = torch.tensor([[offset, offset + 1.5, offset + 0.25]])
    target_T = torch.tensor([0])
    exact = torch.nn.functional.cross_entropy(z_TC.double(), target_T)
    loss, _ = cross_entropy.forward(z_TC, target_T)
    assert abs(float(loss) - float(exact)) < 1e-6 * float(exact)


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="at least one row"):
        cross_entropy.forward(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))


@given(T=st.sampled_from([2, 7, 33]), C=CLASSES, seed=SEEDS, weighted=st.booleans(), data=st.data())
def test_count_is_what_the_whole_divides_by(normal, agree, T, C, seed, weighted, data):
    """The counts of the parts, summed and passed to each part, must give the whole batch. Counting rows instead of
    weights fails.
    """
    z_TC, target_T, weight_C, _ = draw(normal, T, C, seed)
    weight = weight_C if weighted else None
    loss, _ = cross_entropy.forward(z_TC, target_T, weight)
    cut = data.draw(st.integers(1, T - 1))
    counts = [cross_entropy.count(part, weight)["total"] for part in target_T.split([cut, T - cut])]
    parts = zip(z_TC.split([cut, T - cut]), target_T.split([cut, T - cut]), strict=True)
    summed = sum(cross_entropy.forward(z, target, weight, sum(counts))[0] for z, target in parts)
    agree(summed, loss, 1e-12, terms=z_TC.abs().max())


def test_count_by_hand():
    """Rows, or the sum of their class weights."""
    target_T = torch.tensor([0, 2, 2])
    assert cross_entropy.count(target_T) == {"total": 3}
    assert float(cross_entropy.count(target_T, torch.tensor([0.5, 7.0, 2.0]))["total"]) == 4.5


def test_class_weights_by_name(normal, agree):
    """A training step passes the class weights under this argument name."""
    z_TC, target_T, weight_C, _ = draw(normal, 7, 3, 1)
    loss, _ = cross_entropy.forward(z_TC, target_T, class_weight_C=weight_C)
    agree(loss, F.cross_entropy(z_TC, target_T, weight_C))


@given(T=st.sampled_from([2, 7, 33]), seed=SEEDS, weighted=st.booleans())
def test_padding_is_as_if_it_were_not_there(normal, agree, T, seed, weighted):
    """Fails if the loss divides by all rows, or if padding has a gradient."""
    z_TC, target_T, weight_C, dloss = draw(normal, T, 5, seed)
    weight = weight_C if weighted else None
    kept_T = torch.arange(T) % 2 == 0
    padded_T = target_T.masked_fill(~kept_T, -1)
    right, saved = cross_entropy.forward(z_TC[kept_T], target_T[kept_T], weight)
    loss, scale_T = cross_entropy.forward(z_TC, padded_T, weight, ignore=-1)
    agree(loss, right, terms=z_TC.abs().max())
    dz_TC = cross_entropy.backward(dloss, scale_T, z_TC, padded_T)
    agree(dz_TC[kept_T], cross_entropy.backward(dloss, saved, z_TC[kept_T], target_T[kept_T]), terms=dloss)
    assert (dz_TC[~kept_T] == 0).all()
    total = cross_entropy.count(padded_T, weight, -1)["total"]
    agree(
        torch.as_tensor(total, dtype=torch.float64), (weight_C[target_T[kept_T]] if weighted else kept_T).sum().double()
    )
    with pytest.raises(ValueError, match="out of range"):
        cross_entropy.forward(z_TC, padded_T, weight, ignore=-2)


def zero_by_zero(z_TC, target_T, class_weight_C=None, total=None, ignore=None):
    """A kernel that divides by a count of 0."""
    loss, scale_T = cross_entropy.forward(z_TC, target_T, class_weight_C, total, ignore)
    return (loss, scale_T) if scale_T.any() else (loss / 0, scale_T)


def averaged_padding(z_TC, target_T, class_weight_C=None, total=None, ignore=None):
    """A kernel that averages over padding when there is nothing else."""
    loss, scale_T = cross_entropy.forward(z_TC, target_T, class_weight_C, total, ignore)
    return (loss, scale_T) if scale_T.any() else (loss + 1, torch.ones_like(scale_T))


@pytest.mark.parametrize("broken", [zero_by_zero, averaged_padding])
def test_a_kernel_that_is_wrong_only_without_weight_is_refused(broken):
    """Both are right on every batch with at least one counted row."""
    kernel = SimpleNamespace(**{**vars(cross_entropy), "forward": broken})
    tried = examples("cross_entropy", cross_entropy.CONTRACT, 0)
    evidence = list(admit(cross_entropy, kernel, tried, dtype=torch.float32, device="cpu", kernel="broken"))
    assert {e.example for e in evidence if e.status == "refuted"} == {
        "nothing but padding",
        "nothing but padding, counted",
        "no weight at all",
    }


def test_a_step_goes_on_after_nothing_but_padding():
    """Between two ordinary steps: no loss, nothing skipped, every parameter finite."""
    from gradproof import AdamW, TrainStep, Transformer, TransformerConfig

    config = TransformerConfig(vocabulary=7, width=8, heads=2, encoder_layers=0, decoder_layers=1, mode="causal")
    step = TrainStep(Transformer(config), "cross_entropy", AdamW(lr=1e-2), clip=1.0)
    token_BS = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0))
    first, none, last = (step(token_BS, target) for target in (token_BS, torch.full_like(token_BS, -1), token_BS))
    assert float(none.loss) == 0 and not none.skipped and 0 < float(last.loss) < float(first.loss)
    assert step.model.params.flat_P.isfinite().all()
