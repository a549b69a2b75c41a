import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ops import topk

ROWS = st.integers(1, 7).flatmap(lambda E: st.lists(st.lists(st.integers(-1, 1), min_size=E, max_size=E), min_size=1))


@given(rows=ROWS, data=st.data())
def test_ties_go_to_the_lower_index(rows, data):
    """Values of −1, 0, 1 tie in almost every row. An unstable sort, or `torch.topk`, would choose another index."""
    k = data.draw(st.integers(1, len(rows[0])))
    y_TK, saved = topk.forward(torch.tensor(rows, dtype=torch.float64), k)
    for row, values, chosen in zip(rows, y_TK.tolist(), saved.index_TK.tolist(), strict=True):
        assert chosen == sorted(range(len(row)), key=lambda e: (-row[e], e))[:k]
        assert values == [row[e] for e in chosen]


def test_a_long_row_of_ties():
    """Sorts of short rows can be stable by accident; 4096 equal entries show the difference."""
    _, saved = topk.forward(torch.zeros(2, 4096), 9)
    assert saved.index_TK.tolist() == [list(range(9))] * 2


@given(T=st.sampled_from([1, 2, 7]), E=st.sampled_from([1, 2, 5, 33]), seed=st.integers(0, 9999), data=st.data())
def test_gradient(normal, T, E, seed, data):
    """Fails if the gradient goes to the sorted position instead of the original one; off S it is exactly zero."""
    k = data.draw(st.integers(1, E))
    x_TE, dy_TK = normal(seed, (T, E), (T, k))
    right_TK = torch.topk(x_TE.requires_grad_(), k).values
    y_TK, saved = topk.forward(x_TE, k)
    assert torch.equal(y_TK, right_TK)
    dx_TE = topk.backward(dy_TK, saved)
    assert torch.equal(dx_TE, torch.autograd.grad(right_TK, x_TE, dy_TK)[0])
    assert ((dx_TE != 0).sum(1) == k).all()


@pytest.mark.parametrize("k", [-1, 0, 5])
def test_refuses_k_outside_the_row(k):
    """A slice would silently return fewer entries than asked for."""
    with pytest.raises(ValueError, match=f"k = {k}: .*E = 4"):
        topk.forward(torch.zeros(3, 4), k)
