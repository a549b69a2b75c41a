"""Number formats, the rounding mode, recorded decisions, and noise bands."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradproof.precision.mode import rounding

__all__ = ["rounding"]


def __getattr__(name: str):
    """Imports `rounding` on first use, so that importing the package does not load torch."""
    if name != "rounding":
        raise AttributeError(f"module 'gradproof.precision' has no attribute {name!r}")
    from gradproof.precision.mode import rounding

    return rounding
