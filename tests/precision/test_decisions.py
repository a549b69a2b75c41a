import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.precision import decisions, rounding
from gradproof.precision.watching import Unrepeatable, Watching


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def watched(f, *inputs, **options):
    watch = Watching(**options)
    with watch:
        out = f(*inputs)
    return watch, out


def plain_margin(scores, k):
    """From the definition, one row at a time; larger is better."""
    best = sorted(scores.tolist(), reverse=True)
    return best[k - 1] - best[k]


CHOICES = {  # the call, (axis, K, whether larger is better)
    "topk": (lambda x: x.topk(3), (-1, 3, True)),
    "topk smallest": (lambda x: x.topk(2, largest=False), (-1, 2, False)),
    "topk dim 0": (lambda x: x.topk(2, dim=0), (0, 2, True)),
    "topk dim 1": (lambda x: x.topk(2, 1), (1, 2, True)),
    "topk unsorted": (lambda x: x.topk(2, sorted=False), (-1, 2, True)),
    "topk of all": (lambda x: x.topk(5)[1][..., :2], (-1, 2, True)),
    "sort, first": (lambda x: x.sort()[1][..., :2], (-1, 2, False)),
    "sort, values": (lambda x: x.sort()[0][..., :2], (-1, 2, False)),
    "sort, last": (lambda x: x.sort()[1][..., -2:], (-1, 2, True)),
    "sort, last, by count": (lambda x: x.sort()[1][..., 3:], (-1, 2, True)),
    "sort, not the first": (lambda x: x.sort()[1][..., :-1], (-1, 4, False)),
    "sort descending": (lambda x: x.sort(descending=True)[1][..., :2], (-1, 2, True)),
    "sort descending, last": (lambda x: x.sort(descending=True)[1][..., -1:], (-1, 1, False)),
    "sort stable": (lambda x: torch.sort(x, dim=-1, stable=True, descending=True)[1].narrow(-1, 0, 3), (-1, 3, True)),
    "sort dim 0": (lambda x: x.sort(0, descending=True)[1][:2], (0, 2, True)),
    "sort, the best": (lambda x: x.sort(-1)[1][..., -1], (-1, 1, True)),
    "argsort": (lambda x: x.argsort(-1)[..., :2], (-1, 2, False)),
    "argsort stable": (lambda x: x.argsort(dim=-1, stable=True, descending=True)[..., :2], (-1, 2, True)),
    "argmax": (lambda x: x.argmax(-1), (-1, 1, True)),
    "argmax keepdim": (lambda x: x.argmax(0, keepdim=True), (0, 1, True)),
    "argmin": (lambda x: x.argmin(-1), (-1, 1, False)),
    "argmax of all": (lambda x: x.argmax(), (None, 1, True)),
    "max": (lambda x: x.max(-1), (-1, 1, True)),
    "max keepdim": (lambda x: x.max(0, keepdim=True), (0, 1, True)),
    "min": (lambda x: x.min(1), (1, 1, False)),
}


def rows_of(x, axis):
    return x.reshape(1, -1) if axis is None else x.movedim(axis, -1).reshape(-1, x.shape[axis])


@pytest.mark.parametrize("shape", [(5,), (4, 5), (5, 5, 5)], ids=str)
@pytest.mark.parametrize("name", CHOICES)
def test_every_way_to_choose_is_recorded_with_its_margins(name, shape):
    """Fails on a wrong axis, side or K: each gives different sets and margins."""
    f, (axis, k, largest) = CHOICES[name]
    if len(shape) == 1 and axis == 1:
        pytest.skip("no such axis")
    x = normal(*shape)
    watch, out = watched(f, x)
    torch.testing.assert_close(out, f(x), rtol=0, atol=0)
    (decision,) = watch.decisions
    scores = rows_of(x if largest else -x, axis)
    assert decision.margin_R().tolist() == pytest.approx([plain_margin(row, k) for row in scores])
    right = torch.zeros_like(scores).scatter_(1, scores.topk(k).indices, 1).bool()
    assert torch.equal(decision.chosen_Rn(), right) and decision.rows == len(scores)


@pytest.mark.parametrize("f", [
    lambda x: x.topk(5), lambda x: x.topk(0), lambda x: x.sort(), lambda x: x.sort()[1][:, 1:3],
    lambda x: x.sort()[1][:, :4:2], lambda x: x.sort()[1][:2], lambda x: x.max(), lambda x: x.amax(1),
    lambda x: (x > 0).long().argmax(1), lambda x: x[:, :1].argmax(1), lambda x: x[:0].argmax(1),
    lambda x: x[0, 0].sort(), lambda x: x.sort()[1][:, :0], lambda x: x[:, ::1].clone()[:, :2],
])  # fmt: skip
def test_what_leaves_nothing_out_is_no_decision(f):
    watch, _ = watched(f, normal(4, 5))
    assert watch.decisions == []


@given(rows=st.integers(1, 6), n=st.integers(2, 9), k=st.integers(1, 9), seed=st.integers(0, 999))
def test_flips_are_found_exactly(rows, n, k, seed):
    """Fails if the order among the chosen counts as a flip, or if only the first chosen index is compared."""
    k = min(k, n - 1)
    x, y = normal(rows, n, seed=seed), normal(rows, n, seed=seed) + 0.3 * normal(rows, n, seed=seed + 1)
    (a,), (b,) = (watched(lambda z: z.topk(k), z)[0].decisions for z in (x, y))
    right = [set(i.tolist()) != set(j.tolist()) for i, j in zip(x.topk(k).indices, y.topk(k).indices, strict=True)]
    assert a.flipped_R(b).tolist() == b.flipped_R(a).tolist() == right


