"""Number formats, the rounding mode, and the judgement of what rounding does."""

from gradproof.precision.mode import rounding

__all__ = ["rounding"]
