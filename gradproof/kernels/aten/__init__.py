"""torch's own fused kernels, by their explicit forward and backward entry points: no autograd."""


def missing() -> str | None:
    """Why they cannot run on this machine, or None."""
    return None
