"""Products by cuBLAS, one call an expert, on row counts that the host has read; everything between them by Triton."""

from gradproof.kernels.shapes import NARROW
from gradproof.kernels.variants import Variant


def missing() -> str | None:
    """Why these kernels cannot run here, or None."""
    from gradproof.kernels import triton

    return triton.missing()


def variants() -> tuple[Variant, ...]:
    """What it offers."""
    return (Variant("experts", "cublas", "cuda", ("float32", *NARROW), host=True),)
