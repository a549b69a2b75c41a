"""Number formats, and what rounding to them does."""
