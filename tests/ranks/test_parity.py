"""Training on several ranks is training on one: 50 steps in float64, to 1e-10, whatever the layout."""

import functools

import pytest
import torch
from ranks.layouts import STEPS, batch_of, in_buckets, trajectory

TWO = ("data2", "data2 sharded", "experts2", "experts2 sharded")
FOUR = ("data4", "data2 experts2", "data2 experts2 sharded")


def off(own, other):
    return float((own - other).norm() / other.norm().clamp(min=1e-30))


@functools.cache
def alone(**options):
    return trajectory("one", options)


def same(answers, options):
    """Each rank's figures and parameters are those of one process; together they hold every parameter."""
    figures, ended = alone(**options)
    held = set()
    for own_figures, own in answers:
        assert off(own_figures, figures) < 1e-10
        for name, tensor in own.items():
            assert off(tensor, ended[name]) < 1e-10, name
        held |= set(own)
    assert held == set(ended)


@pytest.mark.parametrize("layout", TWO)
def test_two_ranks_train_as_one(two_ranks, layout):
    """A mean of means, a loss over own rows alone, or a norm of own gradients would break this."""
    same(two_ranks.run(trajectory, layout), {})


@pytest.mark.slow
@pytest.mark.parametrize("layout", FOUR)
def test_four_ranks_train_as_one(four_ranks, layout):
    same(four_ranks.run(trajectory, layout), {})


def buckets_in_time(answers):
    """Gradients travel while the backward goes on: most buckets have been sent when it is done, on ranks without rows
    too."""
    same([own for own, _ in answers], {})
    for _, before in answers:
        assert len(before) == STEPS and all(count > 2 and sent >= count - 2 for sent, count in before)


@pytest.mark.parametrize("layout", TWO)
def test_buckets_are_sent_during_the_backward(two_ranks, layout):
    """Sent before they are final, or by some ranks in another order, they would have wrong sums."""
    buckets_in_time(two_ranks.run(in_buckets, layout))


@pytest.mark.slow
@pytest.mark.parametrize("layout", FOUR)
def test_buckets_of_four_ranks(four_ranks, layout):
    buckets_in_time(four_ranks.run(in_buckets, layout))


@pytest.mark.parametrize("layout", ("data2 sharded", "experts2"))
def test_a_sheaf_router(two_ranks, layout):
    options = dict(router="sheaf", patches=(2, 3, 1), gluing=0.3, correction=0.0)
    same(two_ranks.run(trajectory, layout, options), options)


def test_micro_batches(two_ranks):
    """Ranks have different numbers of them; where experts are spread, all take part in each."""
    answers = two_ranks.run(functools.partial(trajectory, micro_rows=3), "experts2")
    same(answers, {})


def test_batches_are_uneven():
    """Some ranks of two have no rows, and shares differ: otherwise the tests above show less than they say."""
    rows = [len(batch_of(s)[0]) for s in range(STEPS)]
    assert min(rows) < 4 and any(count % 2 for count in rows) and len(set(rows)) > 5


def test_a_rank_without_rows_for_its_experts():
    """The first rank's experts take nearly everything in some step."""
    figures, _ = alone()
    load_SE = figures[:, 5:]
    assert bool((load_SE[:, 3] == 0).any())


def test_experts_of_a_rank_without_any_row(two_ranks):
    options = dict(k=1, correction=0.0)
    answers = two_ranks.run(trajectory, "experts2", {**options, "balance": 0.0})
    same(answers, {**options, "balance": 0.0})
    assert torch.isfinite(answers[0][0]).all()
