"""Products of all experts in one call, on row counts that stay on the device: nothing waits, so a step can be captured
whole in a CUDA graph. Forward and dx by `torch._grouped_mm`, weight gradients in fp32 and the rest by Triton."""

from gradproof.kernels.variants import Variant


def missing() -> str | None:
    """Why these kernels cannot run here, or None."""
    import torch

    from gradproof.kernels import triton

    if not hasattr(torch, "_grouped_mm"):
        return f"torch {torch.__version__} has no _grouped_mm"
    return triton.missing()


def variants() -> tuple[Variant, ...]:
    """What it offers."""
    return (Variant("experts", "grouped", "cuda", ("bfloat16",), most=2e11),)
