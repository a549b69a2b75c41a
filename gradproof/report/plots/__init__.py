"""Plots as inline SVG: plain records in, markup out, nothing for nothing to show."""

from gradproof.report.plots import curves, decisions, diagnosis
from gradproof.report.plots.proof import claims, tensors

__all__ = ["claims", "curves", "decisions", "diagnosis", "tensors"]
