"""The distinct n-grams of a text's bytes, as numbers.

Digits are read as 0, case stays: `sleep 5` and `sleep 7` do the same, `-r` and `-R` may not. A piece of n bytes is
hashed by a polynomial in its bytes; the longer it is, the more numbers there are for its length: half of all are for
the longest, a quarter for the next, and so on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

LONGEST = 5
NUMBERS = 2**20
BOUNDS = tuple(NUMBERS >> (LONGEST - n) for n in range(LONGEST + 1))  # length n has BOUNDS[n-1] … BOUNDS[n] − 1
BOUNDS = (0, *BOUNDS[1:])
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_PLAIN = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))


def ngrams(text: str) -> np.ndarray:
    """gram_G, ascending: each number once."""
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(gram_L for _, gram_L in placed(text))]))


def placed(text: str) -> Iterator[tuple[int, np.ndarray]]:
    """By length n: gram_L, the number of the piece that begins at each byte."""
    plain = text.encode("utf-8").translate(_PLAIN)
    byte_L = np.frombuffer(plain, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    hash_L = np.zeros(len(byte_L), dtype=np.uint64)
    for n in range(1, min(LONGEST, len(byte_L)) + 1):
        hash_L = hash_L[: len(byte_L) - n + 1] * _FACTOR + byte_L[n - 1 :]
        low, high = BOUNDS[n - 1], BOUNDS[n]
        yield n, (_mixed(hash_L) % np.uint64(high - low)).astype(np.int64) + low


def _mixed(hash_L: np.ndarray) -> np.ndarray:
    """All bits of the result depend on all bits of the hash."""
    hash_L = (hash_L ^ (hash_L >> np.uint64(33))) * _MIX
    return hash_L ^ (hash_L >> np.uint64(29))
