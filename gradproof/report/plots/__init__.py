"""Plots as inline SVG: plain records in, markup out, nothing for nothing to show."""

from gradproof.report.plots import curves, decisions
from gradproof.report.plots.proof import claims, tensors

__all__ = ["claims", "curves", "decisions", "tensors"]
