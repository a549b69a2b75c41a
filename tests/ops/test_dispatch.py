import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ops import dispatch


@st.composite
def choices(draw):
    """(index_TK, E): K distinct experts out of E for each of T rows, including K = E and experts without rows."""
    E = draw(st.integers(1, 6))
    K = draw(st.integers(1, E))
    rows = draw(st.lists(st.permutations(range(E)), min_size=1, max_size=9))
    return torch.tensor([row[:K] for row in rows]), E


@given(choices())
def test_plan_sorts_by_expert_and_keeps_the_order_of_rows(chosen):
    """Fails on an unstable sort, bounds that are off by one, or a wrong inverse."""
    index_TK, E = chosen
    plan = dispatch.plan(index_TK, E)
    flat = index_TK.flatten().tolist()
    expected = [[slot for slot, expert in enumerate(flat) if expert == e] for e in range(E)]
    bounds = plan.bounds()
    assert [plan.slot_N[bounds[e] : bounds[e + 1]].tolist() for e in range(E)] == expected
    assert bounds[0] == 0 and bounds[E] == len(flat) and len(bounds) == E + 1
    assert plan.slot_N[plan.row_TK.flatten()].tolist() == list(range(len(flat)))


@given(choices(), st.sampled_from([1, 3, 8]), st.integers(0, 9999))
def test_rows_and_gradient(normal, agree, chosen, I, seed):
    """Fails if a row is indexed by slot instead of token, or if the gradient keeps only one of the K copies."""
    index_TK, E = chosen
    T, K = index_TK.shape
    x_TI, drows_NI = normal(seed, (T, I), (T * K, I))
    plan = dispatch.plan(index_TK, E)
    tokens = [t for e in range(E) for t in range(T) if e in index_TK[t]]
    right_NI = torch.stack([x_TI.requires_grad_()[t] for t in tokens])
    rows_NI, saved = dispatch.forward(x_TI, plan)
    assert torch.equal(rows_NI, right_NI)
    (right_TI,) = torch.autograd.grad(right_NI, x_TI, drows_NI)
    agree(dispatch.backward(drows_NI, saved, plan), right_TI, 1e-14, terms=drows_NI)


def test_an_expert_without_rows_has_an_empty_slice():
    """Counts without a minimum length would shift the slices of the experts after it."""
    plan = dispatch.plan(torch.tensor([[0, 3], [3, 0], [0, 3]]), 5)
    assert plan.bounds() == [0, 3, 3, 3, 6, 6]


def test_round_trip_sums_the_copies(normal, agree):
    """backward ∘ forward is K·identity; a lost or doubled copy would not be."""
    (x_TI,) = normal(0, (33, 7))
    index_TK = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(t))[:3] for t in range(33)])
    plan = dispatch.plan(index_TK, 5)
    rows_NI, saved = dispatch.forward(x_TI, plan)
    agree(dispatch.backward(rows_NI, saved, plan), 3 * x_TI, 1e-15)


def test_same_bits_twice(normal):
    """A scatter with atomics would add the K copies in a different order each time."""
    index_TK = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(t))[:8] for t in range(64)])
    plan = dispatch.plan(index_TK, 9)
    (drows_NI,) = normal(1, (512, 33))
    assert torch.equal(dispatch.backward(drows_NI, None, plan), dispatch.backward(drows_NI, None, plan))


def test_all_rows_is_one_expert_in_place():
    """A dense model's plan: with permuted rows it would still train, but on the targets of other rows."""
    plan = dispatch.all_rows(7)
    x_TI = torch.arange(14.0).view(7, 2)
    assert plan.bounds() == [0, 7] and torch.equal(dispatch.forward(x_TI, plan)[0], x_TI)
    assert torch.equal(dispatch.backward(x_TI, None, plan), x_TI)
