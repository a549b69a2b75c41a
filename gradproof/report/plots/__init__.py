"""Plots as inline SVG: plain records in, markup out; empty markup if there is nothing to show."""

from gradproof.report.plots import ablation, curves, decisions, diagnosis, gate, numbers
from gradproof.report.plots.proof import claims, tensors

__all__ = ["ablation", "claims", "curves", "decisions", "diagnosis", "gate", "numbers", "tensors"]
