"""Products by cuBLAS, one call an expert, on row counts that the host has read; everything between them by Triton."""


def missing() -> str | None:
    """Why these kernels cannot run here, or None."""
    from gradproof.kernels import triton

    return triton.missing()