def test_ties_have_no_margin():
    (decision,) = watched(lambda x: x.topk(2), torch.tensor([[1.0, 1, 1], [3, 1, 2]]))[0].decisions
    assert decision.margin_R().tolist() == [0, 1]


def test_infinities_and_nan():
    """An expert masked with −inf is infinitely far away; NaN has no margin, and is not smaller than other scores."""
    x = torch.tensor([[2.0, 1, -math.inf], [math.inf, math.inf, 1], [math.nan, 1, 2], [1, math.inf, -math.inf]])
    (decision,) = watched(lambda x: x.topk(2), x)[0].decisions
    margin = decision.margin_R().tolist()
    assert margin[0] == margin[1] == margin[3] == math.inf and math.isnan(margin[2])
    assert not decision.flipped_R(decision).any()


def test_scores_too_many_to_keep_are_not_kept(monkeypatch):
    monkeypatch.setattr(decisions, "MOST_SCORES", 19)
    watch, _ = watched(lambda x: (x.topk(2), x[:3].topk(2)), normal(4, 5))
    assert [d.rows for d in watch.decisions] == [3] and watch.choices[0] is None


def gathered(name, x, index):
    """The expected replay: the scores of this run at the indices of the other."""
    axis = CHOICES[name][1][0]
    return x.gather(axis, index) if index.dim() == x.dim() else x.gather(axis, index.unsqueeze(axis)).squeeze(axis)


VALUES = {
    "topk": lambda x: x.topk(3), "topk smallest": lambda x: x.topk(2, largest=False), "max": lambda x: x.max(-1),
    "topk dim 0": lambda x: x.topk(2, dim=0), "min": lambda x: x.min(1),
    "max keepdim": lambda x: x.max(0, keepdim=True),
    "sort descending": lambda x: tuple(t[..., :2] for t in x.sort(descending=True)),
    "sort, last": lambda x: tuple(t[..., -2:] for t in x.sort()),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["watching", "rounding"])
@pytest.mark.parametrize("name", VALUES)
def test_replay_takes_the_references_choice_and_the_scores_here(name, mode):
    """Fails if values of the other run are used, if the gradient goes to what was chosen here, or if the flip is
    lost.
    """
    f, x = VALUES[name], normal(4, 5)
    like, (_, index) = watched(f, x)
    here = (x + normal(4, 5, seed=1)).float().bfloat16().float().requires_grad_()
    options = dict(like=like, routing=True)
    watch = rounding("bf16", **options) if mode == "rounding" else Watching(**options)
    g = normal(*index.shape, seed=2).bfloat16().float()
    with watch:
        values, replayed = f(here)
        values.backward(g)
    assert torch.equal(replayed, index) and not torch.equal(replayed, f(here)[1])
    again = here.detach().clone().requires_grad_()
    right = gathered(name, again, index)
    right.backward(g)
    assert torch.equal(values, right) and torch.equal(here.grad, again.grad)
    # The recorded decision is the one that this run would have made.
    (own,), (there,) = watched(f, here.detach())[0].decisions, like.decisions
    assert torch.equal(watch.decisions[0].chosen_Rn(), own.chosen_Rn())
    assert own.flipped_R(there).any()


@pytest.mark.parametrize("name", ["argmax", "argmax keepdim", "argmin", "argmax of all", "argsort", "argsort stable"])
def test_replay_of_indices_alone(name):
    f = CHOICES[name][0]
    like, index = watched(f, normal(4, 5))
    _, replayed = watched(f, normal(4, 5, seed=1), like=like, routing=True)
    assert torch.equal(replayed, index) and not torch.equal(index, f(normal(4, 5, seed=1)))


def test_without_routing_the_run_decides_itself():
    like, index = watched(lambda x: x.argmax(1), normal(8, 5))
    _, chosen = watched(lambda x: x.argmax(1), normal(8, 5, seed=1), like=like)
    assert torch.equal(chosen, normal(8, 5, seed=1).argmax(1)) and not torch.equal(chosen, index)


def branch(x):
    return x * 2 if x.mean() > 0 else x * 3


def test_branches_are_recorded_and_replayed():
    up, down = torch.ones(3), -torch.ones(3)
    like, _ = watched(branch, up)
    assert like.branches == [True]
    watch, out = watched(branch, down, like=like, routing=True)
    assert watch.branches == [False] and torch.equal(out, down * 2)
    assert torch.equal(watched(branch, down, like=like)[1], down * 3)


@pytest.mark.parametrize("f", [
    lambda x: x.topk(2), lambda x: x.topk(3)[1].sum() + x.topk(3)[0].sum(), lambda x: x.mT.contiguous().topk(3),
    lambda x: x.argmax(1), lambda x: x.topk(3, dim=0), lambda x: (x.topk(3), branch(x)),
])  # fmt: skip
def test_other_decisions_cannot_be_replayed(f):
    like, _ = watched(lambda x: x.topk(3), normal(4, 5))
    with pytest.raises(Unrepeatable):
        watched(f, normal(4, 5, seed=1), like=like, routing=True)


def test_a_sort_of_which_nothing_is_taken_is_replayed_too():
    """The order itself may be the decision, as in a permutation of rows by expert."""
    like, order = watched(lambda x: x.argsort(), normal(9))
    assert torch.equal(watched(lambda x: x.argsort(), normal(9, seed=1), like=like, routing=True)[1], order)
