"""The conclusions in words: whether MoE helps on this table, by how much, how certain that is, and who is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradproof.ablate.statistics import Comparison, Estimate


def answer(comparison: Comparison, labels: Mapping[str, str], on: str = "on this table") -> str:
    """One comparison: `first` helps, hurts, or there is no evidence. Without a test, only the difference."""
    first, second = labels[comparison.first], labels[comparison.second]
    figures = f"{points(comparison.difference.mean)} against {second}{interval(comparison.difference)}"
    if comparison.p_holm is None:
        return f"{first} {on}: {figures}; more seeds would show whether this is chance"
    if comparison.significant and comparison.difference.mean > 0:
        return f"{first} helps {on}: {figures}{_chance(comparison)}"
    hurts = "it hurts, " if comparison.significant else ""
    return f"No evidence that {first} helps {on}: {hurts}{figures}{_chance(comparison)}"


def summary(
    main: Comparison, beside: Sequence[Comparison], labels: Mapping[str, str], on: str = "on this table"
) -> str:
    """The main comparison, and the baselines that are ahead of its first; where none is, the best of them behind."""
    ahead = sorted((c for c in beside if c.difference.mean < 0), key=lambda c: c.difference.mean)
    behind = sorted((c for c in beside if c.difference.mean >= 0), key=lambda c: c.difference.mean)
    parts = [answer(main, labels, on)]
    parts += [f"{labels[c.second]} is {_apart(c)} ahead" for c in ahead]
    if not ahead and behind:
        parts.append(f"{labels[behind[0].second]} is {_apart(behind[0])} behind")
    return "; ".join(parts) + "."


def points(difference: float) -> str:
    """A difference of accuracies, signed, with a real minus: +0.2 points."""
    return f"{_signed(difference)} points"


def interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f", 95% interval {_signed(estimate.low)} to {_signed(estimate.high)}"


def _apart(comparison: Comparison) -> str:
    """How far apart, and whether that may be chance."""
    apart = f"{abs(100 * comparison.difference.mean):.1f} points"
    return apart if comparison.significant or comparison.p_holm is None else f"{apart} (within chance)"


def _chance(comparison: Comparison) -> str:
    p = comparison.p_holm or 0.0
    return f" (p {'< 0.001' if p < 0.001 else f'= {p:.2g}'} after Holm's correction)"


def _signed(difference: float) -> str:
    text = f"{100 * difference:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")
