"""Judges each act of a call: floor, rules, corrections, policy, model.

In order: the floor, which nothing but shadow mode removes; rules; corrections; the policy, which the model may tighten,
and loosen from ask to allow where it is trusted. The same code judges a call as it comes, and one of the journal when
somebody wants to know what a change would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradproof.gate.acts.act import Act
from gradproof.gate.corrections import Correction
from gradproof.gate.policy import Policy
from gradproof.gate.rules import Rules
from gradproof.gate.signals import Outcome
from gradproof.gate.standing import STRICTER, ActVerdict


class ActDecision(NamedTuple):
    """The decision on one act: by the floor, a rule, a correction, the policy or the model; `line` is which one."""

    outcome: Outcome
    reason: str
    by: str
    line: str = ""


@dataclass(frozen=True)
class Standards:
    """What acts are judged by, beside corrections: rules, the model's thresholds, whether it has learned from people
    (`people`), and whether it is trusted. `alone`, the model decides without all others, so that it can be scored."""

    rules: Rules
    thresholds: Policy
    people: bool = False
    trusted: bool = False
    alone: bool = False

    def judge(
        self,
        act: Act,
        verdict: ActVerdict,
        p: float,
        said: tuple[str, Mapping[str, Any]],
        correction: Correction | None = None,
    ) -> ActDecision:
        """One act. `verdict` is that of floor and policy, `p` the model's P(allow), `said` the call's tool and
        arguments; `correction` speaks for this act."""
        if self.alone:
            return ActDecision(self.thresholds.decide(p), f"model: p = {p:.3g}", "model", self._threshold(p))
        if verdict.floor and not (verdict.outcome == "ask" and correction is not None and correction.once):
            return ActDecision(verdict.outcome, verdict.reason, "floor", verdict.line)
        rule = self.rules.judge(act, *said)
        if rule is not None:
            return ActDecision("block" if rule.effect == "deny" else "allow", str(rule), "rule", rule.line)
        if correction is not None:
            return ActDecision(
                "allow" if correction.allow else "block",
                spoken(correction),
                "correction",
                f"correction {correction.id}: {correction.kind} by {correction.actor or '?'}",
            )
        return self._by_model(act, verdict, p)

    def _by_model(self, act: Act, verdict: ActVerdict, p: float) -> ActDecision:
        """The policy, tightened by the model; loosened from ask to allow only with trust."""
        model = self.thresholds.decide(p)
        if verdict.outcome == "allow" and (self.people or self.trusted) and model == "block":
            reason = f"{verdict.reason}; the model considers it harmful, p = {p:.3g}"
            return ActDecision("ask", reason, "model", self._threshold(p))
        readable = act.effect != "unknown" and act.scope != "unknown"
        if verdict.outcome == "ask" and readable and self.trusted and model == "allow":
            reason = f"{verdict.reason}; the model allows it, p = {p:.3g}"
            return ActDecision("allow", reason, "model", self._threshold(p))
        return ActDecision(verdict.outcome, verdict.reason, "policy", verdict.line)

    def _threshold(self, p: float) -> str:
        allow_at, block_below = self.thresholds
        return f"model: p = {p:.3g}; it allows from {allow_at:.3g} on and blocks below {block_below:.3g}"


def judge_all(
    standards: Standards,
    acts: Sequence[Act],
    verdicts: Sequence[ActVerdict],
    p_A: Sequence[float],
    said: tuple[str, Mapping[str, Any]],
    correction: Correction | None,
) -> list[ActDecision]:
    """Every act of a call. An allow speaks for all of them, a block for those that are like the one it names."""
    reached = (
        set() if correction is None else set(range(len(acts))) if correction.allow else reached_by(correction, acts)
    )
    return [
        standards.judge(act, verdict, p, said, correction if i in reached else None)
        for i, (act, verdict, p) in enumerate(zip(acts, verdicts, p_A, strict=True))
    ]


def deciding(judged: Sequence[ActDecision], p_A: Sequence[float]) -> int:
    """Which act decides: the strictest; of several that are decided alike, the one that the model holds for the
    worst."""
    return max(range(len(judged)), key=lambda act: (STRICTER[judged[act].outcome], -p_A[act], -act))


def reached_by(correction: Correction, acts: Sequence[Act]) -> set[int]:
    """The acts that a block speaks of: those like the named one; all of them where the call is the very same."""
    named = correction.acts[min(correction.named, len(correction.acts) - 1)]
    like = {i for i, act in enumerate(acts) if (act.effect, act.program) == (named.effect, named.program)}
    return like or set(range(len(acts)))


def spoken(correction: Correction) -> str:
    """A correction as the reason of a decision."""
    if correction.once:
        return f"{correction.actor or 'a person'} allowed this call once"
    kind = "allowed" if correction.allow else "blocked"
    return f"a person {kind} this or a similar call: correction {correction.id} ({correction.kind})"
