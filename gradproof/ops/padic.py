"""The p-adic (Monna) encoding: an integer by its base-p digits, least significant digit first.

    enc(n) = sign(n)·Σ_i d_i p^{−(i+1)},  d_i the digits of |n|

Numbers that agree in their lowest k digits are close: for numbers of the same sign (zero counts as either), a ≡ b mod
p^k ⇒ |enc a − enc b| < p^{−k}. The first column holds K digits, the largest K with p^K ≤ 2²⁴ (24 for p = 2). Rounded to
float32 they stay distinct, and no difference rounds up to p^{−k}. The second column holds the next K digits. Further
digits (of numbers from 2⁴⁸, for p = 2) are not encoded.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import (
    DETERMINISTIC,
    NO_ALIAS,
    WRITES_ALL,
    Claim,
    Contract,
    Example,
    Gradients,
    Outputs,
    equivariant,
)

MOST_BASE = 4096  # also the largest table of reversed digits
INT64 = torch.iinfo(torch.int64)


class Encoded(NamedTuple):
    first_T: Tensor
    second_T: Tensor


def digits(p: int) -> int:
    """K = ⌊24·ln 2/ln p⌋ in exact arithmetic: the digits per column."""
    if not 2 <= p <= MOST_BASE:
        raise ValueError(f"p = {p}: the base of the p-adic encoding must be between 2 and {MOST_BASE}")
    return max(k for k in range(1, 25) if p**k <= 2**24)


def forward(n_T: Tensor, p: int = 2, dtype: torch.dtype = torch.float32) -> tuple[Encoded, None]:
    """Both columns of the int64 numbers `n_T`, of any shape."""
    K = digits(p)
    rest_T = torch.where(n_T > 0, -n_T, n_T)  # −|n|, since |−2⁶³| does not fit into int64
    columns = []
    for _ in range(2):
        turned_T, rest_T = _turned(rest_T, p, K)
        columns.append(((torch.sign(n_T) * turned_T).double() / p**K).to(dtype))
    return Encoded(*columns), None


def _turned(rest_T: Tensor, p: int, K: int) -> tuple[Tensor, Tensor]:
    """Σ_i d_i p^{K−1−i} over the lowest K digits of −rest, and the remainder; a table reverses several at once."""
    at_once = _at_once(p, K)
    table, size = _table(p, at_once, rest_T.device), p**at_once
    turned_T = torch.zeros_like(rest_T)
    for _ in range(K // at_once):
        turned_T = turned_T * size + table[-torch.fmod(rest_T, size)]
        rest_T = torch.div(rest_T, size, rounding_mode="trunc")
    return turned_T, rest_T


def _at_once(p: int, K: int) -> int:
    return max(k for k in range(1, K + 1) if K % k == 0 and p**k <= MOST_BASE)


@lru_cache(maxsize=64)
def _table(p: int, k: int, device: torch.device) -> Tensor:
    """The digit reversal of each k-digit number."""
    table = [sum((n // p**i % p) * p ** (k - 1 - i) for i in range(k)) for n in range(p**k)]
    return torch.tensor(table, dtype=torch.int64, device=device)


def _ultrametric(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """The largest |enc a − enc b|·p^k over all k and all a ≡ b mod p^k of the same sign. It must be below 1."""
    n_T, p = example.arguments["n"], example.options["p"]
    K, worst = digits(p), 0.0
    for side_T in (n_T >= 0, n_T <= 0):
        own_T, first_T, second_T = n_T[side_T], *(column_T[side_T].double() for column_T in outputs)
        for k in range(int(63 * math.log(2, p)) if own_T.numel() else 0):
            residue_C, class_T = torch.unique(torch.remainder(own_T, p**k), return_inverse=True)
            worst = max(worst, _spread(class_T, first_T) * float(p) ** k)
            worst = max(worst, _spread(class_T, second_T) * float(p) ** (k - K))
            if len(residue_C) == len(own_T):
                break  # every class has one member from here on
    return worst, math.nextafter(1.0, 0.0)


def _spread(class_T: Tensor, value_T: Tensor) -> float:
    """The largest distance of two values in the same class: maximum minus minimum."""
    some_C = value_T.new_zeros(int(class_T.max()) + 1)
    low_C, high_C = (some_C.scatter_reduce(0, class_T, value_T, way, include_self=False) for way in ("amin", "amax"))
    return float((high_C - low_C).max())


def _invertible(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """How many numbers cannot be reconstructed from the digits in both columns and the sign."""
    n_T, p = example.arguments["n"], example.options["p"]
    K, left_T, wrong_T = digits(p), n_T, torch.zeros_like(n_T, dtype=torch.bool)
    for column_T in outputs:
        turned_T = (column_T.double() * p**K).round().to(torch.int64)
        read_T = sum(torch.div(turned_T, p ** (K - 1 - i), rounding_mode="trunc").fmod(p) * p**i for i in range(K))
        wrong_T |= read_T != left_T.fmod(p**K)
        left_T = torch.div(left_T, p**K, rounding_mode="trunc")
    return float(wrong_T.sum()), 0.0


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    """Numbers of every length from 1 to 62 bits, and pairs that share some of their lowest digits."""
    length_T = torch.randint(1, 63, (sizes["T"],), generator=generator)
    n_T = torch.randint(INT64.max, (sizes["T"],), generator=generator) >> (63 - length_T)
    n_T = torch.where(torch.rand(sizes["T"], generator=generator) < 0.5, -n_T, n_T)
    p = options["p"]
    kept_T = torch.randint(0, int(62 * math.log(2, p)), (sizes["T"],), generator=generator)
    near_T = torch.fmod(n_T, torch.tensor([p**k for k in kept_T.tolist()]))
    return dict(n=torch.cat([n_T, near_T]))


def _around(generator: torch.Generator, p: int) -> Example:
    """Zero, the limits of int64, and the numbers around the last digit of a column."""
    full = p ** digits(p)
    near = [0, 1, p - 1, p, full - 1, full, full + 1, 2 * full, full**2 - 1, full**2, 2**62, INT64.max]
    n_T = torch.tensor([n for limit in near for n in (limit, -limit) if n <= INT64.max] + [INT64.min, INT64.min + 1])
    return Example(f"digit limits, p = {p}", dict(n=n_T), dict(p=p))


def _int16(generator: torch.Generator, p: int) -> Example:
    """Every int16."""
    return Example(f"all of int16, p = {p}", dict(n=torch.arange(-(2**15), 2**15)), dict(p=p))


def _edge(make: Any, p: int) -> Any:
    return lambda generator: make(generator, p)


CONTRACT = Contract(
    shapes="n[T] -> first[T] second[T]",
    sizes=dict(T=(1, 7, 64)),
    grads=(),
    draw=_draw,
    options=tuple(dict(p=p) for p in (2, 3, 5, 10)),
    claims=(
        Claim("ultrametric", check=_ultrametric),
        Claim("invertible", check=_invertible),
        DETERMINISTIC,
        WRITES_ALL,
        NO_ALIAS,
        equivariant("T"),
    ),
    edges=tuple(_edge(make, p) for make in (_around, _int16) for p in (2, 3, 5, 10)),
)
