"""The distinct n-grams of a text's characters, as numbers: which short pieces occur, wherever they stand.

A piece of n bytes is hashed by a polynomial in its bytes, mixed, and cut to the number of buckets. Numbers are read as
0 and case stays: `chmod 4755` and `chmod 0755` differ in little but their digits, `-r` and `-R` in what they do.
"""

from __future__ import annotations

import numpy as np

SHORTEST, LONGEST = 1, 5
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xFF51AFD7ED558CCD)


def ngrams(text: str, buckets: int) -> np.ndarray:
    """gram_G, ascending: each number once."""
    byte_L = np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    hash_L, found = np.zeros(len(byte_L), dtype=np.uint64), []
    for n in range(1, LONGEST + 1):
        if len(byte_L) < n:
            break
        hash_L = hash_L[: len(byte_L) - n + 1] * _FACTOR + byte_L[n - 1 :]
        if n >= SHORTEST:
            found.append(_mixed(hash_L + np.uint64(n)))
    if not found:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate(found) % np.uint64(buckets)).astype(np.int64)


def _mixed(hash_L: np.ndarray) -> np.ndarray:
    hash_L = (hash_L ^ (hash_L >> np.uint64(33))) * _MIX
    return hash_L ^ (hash_L >> np.uint64(29))
