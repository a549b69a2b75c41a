"""Rounding noise or a bug: the runs and the verdict."""
