"""Folds for cross-validation: stratified by class, with groups and near-duplicates kept together.

Rows that are nearly the same text are never on both sides of a split. Rows of one group stay together too, where every
class has at least as many groups as there are folds; otherwise rows are split, and `Folds.by_row` says so. Likewise the
near-duplicates of a class with fewer clusters than folds are split, and `Folds.torn` says so: a fold without the class
could be neither trained on nor scored.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradproof.streams import philox

SHINGLE = 5  # characters
ALIKE = 0.8  # Jaccard similarity of the shingles, from which two texts are near-duplicates
RESEMBLING = 0.5  # the same, from which a made-up text is too like a given one
BANDS, BAND = 24, 4  # of a MinHash signature: similarity 0.8 is missed once in 300,000 pairs
_NUMBER, _SPACE = re.compile(r"\d+"), re.compile(r"\s+")


class Folds(NamedTuple):
    """fold_R: the fold of each row. `by_row` names the sources whose groups were split, `torn` the labels whose
    near-duplicates were; `clusters` counts what was kept together."""

    fold_R: np.ndarray
    by_row: tuple[str, ...]
    clusters: int
    torn: tuple[Hashable, ...] = ()


def normalised(text: str) -> str:
    """What two near-duplicates may differ in is taken away: case, numbers, white space."""
    return _SPACE.sub(" ", _NUMBER.sub("0", text.lower())).strip()


def near_duplicates(texts: Sequence[str]) -> np.ndarray:
    """cluster_R: one number for all texts that are linked by near-duplicates, by MinHash and then exact similarity."""
    kept = [normalised(text) for text in texts]
    first = {}
    unique_R = np.array([first.setdefault(text, len(first)) for text in kept], dtype=np.int64)
    shingles = [_shingles(text) for text in first]
    parent = list(range(len(shingles)))
    signature_UH = _signatures(shingles)
    for band in range(BANDS):
        buckets: dict[bytes, int] = {}
        for u, key in enumerate(signature_UH[:, band * BAND : (band + 1) * BAND]):
            other = buckets.setdefault(key.tobytes(), u)
            if other != u and _root(parent, other) != _root(parent, u) and _alike(shingles[other], shingles[u]):
                parent[_root(parent, u)] = _root(parent, other)
    root_U = np.array([_root(parent, u) for u in range(len(shingles))], dtype=np.int64)
    return np.unique(root_U[unique_R], return_inverse=True)[1]


def unlike(made: Sequence[str], texts: Sequence[str], alike: float = RESEMBLING) -> list[str]:
    """What was made up, less whatever half resembles one of the texts: much further apart than near-duplicates."""
    taken = [_shingles(normalised(text)) for text in dict.fromkeys(texts)]
    known = Counter(shingle for own in taken for shingle in own)
    index: dict[str, list[frozenset[str]]] = {}
    for own in taken:
        for shingle in _rarest(own, known, alike):
            index.setdefault(shingle, []).append(own)
    return [made_up for made_up in made if not _resembles(_shingles(normalised(made_up)), index, known, alike)]


def _rarest(own: frozenset[str], known: Counter[str], alike: float) -> list[str]:
    """So many of the rarest shingles that two texts which are `alike` share one of theirs: of |own| shingles at least
    alike · |own| are shared, so no more than the rest can be missed."""
    ordered = sorted(own, key=lambda shingle: (known[shingle], shingle))
    return ordered[: len(own) - math.ceil(alike * len(own)) + 1]


def _resembles(own: frozenset[str], index: dict[str, list[frozenset[str]]], known: Counter[str], alike: float) -> bool:
    seen: set[int] = set()
    for shingle in _rarest(own, known, alike):
        for other in index.get(shingle, ()):
            if id(other) not in seen and len(own & other) >= alike * len(own | other):
                return True
            seen.add(id(other))
    return False


def make(
    texts: Sequence[str],
    label_R: Sequence[int] | np.ndarray,
    group_R: Sequence[Hashable],
    folds: int,
    seed: int = 0,
    source_R: Sequence[str] | None = None,
) -> Folds:
    """Stratified folds: clusters are dealt, largest first, each to the fold with the fewest rows of its class. The
    groups of each source are judged alone."""
    label, source = np.asarray(label_R), source_R or ["the data"] * len(texts)
    if folds < 2 or len(label) < folds:
        raise ValueError(f"{len(label)} rows cannot be split into {folds} folds; at least 2 folds, and a row for each")
    groups: dict[tuple[str, int], set[Hashable]] = {}
    for name, y, group in zip(source, label.tolist(), group_R, strict=True):
        groups.setdefault((name, y), set()).add(group)
    by_row = tuple(sorted({name for (name, _), own in groups.items() if len(own) < folds}))
    together = [
        i if name in by_row else (name, group) for i, (name, group) in enumerate(zip(source, group_R, strict=True))
    ]
    alike_R = near_duplicates(texts)
    cluster_R = joined(alike_R, together)
    torn = too_few(cluster_R, label, folds)
    if torn:
        alone_R = alike_R.max() + 1 + np.arange(len(label))
        cluster_R = joined(np.where(np.isin(label, list(torn)), alone_R, alike_R), together)
    return Folds(deal(cluster_R, label, folds, seed), by_row, int(cluster_R.max()) + 1, torn)


def too_few(cluster_R: np.ndarray, label_R: np.ndarray, folds: int) -> tuple[Any, ...]:
    """The labels with fewer clusters than folds, although they have more rows than clusters."""
    return tuple(
        y
        for y in np.unique(label_R).tolist()
        for own_R in [cluster_R[label_R == y]]
        if len(np.unique(own_R)) < min(folds, len(own_R))
    )


def deal(cluster_R: np.ndarray, label_R: np.ndarray, folds: int, seed: int) -> np.ndarray:
    classes, label_R = np.unique(label_R, return_inverse=True)
    C = len(classes)
    count_KC = np.zeros((cluster_R.max() + 1, C), dtype=np.int64)
    np.add.at(count_KC, (cluster_R, label_R), 1)
    generator = np.random.Generator(philox(seed, "folds"))
    shuffled_K = generator.permutation(len(count_KC))
    # Rare classes first: what is left evens out the common ones.
    share_KC = count_KC / count_KC.sum(0)
    order_K = shuffled_K[np.argsort(-share_KC[shuffled_K].max(1), kind="stable")]
    fold_K, load_FC = np.zeros(len(count_KC), dtype=np.int64), np.zeros((folds, C))
    for k in order_K:
        cost_F = (load_FC * share_KC[k]).sum(1)
        fold = int(np.argmin(cost_F + 1e-9 * load_FC.sum(1)))
        fold_K[k] = fold
        load_FC[fold] += share_KC[k]
    return fold_K[cluster_R]


def joined(cluster_R: np.ndarray, group_R: Sequence[Hashable]) -> np.ndarray:
    """Clusters that share a group become one."""
    parent = list(range(int(cluster_R.max()) + 1))
    first: dict[Hashable, int] = {}
    for cluster, group in zip(cluster_R.tolist(), group_R, strict=True):
        parent[_root(parent, cluster)] = _root(parent, first.setdefault(group, cluster))
    root_K = np.array([_root(parent, k) for k in range(len(parent))], dtype=np.int64)
    return np.unique(root_K[cluster_R], return_inverse=True)[1]


def _root(parent: list[int], node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


def _shingles(text: str) -> frozenset[str]:
    return frozenset(text[i : i + SHINGLE] for i in range(max(1, len(text) - SHINGLE + 1)))


def _alike(a: frozenset[str], b: frozenset[str]) -> bool:
    return len(a & b) >= ALIKE * len(a | b)


def _signatures(shingles: Sequence[frozenset[str]]) -> np.ndarray:
    """signature_UH: the smallest of H hashes over each text's shingles; the shingle's own hash is FNV-1a."""
    H = BANDS * BAND
    multiply_H, add_H = np.random.Generator(philox("minhash")).integers(1, 2**63, (2, H), dtype=np.uint64)
    hashed: dict[str, int] = {}
    signature_UH = np.empty((len(shingles), H), dtype=np.uint32)
    for u, own in enumerate(shingles):
        own_Z = np.array([_hash(shingle, hashed) for shingle in own], dtype=np.uint64)
        mixed_ZH = (own_Z[:, None] * (multiply_H | np.uint64(1)) + add_H) >> np.uint64(32)
        signature_UH[u] = mixed_ZH.min(0)
    return signature_UH


def _hash(shingle: str, hashed: dict[str, int]) -> int:
    if shingle not in hashed:
        value = 0xCBF29CE484222325
        for byte in shingle.encode("utf-8", "surrogatepass"):
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        hashed[shingle] = value
    return hashed[shingle]
