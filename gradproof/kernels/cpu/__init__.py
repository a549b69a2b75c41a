"""Compiled kernels for the CPU, float32: C++ that g++ builds when it is first needed, called through ctypes."""

from __future__ import annotations

from typing import Any

import torch

from gradproof.kernels.cpu.build import available, library
from gradproof.kernels.paths import widths
from gradproof.kernels.shapes import MIXTURES, ROW_OPS, Shape
from gradproof.kernels.variants import Variant


def missing() -> str | None:
    """Why they cannot run on this machine, or None."""
    return available()


def variants() -> tuple[Variant, ...]:
    """All of them; of large batches the calls between the parts are nothing, and no fused op is worth its memory."""
    alone = (Variant(op, "cpu", "cpu") for op in (*ROW_OPS, "ffn", "update", "reading"))
    return (*alone, *(Variant(op, "cpu", "cpu", most=3e8) for op in MIXTURES))


PARAMETERS, LOGITS, FLOATS, ROUTED, ROWS, SEQUENCES = range(6)  # kinds of work, as the C++ counts them


def path(op: str, shape: Shape) -> dict[str, Any]:
    """How many threads share each part of a call, and how the experts' rows are cut, as the C++ itself decides; the
    widths exactly."""
    T, K, chain = shape.rows, shape.k, shape.chain
    I, O, P = chain.widths[0], chain.widths[-1], shape.parameters
    work = {
        "route": [(ROUTED, T)],
        "dispatch": [(FLOATS, T * K * I)],
        "combine": [(FLOATS, T * K * O)],
        "cross_entropy": [(LOGITS, shape.tokens * O)],
        "adamw": [(PARAMETERS, P)],
        "update": [(PARAMETERS, P)],
        "ffn": [(ROWS, shape.tokens)],
        "reading": [(SEQUENCES, T)],
        "experts": [],
        "mixture": [(ROUTED, T), (FLOATS, T * K * I), (FLOATS, T * K * O)],
    }
    work["lesson"] = [*work["mixture"], (LOGITS, T * O), (PARAMETERS, P)]
    crews = tuple(library().crew(kind, items, shape.threads) for kind, items in work[op])
    facts = {**widths(op, shape), "crews": crews}
    return {**facts, "cut": _cut(shape)} if op in ("experts", *MIXTURES) else facts


def _cut(shape: Shape) -> tuple[int, ...]:
    from gradproof.kernels.cpu.experts import numbers_of

    chain = torch.tensor(numbers_of(shape.chain, shape.threads), dtype=torch.int64)
    cut = torch.empty(6, dtype=torch.int64)
    library().experts_path(chain.data_ptr(), shape.rows * shape.k, shape.experts, shape.threads, cut.data_ptr())
    return tuple(cut.tolist())
