"""Measured figures: suites for `gradproof bench`."""
