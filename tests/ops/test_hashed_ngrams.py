import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ops import hashed_ngrams


@given(B=st.sampled_from([1, 4]), G=st.sampled_from([1, 7]), N=st.sampled_from([1, 5]), seed=st.integers(0, 9999))
def test_agrees_with_a_dense_product(normal, agree, B, G, N, seed):
    """The bag as a dense matrix: fails if the scatter overwrites, or if the scale or the norm is missing."""
    w_N, dy_B = normal(seed, (N,), (B,))
    generator = torch.Generator().manual_seed(seed)
    gram_BG = torch.randint(-1, N, (B, G), generator=generator)
    scale_N = 0.5 + torch.rand(N, generator=generator, dtype=torch.float64)
    dense_BN = torch.zeros(B, N, dtype=torch.float64)
    for row, grams in zip(dense_BN, gram_BG, strict=True):
        there = grams[grams >= 0]
        for gram in there:
            row[gram] += scale_N[gram] / scale_N[there].square().sum().sqrt()
    y_B, saved = hashed_ngrams.forward(gram_BG, scale_N, w_N)
    agree(y_B, dense_BN @ w_N, 1e-12, terms=dense_BN.abs() @ w_N.abs())
    terms = dense_BN.T.abs() @ dy_B.abs()
    agree(hashed_ngrams.backward(dy_B, saved, gram_BG, w_N), dense_BN.T @ dy_B, 1e-12, terms=terms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_of_distinct_ngrams_has_length_one(dtype):
    """For any number of n-grams: a long call has the same norm as a short one."""
    scale_N = torch.linspace(1, 5, 64, dtype=dtype)
    gram_BG = torch.stack([torch.arange(32), torch.cat((torch.arange(40, 43), torch.full((29,), -1)))])
    _, share_BG = hashed_ngrams.forward(gram_BG, scale_N, torch.zeros(64, dtype=dtype))
    torch.testing.assert_close(share_BG.square().sum(1), torch.ones(2, dtype=dtype))
