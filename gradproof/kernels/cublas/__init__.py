"""Products by cuBLAS, one call an expert, on row counts that the host has read; everything between them by Triton."""

from typing import Any

from gradproof.kernels.paths import widths
from gradproof.kernels.shapes import NARROW, Shape
from gradproof.kernels.variants import Variant


def missing() -> str | None:
    """Why these kernels cannot run here, or None."""
    from gradproof.kernels import triton

    return triton.missing()


def variants() -> tuple[Variant, ...]:
    """What it offers."""
    return (Variant("experts", "cublas", "cuda", ("float32", *NARROW), host=True),)


def path(op: str, shape: Shape) -> dict[str, Any]:
    """The widths. How many rows an expert has, hence which algorithm cuBLAS takes, hangs on the data: all that fewer
    rows than the next power of two can reach are judged together (`experts.products`)."""
    return {**widths(op, shape), "rows": 1 << max(0, shape.rows - 1).bit_length()}
