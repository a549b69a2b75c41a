"""torch's own fused kernels, by their explicit forward and backward entry points: no autograd."""

from gradproof.kernels.shapes import NARROW, TOKEN_OPS
from gradproof.kernels.variants import Variant


def missing() -> str | None:
    """Why they cannot run on this machine, or None."""
    return None


def variants() -> tuple[Variant, ...]:
    """What it offers."""
    of_cpu = (Variant(op, "aten", "cpu", ("float32", "bfloat16")) for op in TOKEN_OPS[:4])
    return (*of_cpu, *(Variant(op, "aten", "cuda", ("float32", *NARROW)) for op in TOKEN_OPS[:4]))
