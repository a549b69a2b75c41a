"""Number formats, the rounding mode, recorded decisions, and the band of noise."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradproof.precision.mode import rounding

__all__ = ["rounding"]


def __getattr__(name: str):
    """`rounding` is imported when it is first used: the command beside it must not load torch."""
    if name != "rounding":
        raise AttributeError(f"module 'gradproof.precision' has no attribute {name!r}")
    from gradproof.precision.mode import rounding

    return rounding
