from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ops import padic

BASES = (2, 3, 5, 10)
INT64 = st.integers(-(2**63), 2**63 - 1)


def encoded(numbers, p=2, dtype=torch.float32):
    """Both columns, as float64 arrays."""
    columns, _ = padic.forward(torch.as_tensor(numbers, dtype=torch.int64), p, dtype)
    assert {column.dtype for column in columns} == {dtype}
    return [column.double().numpy() for column in columns]


def exact(n, p):
    """Both columns as fractions, digit by digit, from the definition."""
    K, rest, columns = padic.digits(p), abs(n), []
    for _ in range(2):
        value = Fraction(0)
        for i in range(K):
            rest, digit = divmod(rest, p)
            value += Fraction(digit, p ** (i + 1))
        columns.append(-value if n < 0 else value)
    return columns


def test_by_hand():
    """Least significant digit first: 1 is far from 0, 8 is close to 0, and the sign is that of the number."""
    first, rest = encoded([0, 1, 2, 3, 4, 6, 8, -1, -6])
    assert first.tolist() == [0, 0.5, 0.25, 0.75, 0.125, 0.375, 0.0625, -0.5, -0.375] and not rest.any()
    assert encoded([12, -205], 10, torch.float64)[0] == pytest.approx([0.21, -0.502], rel=1e-15)


@pytest.mark.parametrize(("p", "digits"), [(2, 24), (3, 15), (4, 12), (5, 10), (7, 8), (10, 7), (4096, 2)])
def test_digits_of_a_column(p, digits):
    """⌊24·ln 2/ln p⌋; in floating point 24·ln 2/ln 4 may evaluate to 11.999."""
    assert padic.digits(p) == digits and p**digits <= 2**24 < p ** (digits + 1)


@pytest.mark.parametrize("p", [-2, 0, 1, 4097])
def test_refuses_a_base(p):
    with pytest.raises(ValueError, match=f"p = {p}: the base of the p-adic encoding must be between 2 and 4096"):
        padic.forward(torch.zeros(1, dtype=torch.int64), p)


@given(n=st.lists(INT64 | st.integers(-70_000, 70_000), min_size=1, max_size=9), p=st.sampled_from((*BASES, 7, 4096)))
def test_agrees_with_the_definition(n, p):
    """Every digit of every int64: fails on an intermediate int32, on |−2⁶³|, and on a table of the wrong length."""
    for dtype, unit in ((torch.float64, 2.0**-53), (torch.float32, 2.0**-25)):
        for place, column in enumerate(encoded(n, p, dtype)):
            for one, value in zip(n, column, strict=True):
                assert abs(Fraction(value) - exact(one, p)[place]) <= Fraction(unit)


def worst_of_classes(n, value, p, k):
    """The largest distance of two values whose numbers agree mod p^k and in sign, from the extremes of each class."""
    worst = 0.0
    for side in (n >= 0, n <= 0):
        residue, own = np.mod(n[side], p**k), value[side]
        order = np.argsort(residue, kind="stable")
        starts = np.flatnonzero(np.diff(residue[order], prepend=-1))
        worst = max(
            worst, float((np.maximum.reduceat(own[order], starts) - np.minimum.reduceat(own[order], starts)).max())
        )
    return worst


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", BASES)
def test_near_numbers_are_near_for_every_int16(p, dtype):
    """a ≡ b mod p^k with the same sign ⇒ |enc a − enc b| < p^{−k}: all pairs of int16, from the extremes of each
    class.
    """
    n = np.arange(-(2**15), 2**15)
    first, second = encoded(n, p, dtype)
    k = 0
    while p**k <= 2**16:
        assert worst_of_classes(n, first, p, k) < float(Fraction(1, p**k))
        k += 1
    assert not second.any() and len(np.unique(first)) == 2**16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", BASES)
def test_near_numbers_are_near_at_the_digit_limit(p, dtype):
    """Numbers that fill a column, overflow into the second, or reach the limits of int64, for every k."""
    K = padic.digits(p)
    edges = [p**j + d for j in (K - 1, K, K + 1, 2 * K - 1, 2 * K) if p**j < 2**62 for d in (-p, -1, 0, 1, p)]
    edges += [p**K * j - 1 for j in range(1, 40)] + [j * p ** (K - 1) for j in range(1, 40)]
    edges += [2**63 - 1, 2**63 - 2, 2**62, 0]
    n = np.array(sorted({signed for n in edges for signed in (n, -n)} | {-(2**63), -(2**63) + 1}), dtype=np.int64)
    first, second = encoded(n, p, dtype)
    k = 0
    while p**k < 2**63:
        assert worst_of_classes(n, first, p, k) < float(Fraction(1, p**k))
        assert worst_of_classes(n, second, p, k) < float(p) ** (K - k)
        k += 1


@pytest.mark.parametrize("p", BASES)
def test_both_columns_tell_numbers_apart(p):
    """Below p^{2K} no two numbers have the same encoding, also in float32: 2⁴⁸ of either sign for p = 2."""
    K, random = padic.digits(p), np.random.default_rng(0)
    n = np.unique(random.integers(-(p ** (2 * K)) + 1, p ** (2 * K), 20_000))
    n = np.unique(np.concatenate([n, [p**K - 1, p**K, p ** (2 * K) - 1, -(p**K), 0, 1, -1]]))
    assert len({*zip(*encoded(n, p), strict=True)}) == len(n)
