import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import embedding, pool, positional


@given(B=st.sampled_from([1, 3]), S=st.sampled_from([1, 8]), V=st.sampled_from([1, 2, 9]), seed=st.integers(0, 9999))
def test_agrees_with_torch(normal, agree, B, S, V, seed):
    """Few tokens, many positions: fails if the scatter overwrites instead of adding."""
    w_VD, dy_BSD = normal(seed, (V, 3), (B, S, 3))
    token_BS = torch.randint(V, (B, S), generator=torch.Generator().manual_seed(seed))
    leaf = w_VD.clone().requires_grad_()
    right = F.embedding(token_BS, leaf)
    assert torch.equal(embedding.forward(token_BS, w_VD)[0], right)
    agree(embedding.backward(dy_BSD, None, token_BS, w_VD), torch.autograd.grad(right, leaf, dy_BSD)[0], terms=dy_BSD)


def test_padding_has_no_row(normal):
    """−1 must not read the last row, as an index would, and must not receive a gradient."""
    w_VD, dy_BSD = normal(1, (4, 3), (1, 3, 3))
    token_BS = torch.tensor([[2, -1, 2]])
    y_BSD, _ = embedding.forward(token_BS, w_VD)
    assert (y_BSD[0, 1] == 0).all() and torch.equal(y_BSD[0, 0], w_VD[2])
    dw_VD = embedding.backward(dy_BSD, None, token_BS, w_VD)
    torch.testing.assert_close(dw_VD[2], dy_BSD[0, 0] + dy_BSD[0, 2])
    assert (dw_VD[[0, 1, 3]] == 0).all()


def test_places_are_summed_over_the_batch(normal, agree):
    """dp is the sum over sequences, and zero for positions that no sequence reaches."""
    x_BSD, p_CD, dy_BSD = normal(2, (3, 4, 5), (6, 5), (3, 4, 5))
    y_BSD, _ = positional.forward(x_BSD, p_CD)
    agree(y_BSD - x_BSD, p_CD[:4].expand(3, 4, 5), 1e-14, terms=x_BSD)
    _, dp_CD = positional.backward(dy_BSD, None, p_CD)
    agree(dp_CD[:4], dy_BSD.sum(0), 1e-14)
    assert (dp_CD[4:] == 0).all()


def test_pooling_leaves_padding_out(normal, agree):
    """The mean of two tokens, of one, and of none: fails on division by S or by 0."""
    x_BSD, dy_BD = normal(3, (3, 4, 2), (3, 2))
    mask_BS = torch.tensor([[True, True, False, False], [False, False, True, False], [False] * 4])
    y_BD, _ = pool.forward(x_BSD, mask_BS)
    agree(y_BD[0], x_BSD[0, :2].mean(0), 1e-14)
    assert torch.equal(y_BD[1], x_BSD[1, 2]) and (y_BD[2] == 0).all()
    dx_BSD = pool.backward(dy_BD, None, mask_BS)
    agree(dx_BSD[0, 1], dy_BD[0] / 2, 1e-14)
    assert (dx_BSD[~mask_BS] == 0).all()
